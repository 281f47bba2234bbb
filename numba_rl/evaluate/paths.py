"""Equity paths and what every figure is made of: returns, moments, drawdowns. Arrays hold W windows side by side.

The return of a bar is equity[t+1] / equity[t] - 1, a fraction. Steps after the equity has reached zero are not counted,
since they have no return. "n/a" is NaN here.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

RELATIVE_NOISE = 1e-9  # a deviation below this share of the largest |return| is rounding, not risk
ABSOLUTE_NOISE = 8 * np.finfo(np.float64).eps  # rounding of equity[t+1] / equity[t] - 1


class Moments(NamedTuple):
    """What the ratios are made of, each float64 [...] (one value a series)."""

    count: np.ndarray
    mean: np.ndarray
    std: np.ndarray  # sample standard deviation (n - 1); NaN for fewer than two returns
    downside: np.ndarray  # root of the mean over all bars of min(r, 0)^2
    largest: np.ndarray  # max |r|


class TradeTotals(NamedTuple):
    """Closed round trips added up, each float64 [W]."""

    count: np.ndarray
    wins: np.ndarray  # trades with net > 0
    profit: np.ndarray  # money, sum of positive nets
    loss: np.ndarray  # money, sum of negative nets, as a positive number
    bars: np.ndarray  # bars held, summed


def moments(returns: np.ndarray, counted: np.ndarray | None = None) -> Moments:
    """Moments over the last axis of returns [..., n]; where ``counted`` (bool, same shape) is False a bar is left out."""
    returns = np.asarray(returns, np.float64)
    if counted is None:
        counted = np.ones(returns.shape, bool)
    returns = np.where(counted, returns, 0.0)
    count = counted.sum(-1).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        mean = returns.sum(-1) / count
        apart = np.where(counted, returns - mean[..., None], 0.0)
        std = np.sqrt((apart * apart).sum(-1) / np.where(count > 1, count - 1, np.nan))
        losses = np.minimum(returns, 0.0)
        downside = np.sqrt((losses * losses).sum(-1) / count)
    largest = np.abs(returns).max(-1, initial=0.0)
    return Moments(count, mean, std, downside, largest)


def ratio(mean: np.ndarray, deviation: np.ndarray, largest: np.ndarray, bars_per_year: float) -> np.ndarray:
    """mean / deviation x sqrt(bars_per_year); NaN where the deviation is mere rounding of returns up to ``largest``."""
    noise = np.maximum(RELATIVE_NOISE * largest, ABSOLUTE_NOISE)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return np.where(deviation > noise, mean / deviation * math.sqrt(bars_per_year), np.nan)


def sharpe(returns: np.ndarray, bars_per_year: float = 1.0) -> np.ndarray:
    """Sharpe ratio, risk-free rate 0: mean / std (n - 1) x sqrt(bars_per_year) over the last axis; 1.0 gives it per bar.

    NaN (n/a) for fewer than two returns and for a constant series, whose computed deviation is rounding: it counts as
    constant when the deviation is at most 1e-9 of the largest |return| or 8 float64 eps. Sharpe (1994).
    """
    m = moments(returns)
    return ratio(m.mean, m.std, m.largest, bars_per_year)


def sortino(returns: np.ndarray, bars_per_year: float = 1.0) -> np.ndarray:
    """Sortino ratio, target 0: mean / downside deviation x sqrt(bars_per_year) over the last axis.

    The downside deviation is taken over all bars, not over the losing ones (Sortino and van der Meer 1991). NaN (n/a)
    for a series without a losing bar.
    """
    m = moments(returns)
    return ratio(m.mean, m.downside, m.largest, bars_per_year)


def drawdowns(equity: np.ndarray) -> np.ndarray:
    """Share lost from the highest equity so far, float64 like equity [..., n+1]; the first point is part of the peak."""
    equity = np.asarray(equity, np.float64)
    peak = np.maximum.accumulate(equity, -1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(peak > 0, 1.0 - equity / peak, np.nan)


def bar_returns(equity: np.ndarray) -> np.ndarray:
    """Returns float64 [n] of one equity path [n+1]; the path ends at the first bar without equity, so n may be smaller."""
    equity = np.asarray(equity, np.float64)
    ruined = np.flatnonzero(equity <= 0)
    if ruined.size:
        equity = equity[: ruined[0] + 1]
    return equity[1:] / equity[:-1] - 1.0


@dataclass(frozen=True)
class Paths:
    """W equity paths side by side. Windows that ended early carry their number of steps in ``steps``.

    Only ``equity`` and ``bars_per_year`` are needed; figures of what is missing are n/a.
    """

    equity: np.ndarray  # float64 [W, n+1], net; [:, 0] is the initial capital
    bars_per_year: float
    steps: np.ndarray | None = None  # int64 [W], steps played; None: n
    gross_equity: np.ndarray | None = None  # float64 [W, n+1]
    exposure: np.ndarray | None = None  # float64 [W, n], held after the fill
    notional: np.ndarray | None = None  # float64 [W, n], money traded, without sign
    fee: np.ndarray | None = None  # float64 [W, n], money
    spread_cost: np.ndarray | None = None
    financing: np.ndarray | None = None
    trades: TradeTotals | None = None

    @cached_property
    def played(self) -> np.ndarray:
        """Number of steps of each window, int64 [W]."""
        windows, points = self.equity.shape
        return np.full(windows, points - 1) if self.steps is None else np.asarray(self.steps, np.int64)

    @cached_property
    def within(self) -> np.ndarray:
        """Steps that were played, bool [W, n]."""
        return np.arange(self.equity.shape[1] - 1) < self.played[:, None]

    @cached_property
    def counted(self) -> np.ndarray:
        """Steps that have a return: played, and begun with equity above zero; bool [W, n]."""
        return self.within & np.logical_and.accumulate(~(self.equity[:, :-1] <= 0), axis=1)

    @cached_property
    def returns(self) -> np.ndarray:
        """Net return of each counted step, 0 elsewhere; float64 [W, n]."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.counted, self.equity[:, 1:] / self.equity[:, :-1] - 1.0, 0.0)

    @cached_property
    def moments(self) -> Moments:
        """Moments of the counted returns."""
        return moments(self.returns, self.counted)

    @cached_property
    def clipped(self) -> np.ndarray:
        """Equity that stays at its last played value, float64 [W, n+1]."""
        return (
            self.equity
            if self.steps is None
            else np.where(np.arange(self.equity.shape[1]) <= self.played[:, None], self.equity, self.last(self.equity)[:, None])
        )

    @cached_property
    def max_drawdown(self) -> np.ndarray:
        """Largest share lost from a peak, float64 [W]."""
        return drawdowns(self.clipped).max(-1)

    def last(self, values: np.ndarray) -> np.ndarray:
        """Value [W] of [W, n+1] after the last played step."""
        return np.take_along_axis(values, self.played[:, None], 1)[:, 0]

    def total(self, values: np.ndarray | None) -> np.ndarray:
        """Sum [W] over the played steps of [W, n]; NaN where the input is missing."""
        return self.missing() if values is None else np.where(self.within, values, 0.0).sum(-1)

    def mean(self, values: np.ndarray | None) -> np.ndarray:
        """Mean [W] over the played steps of [W, n]; NaN where the input is missing."""
        return self.total(values) / np.where(self.played > 0, self.played, np.nan)

    def trade(self, name: str) -> np.ndarray:
        """One of the trade totals [W]; NaN where they are missing."""
        return self.missing() if self.trades is None else np.asarray(getattr(self.trades, name), np.float64)

    def missing(self) -> np.ndarray:
        """n/a for each window, float64 [W]."""
        return np.full(len(self.equity), np.nan)
