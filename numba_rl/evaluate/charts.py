"""The report's pictures: each function takes plain arrays and returns one ``<figure>`` of inline SVG.

``style`` names a class of the page's style sheet: agent, gross, hold, random, flat, gain, loss, or c0 to c7 for others.
Titles, names and labels are escaped. Units as in ``formatting.show``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from markupsafe import Markup

from numba_rl.evaluate.formatting import show
from numba_rl.evaluate.svg import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Scale,
    across,
    grid,
    number_axis,
    path,
    readout,
    scale,
    thin,
    time_axis,
)

LOG_RANGE = 8.0  # equity that multiplies by more is drawn on a logarithmic axis


@dataclass(frozen=True)
class Line:
    """One curve: values float64 [N]; NaN leaves a gap."""

    name: str
    values: np.ndarray
    style: str = "agent"
    step: bool = False  # holds until the next point
    fill: bool = False  # the area down to zero is tinted
    dots: bool = False


@dataclass(frozen=True)
class Band:
    """A tinted band between two curves, low and high float64 [N]."""

    name: str
    low: np.ndarray
    high: np.ndarray
    style: str = "random"


def figure(
    title: str, body: Markup, height: float, *, legend: Sequence[tuple[str, str]] = (), note: str = "", extra: Markup | str = ""
) -> Markup:
    """Frame of a picture: title, legend of (name, style), SVG of ``body``, a note beneath."""
    keys = Markup("").join(Markup('<span class="key {}"><i></i>{}</span>').format(style, name) for name, style in legend)
    return Markup(
        '<figure class="chart"><figcaption><b>{title}</b>{keys}</figcaption>'
        '<div class="plot"><svg viewBox="0 0 {width} {height}" role="img" aria-label="{title}">{body}</svg></div>{note}{extra}</figure>'
    ).format(
        title=title,
        keys=keys,
        width=WIDTH,
        height=height,
        body=body,
        note=Markup('<p class="note">{}</p>').format(note) if note else "",
        extra=extra,
    )


def line_chart(
    title: str,
    axis: Axis,
    lines: Sequence[Line],
    unit: str,
    *,
    height: float = 290,
    zero: bool = False,
    log: bool | None = False,
    band: Band | None = None,
    note: str = "",
) -> Markup:
    """Curves over an axis. ``log`` None: logarithmic where all values are above zero and the range is wide."""
    if not lines or not len(axis.position):
        return nothing(title)
    drawn_values = [np.asarray(line.values, np.float64) for line in lines] + ([band.low, band.high] if band else [])
    if log is None:
        known = np.concatenate([values[np.isfinite(values)] for values in drawn_values])
        log = bool(known.size and known.min() > 0 and known.max() / known.min() > LOG_RANGE)
    vertical = scale(drawn_values, TOP, height - BOTTOM, zero=zero, log=log)
    base = vertical.bottom if vertical.log else min(max(float(vertical(np.array(0.0))), vertical.top), vertical.bottom)
    parts = [grid(axis, vertical, unit, height)]
    if band:
        parts.append(_area(axis, vertical, band))
    for line in lines:
        values = np.asarray(line.values, np.float64)
        index = thin(values) if axis.even else np.arange(len(values))
        x, y = across(axis.position[index]), vertical(values[index])
        drawn = path(x, y, step=line.step)
        if line.fill and drawn and not np.isnan(y).any():
            parts.append(Markup('<path class="area {}" d="{}V{:.1f}H{:.1f}Z"/>').format(line.style, drawn, base, x[0]))
        parts.append(Markup('<path class="line {}" d="{}"/>').format(line.style, drawn))
        if line.dots:
            parts += [
                Markup('<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="4"/>').format(line.style, px, py)
                for px, py in zip(x, y, strict=True)
                if not math.isnan(py)
            ]
    pointer = readout(axis, [(line.name, line.style, line.values) for line in lines], unit)
    legend = [(line.name, line.style) for line in lines] + ([(band.name, f"{band.style} wide")] if band else [])
    return figure(
        title + (" (logarithmic scale)" if vertical.log else ""), Markup("").join(parts), height, legend=legend, note=note, extra=pointer
    )


def _area(axis: Axis, vertical: Scale, band: Band) -> Markup:
    index = np.unique(np.linspace(0, len(axis.position) - 1, min(len(axis.position), 400)).astype(np.int64))
    x = across(axis.position[index])
    forth = path(x, vertical(band.high[index]))
    back = path(x[::-1], vertical(band.low[index])[::-1]).replace("M", "L", 1)
    return Markup('<path class="area {}" d="{}{}Z"/>').format(band.style, forth, back)


def time_chart(title: str, timestamp: np.ndarray, lines: Sequence[Line], unit: str, **options) -> Markup:
    """``line_chart`` over the time of bars, timestamp int64 [N] in ns since 1970."""
    return line_chart(title, time_axis(timestamp), lines, unit, **options)


def curve_chart(title: str, x: np.ndarray, lines: Sequence[Line], unit: str, *, x_unit: str = "times", **options) -> Markup:
    """``line_chart`` with dots over a few numbers in rising order, such as cost multiples; each number is labelled."""
    return line_chart(
        title,
        number_axis(x, x_unit, ticks=np.asarray(x, np.float64).tolist()),
        [Line(line.name, line.values, line.style, line.step, line.fill, dots=True) for line in lines],
        unit,
        **options,
    )


def fan_chart(
    title: str,
    axis: Axis,
    paths: np.ndarray,
    unit: str,
    *,
    height: float = 290,
    inner: float = 0.8,
    others: Sequence[Line] = (),
    log: bool = False,
    note: str = "",
) -> Markup:
    """Many curves of one thing, paths float64 [S, N] such as the equity of S seeds: each thin, their median, and the band of the inner share."""
    paths = np.asarray(paths, np.float64)
    if not paths.size:
        return nothing(title)
    low, middle, high = np.nanquantile(paths, [(1 - inner) / 2, 0.5, (1 + inner) / 2], axis=0)
    vertical = scale([paths, *(line.values for line in others)], TOP, height - BOTTOM, log=log)
    parts = [grid(axis, vertical, unit, height), _area(axis, vertical, Band("", low, high, "agent"))]
    index = np.unique(np.linspace(0, len(axis.position) - 1, min(len(axis.position), 400)).astype(np.int64))
    x = across(axis.position[index])
    parts += [Markup('<path class="line thread agent" d="{}"/>').format(path(x, vertical(row[index]))) for row in paths]
    for name, style, values in [("Median", "agent", middle), *((line.name, line.style, line.values) for line in others)]:
        parts.append(Markup('<path class="line {}" d="{}"><title>{}</title></path>').format(style, path(x, vertical(values[index])), name))
    series = [
        ("Median", "agent", middle),
        (f"Lower end of {inner:.0%}", "thread", low),
        (f"Upper end of {inner:.0%}", "thread", high),
        *((line.name, line.style, line.values) for line in others),
    ]
    legend = [(f"Median of {len(paths)} and the inner {inner:.0%}", "agent"), *((line.name, line.style) for line in others)]
    return figure(title, Markup("").join(parts), height, legend=legend, note=note, extra=readout(axis, series, unit))


def bars_chart(
    title: str, labels: Sequence[str], series: Sequence[Line], unit: str, *, height: float = 240, signed: bool = False, note: str = ""
) -> Markup:
    """Groups of bars, one group a label, one bar a series; ``signed`` colours a single series by gain and loss."""
    if not labels:
        return nothing(title)
    count, width = len(labels), (WIDTH - LEFT - RIGHT) / len(labels)
    vertical = scale([line.values for line in series], TOP, height - BOTTOM, zero=True)
    base = float(vertical(np.array(0.0)))
    every = max(1, math.ceil(count * (7.2 * max(map(len, labels)) + 12) / (WIDTH - LEFT - RIGHT)))
    ticks = tuple(((k + 0.5) / count, label) for k, label in enumerate(labels) if k % every == 0)
    axis = Axis((np.arange(count) + 0.5) / count, ticks, list(labels), even=False)
    parts = [grid(axis, vertical, unit, height)]
    bar = min(width * 0.8, 46 * len(series)) / len(series)
    for place, line in enumerate(series):
        for k, (value, y) in enumerate(zip(line.values, vertical(line.values), strict=True)):
            if math.isnan(y):
                continue
            style = ("gain" if value >= 0 else "loss") if signed else line.style
            x = float(across((k + 0.5) / count)) + (place - len(series) / 2) * bar
            parts.append(
                Markup('<rect class="bar {}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
                    style, x, min(y, base), max(bar - 1, 0.6), max(abs(y - base), 0.6)
                )
            )
    legend = [(line.name, line.style) for line in series] if len(series) > 1 else []
    pointer = readout(axis, [(line.name, line.style, line.values) for line in series], unit)
    return figure(title, Markup("").join(parts), height, legend=legend, note=note, extra=pointer)


def histogram(
    title: str,
    values: np.ndarray,
    other: np.ndarray | None = None,
    *,
    names: tuple[str, str] = ("Agent", "Buy-and-hold"),
    bins: int = 60,
    height: float = 250,
    note: str = "",
) -> Markup:
    """Distribution of returns (fractions): bars for values [N], an outline for other [M]; the outer bars hold what lies beyond."""
    values = np.asarray(values, np.float64)
    values = values[np.isfinite(values)]
    if not len(values):
        return nothing(title)
    low, high = np.quantile(values, [0.002, 0.998])
    reach = float(max(abs(low), abs(high))) or float(np.abs(values).max()) or 1e-4
    edges = np.linspace(-reach, reach, bins + 1)

    def shares(data: np.ndarray) -> np.ndarray:
        data = data[np.isfinite(data)]
        return np.histogram(np.clip(data, -reach, reach), edges)[0] / max(len(data), 1)

    ours = shares(values)
    theirs = None if other is None else shares(np.asarray(other, np.float64))
    vertical = scale([ours] if theirs is None else [ours, theirs], TOP, height - BOTTOM, zero=True)
    centres = (edges[:-1] + edges[1:]) / 2
    horizontal = number_axis(edges, "percent")
    axis = Axis(
        (np.arange(bins) + 0.5) / bins,
        horizontal.ticks,
        [f"{show(a, 'percent')} to {show(b, 'percent')}" for a, b in pairwise(edges)],
        even=False,
    )
    x, y = across(edges / (2 * reach) + 0.5), vertical(ours)
    parts = [grid(axis, vertical, "percent", height)]
    for k in range(bins):
        style = "gain" if centres[k] > 0 else "loss"
        parts.append(
            Markup('<rect class="bar {}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
                style, x[k] + 0.5, y[k], x[k + 1] - x[k] - 1, vertical.bottom - y[k]
            )
        )
    series = [(names[0], "agent", ours)]
    legend = []
    if theirs is not None:
        outline = path(x, vertical(np.append(theirs, theirs[-1])), step=True)
        parts.append(Markup('<path class="line hold" d="{}"/>').format(outline))
        series.append((names[1], "hold", theirs))
        legend = [(f"{names[0]}, gains", "gain"), (f"{names[0]}, losses", "loss"), (names[1], "hold")]
    return figure(title, Markup("").join(parts), height, legend=legend, note=note, extra=readout(axis, series, "percent"))


def nothing(title: str) -> Markup:
    """Frame of a picture that has nothing to show."""
    return Markup('<figure class="chart"><figcaption><b>{}</b></figcaption><p class="note">n/a</p></figure>').format(title)
