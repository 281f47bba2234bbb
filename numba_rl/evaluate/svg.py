"""Axes, scales and paths of the report's pictures, as SVG text. Colours come from the page's style sheet.

A picture is ``WIDTH`` units wide and shrinks with the page. Long series are thinned to the lowest and highest value of
each column, so that peaks stay. Points are dropped at values that are not finite: the line breaks there.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from markupsafe import Markup

from numba_rl.evaluate.formatting import show

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 1080, 78, 14, 12, 28
COLUMNS = 750  # at most two points each
SAMPLES = 480  # points that the pointer can read off
LEAST_TICKS = 3  # on the y axis
LABEL_GAP = 104  # least distance of two labels on the x axis

_HOUR, _DAY = 3_600_000_000_000, 86_400_000_000_000
_STEPS = [60_000_000_000 * m for m in (1, 5, 15, 30)] + [_HOUR * h for h in (1, 3, 6, 12)] + [_DAY, 2 * _DAY, 7 * _DAY]
_MONTH_STEPS = (1, 3, 6, 12, 24, 60, 120, 240)


@dataclass(frozen=True)
class Axis:
    """Horizontal axis: position of each point in 0..1, ticks as (position, label), and what the pointer shows for a point."""

    position: np.ndarray  # float64 [N]
    ticks: tuple[tuple[float, str], ...]
    labels: tuple | list  # [N]: milliseconds since 1970 (times) or text
    even: bool  # evenly spaced, so that it may be thinned by columns


@dataclass(frozen=True)
class Scale:
    """Vertical axis from value to picture height."""

    low: float
    high: float
    ticks: tuple[float, ...]
    top: float
    bottom: float
    log: bool = False

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Heights float64 of values; NaN where they have none."""
        values = np.asarray(values, np.float64)
        low, high = self.low, self.high
        if self.log:
            with np.errstate(invalid="ignore", divide="ignore"):
                values, low, high = np.log(values), math.log(low), math.log(high)
        heights = self.bottom - (values - low) / (high - low) * (self.bottom - self.top)
        return np.where(np.isfinite(heights), heights, np.nan)


def across(position: np.ndarray | float) -> np.ndarray | float:
    """Picture x of axis positions 0..1."""
    return LEFT + np.asarray(position) * (WIDTH - LEFT - RIGHT)


def nice_step(span: float, count: int) -> float:
    """1, 2, 2.5 or 5 times a power of ten, so that about ``count`` steps fill the span."""
    rough = span / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))


def scale(values: Sequence[np.ndarray], top: float, bottom: float, *, zero: bool = False, log: bool = False) -> Scale:
    """Scale that holds all finite values, with about one tick in 38 units of height."""
    finite = [part[np.isfinite(part)] for part in (np.asarray(v, np.float64).ravel() for v in values)]
    merged = np.concatenate(finite) if finite else np.zeros(0)
    low, high = (float(merged.min()), float(merged.max())) if merged.size else (0.0, 1.0)
    if log and low > 0:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        factors = (1,) if len(decades) > 4 else (1, 2, 5)
        ticks = tuple(f * 10.0**d for d in decades for f in factors if low <= f * 10.0**d <= high)
        return Scale(low * 0.97, high * 1.03, ticks, top, bottom, log=True)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
        pad = abs(low) * 0.01 or 1.0
        low, high = low - pad, high + pad
    count, ticks = max(2, round((bottom - top) / 38)), ()
    while len(ticks) < LEAST_TICKS:
        step = nice_step(high - low, count)
        ticks = tuple(step * k for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1))
        count += 1
    margin = 0.03 * (high - low)
    return Scale(low if zero and low == 0 else low - margin, high if zero and high == 0 else high + margin, ticks, top, bottom)


def tick_labels(ticks: Sequence[float], unit: str) -> list[str]:
    """Labels with as many decimals as tell the ticks apart."""
    factor = 100.0 if unit == "percent" else 1.0
    values = [tick * factor for tick in ticks]
    largest = max(map(abs, values), default=0.0)
    divisor, mark = next(((d, m) for d, m in ((1e12, "T"), (1e9, "B"), (1e6, "M")) if largest >= 10 * d), (1.0, ""))
    gap = min((abs(b - a) for a, b in pairwise(values)), default=largest or 1.0) / divisor
    decimals = next((d for d in range(12) if round(gap * 10**d) and abs(gap * 10**d / round(gap * 10**d) - 1) < 1e-6), 12)
    return [
        f"{value / divisor + 0.0:,.{decimals}f}{mark}{'%' if unit == 'percent' else 'x' if unit == 'times' else ''}" for value in values
    ]


