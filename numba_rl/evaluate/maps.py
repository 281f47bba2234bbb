"""Pictures made of cells and strips: heat maps, and how walk-forward folds lie in time. As ``charts.py`` otherwise."""

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from numba_rl.evaluate.charts import figure, nothing
from numba_rl.evaluate.formatting import show
from numba_rl.evaluate.svg import BOTTOM, LEFT, RIGHT, TOP, WIDTH, across, time_axis


def heat_map(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: np.ndarray,
    unit: str,
    *,
    signed: bool = False,
    text: bool = True,
    note: str = "",
) -> Markup:
    """Coloured cells, values float64 [R, C]; NaN stays empty. ``signed``: gains and losses; ``text``: numbers in the cells where
    they fit. A column's label is broken into lines at ", "."""
    values = np.asarray(values, np.float64)
    if not values.size or not np.isfinite(values).any():
        return nothing(title)
    left = max(LEFT, 7.2 * max(map(len, rows)) + 14)
    width = (WIDTH - left - RIGHT) / len(columns)
    tall = 26 if text and len(rows) <= 20 else 16 if len(rows) <= 20 else 9
    bottom = TOP + tall * len(rows)
    strongest = float(np.nanmax(np.abs(values))) or 1.0
    numbers = text and width >= 46
    parts = []
    for r, row in enumerate(rows):
        y = TOP + r * tall
        if tall > 12 or r % 3 == 0:
            parts.append(
                Markup('<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>').format(left - 8, y + tall / 2 + 4, row)
            )
        for c, column in enumerate(columns):
            value = float(values[r, c])
            if not math.isfinite(value):
                continue
            style = ("gain" if value >= 0 else "loss") if signed else "agent"
            hint = Markup("<title>{}, {}: {}</title>").format(row, column, show(value, unit)) if values.size <= 1200 else ""
            parts.append(
                Markup('<rect class="cell {}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}" fill-opacity="{:.2f}">{}</rect>').format(
                    style, left + c * width, y, width - (1 if width > 6 else 0), tall - 1, 0.04 + 0.66 * abs(value) / strongest, hint
                )
            )
            if numbers:
                parts.append(
                    Markup('<text class="number" x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>').format(
                        left + (c + 0.5) * width, y + tall / 2 + 4, show(value, unit)
                    )
                )
    words = [column.split(", ") for column in columns]
    every = max(1, math.ceil((7.2 * max(len(word) for label in words for word in label) + 12) / width))
    for c in range(0, len(columns), every):
        for k, word in enumerate(words[c]):
            x = min(left + (c + 0.5) * width, WIDTH - 3.5 * len(word))
            parts.append(
                Markup('<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>').format(x, bottom + 17 + 15 * k, word)
            )
    lines = max(map(len, words))
    return figure(title, Markup("").join(parts), bottom + BOTTOM + 15 * (lines - 1), note=note)


def folds_chart(
    title: str, timestamp: np.ndarray, folds: Sequence[tuple[str, Sequence[tuple[str, int, int]]]], *, note: str = ""
) -> Markup:
    """How walk-forward folds lie in time: one row a fold of (name, parts), a part being (kind, start, stop) in bars, half open.

    Kinds: train, validation, purge, embargo, test. timestamp: int64 [N] ns, of all bars.
    """
    if not folds:
        return nothing(title)
    axis = time_axis(timestamp)
    tall = min(20.0, max(5.0, 640 / len(folds)))
    bottom = TOP + tall * len(folds)
    parts = []
    for at, label in axis.ticks:
        x = float(across(at))
        parts.append(
            Markup(
                '<line class="grid" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2:.1f}"/><text class="tick" x="{3:.1f}" y="{4:.1f}" text-anchor="middle">{5}</text>'
            ).format(x, TOP, bottom, min(x, WIDTH - 3.5 * len(label)), bottom + 18, label)
        )
    every = max(1, math.ceil(13 / tall))
    for k, (name, pieces) in enumerate(folds):
        y = TOP + k * tall
        if k % every == 0:
            parts.append(
                Markup('<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(LEFT - 8, y + tall / 2 + 4, name)
            )
        for kind, start, stop in pieces:
            low, high = (float(across(at / len(timestamp))) for at in (start, stop))
            parts.append(
                Markup(
                    '<rect class="fold {0}" x="{1:.1f}" y="{2:.1f}" width="{3:.1f}" height="{4:.1f}"><title>{5}, {0}: {6} bars</title></rect>'
                ).format(kind, low, y + 1, max(high - low, 0.7), tall - 2, name, f"{stop - start:,}")
            )
    kinds = list(dict.fromkeys(kind for _, pieces in folds for kind, _, _ in pieces))
    return figure(title, Markup("").join(parts), round(bottom + BOTTOM), legend=[(kind.capitalize(), kind) for kind in kinds], note=note)
