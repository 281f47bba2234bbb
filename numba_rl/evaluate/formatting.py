"""Numbers, times and spans as people read them. Everything without a finite value is "n/a"."""

import math

import numpy as np

NOT_AVAILABLE = "n/a"
_NS_UNITS = (("day", 86_400_000_000_000), ("h", 3_600_000_000_000), ("min", 60_000_000_000), ("s", 1_000_000_000))


def show(value: float | None, unit: str) -> str:
    """A number in one of the units of ``metrics.METRICS``: percent (of a fraction), ratio, fine (ratio), money, count, bars, times; and price."""
    if value is None or not math.isfinite(value):
        return NOT_AVAILABLE
    if unit == "percent":
        return f"{_plain(100 * value, 2)}%"
    if unit == "times":
        return f"{_plain(value, 2)}x"
    if unit == "price":
        return f"{value:,.{max(0, min(8, 6 - len(str(int(abs(value))))))}f}"
    if unit in ("count", "bars"):
        return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:,.1f}"
    if unit == "fine":
        return _plain(value, 4)
    return _plain(value, 0 if unit == "money" and abs(value) >= 1000 else 2)


def _plain(value: float, decimals: int) -> str:
    size = abs(value)
    if size >= (1e12 if decimals == 0 else 1e9):
        return f"{value:.3e}"
    if size >= 1000:
        return f"{value:,.{min(decimals, 0 if size >= 10_000 else 1)}f}"
    if 0 < size < 0.5 * 10**-decimals:
        return f"{value:.2g}"
    return f"{value + 0.0:.{decimals}f}"


def chance(probability: float | None) -> str:
    """A probability in percent, without feigned certainty."""
    if probability is None or not math.isfinite(probability):
        return NOT_AVAILABLE
    return "under 0.1%" if probability < 0.001 else "over 99.9%" if probability > 0.999 else f"{probability:.1%}"


def time_text(ns: int) -> str:
    """UTC time of nanoseconds since 1970, without the clock at midnight."""
    text = str(np.datetime64(int(ns), "ns").astype("datetime64[s]")).replace("T", " ")
    return text.removesuffix(" 00:00:00") if text.endswith(" 00:00:00") else text.removesuffix(":00")


def span_text(ns: float) -> str:
    """Length of time, in the unit that suits it."""
    if not math.isfinite(ns):
        return NOT_AVAILABLE
    days = ns / _NS_UNITS[0][1]
    if days >= 730:
        return f"{days / 365.25:.1f} years"
    for name, size in _NS_UNITS:
        if ns >= size:
            count = f"{ns / size:.1f}".removesuffix(".0")
            return f"{count} {name}{'s' if name == 'day' and count != '1' else ''}"
    return f"{ns / 1e6:g} ms"


def setting_text(value: object) -> str:
    """A setting as it is written in the settings file, lists with spaces."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}" if abs(value) < 1e6 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, (list, tuple)):
        return ", ".join(setting_text(item) for item in value)
    return str(value)