def time_axis(timestamp: np.ndarray) -> Axis:
    """Axis of bars, one beside the other (closed hours take no room), labelled at round times; timestamp int64 [N], ns."""
    timestamp = np.asarray(timestamp, np.int64)
    position = np.linspace(0.0, 1.0, len(timestamp)) if len(timestamp) > 1 else np.full(len(timestamp), 0.5)
    ticks: list[tuple[float, str]] = []
    if len(timestamp):
        rounds = _round_times(int(timestamp[0]), int(timestamp[-1]), (WIDTH - LEFT - RIGHT) // LABEL_GAP)
        # of several round times in a gap, the last one is that of the bar after it
        last = {int(np.searchsorted(timestamp, stamp)): label for stamp, label in rounds}
        for bar, label in last.items():
            at = float(position[min(bar, len(timestamp) - 1)])
            if not ticks or (at - ticks[-1][0]) * (WIDTH - LEFT - RIGHT) >= LABEL_GAP:
                ticks.append((at, label))
    return Axis(position, tuple(ticks), timestamp // 1_000_000, even=True)


def _round_times(first: int, last: int, count: int) -> list[tuple[int, str]]:
    span = max(last - first, 1)
    step = next((s for s in _STEPS if span / s <= count), None)
    if step is not None:
        origin = 4 * _DAY if step == 7 * _DAY else 0  # weeks begin on Monday, 5 January 1970
        stamps = range(origin + -(-(first - origin) // step) * step, last + 1, step)
        form = "%d %b" if step >= _DAY else "%d %b %H:%M"
        return [(stamp, np.datetime64(stamp, "ns").astype("datetime64[us]").item().strftime(form)) for stamp in stamps]
    months = next((m for m in _MONTH_STEPS if span / (m * 30.44 * _DAY) <= count), _MONTH_STEPS[-1])
    begin, end = (int(np.datetime64(stamp, "ns").astype("datetime64[M]").astype(np.int64)) for stamp in (first, last))
    out = []
    for month in range(-(-begin // months) * months, end + 1, months):
        stamp = np.datetime64(month, "M")
        out.append((int(stamp.astype("datetime64[ns]").astype(np.int64)), stamp.item().strftime("%Y" if months >= 12 else "%b %Y")))
    return [(stamp, label) for stamp, label in out if stamp >= first] or [(first, out[0][1])]


def number_axis(values: np.ndarray, unit: str = "ratio", ticks: Sequence[float] | None = None) -> Axis:
    """Axis of numbers float64 [N] in rising order; ``ticks``: where to label, else at round numbers."""
    values = np.asarray(values, np.float64)
    low, high = float(values.min()), float(values.max())
    span = high - low or 1.0
    if ticks is None:
        step = nice_step(span, 8)
        ticks = [step * k for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    position = (values - low) / span if high > low else np.full(len(values), 0.5)
    placed = tuple(((tick - low) / span if high > low else 0.5, label) for tick, label in zip(ticks, tick_labels(ticks, unit), strict=True))
    return Axis(position, placed, [show(value, unit) for value in values.tolist()], even=False)


def thin(values: np.ndarray, columns: int = COLUMNS) -> np.ndarray:
    """Indices int64, rising, of the lowest and highest value in each of ``columns`` runs of values [N]; all where N is small."""
    n = len(values)
    if n <= 2 * columns:
        return np.arange(n)
    edges = np.linspace(0, n, columns + 1).astype(np.int64)
    kept = {0, n - 1}
    for low, high in pairwise(edges):
        part = values[low:high]
        if np.isnan(part).all():
            kept.add(int(low))
        else:
            kept.update((int(low + np.nanargmin(part)), int(low + np.nanargmax(part))))
    return np.array(sorted(kept))


def path(x: np.ndarray, y: np.ndarray, *, step: bool = False) -> str:
    """SVG path through the points; it breaks where y is NaN. ``step``: a value holds until the next point."""
    out: list[str] = []
    pen = False
    for px, py in zip(np.round(x, 1).tolist(), np.round(y, 1).tolist(), strict=True):
        if math.isnan(py):
            pen = False
            continue
        out.append(f"M{px:g} {py:g}" if not pen else f"H{px:g}V{py:g}" if step else f"L{px:g} {py:g}")
        pen = True
    return "".join(out)


def grid(axis: Axis, vertical: Scale, unit: str, height: float) -> Markup:
    """Lines and labels of both axes."""
    right = WIDTH - RIGHT
    parts = []
    for tick, label in zip(vertical.ticks, tick_labels(vertical.ticks, unit), strict=True):
        y = float(vertical(np.array(tick)))
        kind = "zero" if tick == 0 else "grid"
        parts.append(
            Markup(
                '<line class="{}" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/><text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>'
            ).format(kind, LEFT, right, y, y, LEFT - 8, y + 4, label)
        )
    for at, label in axis.ticks:
        x = float(across(at))
        middle = min(x, WIDTH - 3.5 * len(label))  # a label at the right end keeps within the picture
        parts.append(
            Markup(
                '<line class="notch" x1="{:.1f}" x2="{:.1f}" y1="{}" y2="{}"/><text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>'
            ).format(x, x, vertical.bottom, vertical.bottom + 4, middle, height - 8, label)
        )
    return Markup("").join(parts)


def readout(axis: Axis, series: Sequence[tuple[str, str, np.ndarray]], unit: str) -> Markup:
    """What the pointer reads off: a script element holding times or labels and the values of (name, style, values [N])."""
    index = np.unique(np.linspace(0, max(len(axis.position) - 1, 0), min(SAMPLES, len(axis.position))).astype(np.int64))
    x = np.round(across(axis.position[index]), 1).tolist()
    values = [
        [name, style, [None if not math.isfinite(v) else float(f"{v:.6g}") for v in np.asarray(data, np.float64)[index]]]
        for name, style, data in series
    ]
    plot = {
        "x": x,
        "t": [item.item() if hasattr(item, "item") else item for item in (axis.labels[i] for i in index)],
        "s": values,
        "u": unit,
    }
    text = json.dumps(plot, separators=(",", ":")).replace("<", "\\u003c")
    return Markup('<script type="application/json">{}</script>').format(Markup(text))
