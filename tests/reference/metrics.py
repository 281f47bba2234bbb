"""Metrics of one equity path by their definitions, in plain Python floats: one loop a figure, None for n/a."""

import itertools
import math


def returns(equity):
    """Returns up to and including the bar on which the equity reached zero."""
    out = []
    for before, after in itertools.pairwise(equity):
        if before <= 0:
            break
        out.append(after / before - 1.0)
    return out


def sharpe(series, bars_per_year=1.0):
    if len(series) < 2:
        return None
    mean = math.fsum(series) / len(series)
    std = math.sqrt(math.fsum((r - mean) ** 2 for r in series) / (len(series) - 1))
    if std <= max(1e-9 * max(map(abs, series)), 8 * 2.0**-52):
        return None
    return mean / std * math.sqrt(bars_per_year)


def sortino(series, bars_per_year=1.0):
    if not series:
        return None
    mean = math.fsum(series) / len(series)
    downside = math.sqrt(math.fsum(min(r, 0.0) ** 2 for r in series) / len(series))
    if downside <= max(1e-9 * max(map(abs, series)), 8 * 2.0**-52):
        return None
    return mean / downside * math.sqrt(bars_per_year)


def max_drawdown(equity):
    peak, worst = equity[0], 0.0
    for value in equity:
        peak = max(peak, value)
        worst = max(worst, 1.0 - value / peak)
    return worst


def drawdown_bars(equity):
    peak, peak_at, longest = equity[0], 0, 0
    for i, value in enumerate(equity):
        if value >= peak:
            peak, peak_at = value, i
        longest = max(longest, i - peak_at)
    return longest


def annual_return(equity, bars_per_year):
    years = (len(equity) - 1) / bars_per_year
    if years < 1 / 12:
        return None
    return (equity[-1] / equity[0]) ** (1 / years) - 1 if equity[-1] > 0 else -1.0


def turnover(equity, notional):
    return math.fsum(abs(traded) / before for traded, before in zip(notional, equity[:-1]) if before > 0)
