"""One account out of the backtests of windows that follow each other: the capital of each is what the one before left.

Each window was played with the initial capital; its money and units are multiplied by what the account had grown to when it
began, which adds no return of its own between windows. So lots and minimum fees are those of the initial capital. A position
is closed at each window's end, at cost. Bars between two windows, where there are any, earn nothing. A ruin ends the account.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from numba_rl.evaluate.backtest import Backtest
from numba_rl.evaluate.metrics import exit_notional
from numba_rl.evaluate.trades import Trades

_MONEY = ("position", "traded", "fee", "spread_cost", "financing")
_PLAIN = ("action", "target", "exposure", "price", "reward")


def growths(backtests: Sequence[Backtest]) -> np.ndarray:
    """What the account is worth when each window begins, over the initial capital: float64 [W]; windows after a ruin have 0."""
    own = [max(float(b.equity[-1] / b.equity[0]), 0.0) if not b.terminated else 0.0 for b in backtests]
    return np.concatenate([[1.0], np.cumprod(own)[:-1]])


def stitch(backtests: Sequence[Backtest], name: str) -> Backtest:
    """The windows in order as one Backtest; at least one window."""
    factors = growths(backtests)
    played = [b for b, factor in zip(backtests, factors, strict=True) if factor > 0]
    factors = factors[: len(played)]
    first, last = played[0], played[-1]
    columns = {field: np.concatenate([getattr(b, field) for b in played]) for field in _PLAIN}
    columns |= {field: np.concatenate([getattr(b, field) * f for b, f in zip(played, factors, strict=True)]) for field in _MONEY}
    equity = np.concatenate([first.equity[:1], *(b.equity[1:] * f for b, f in zip(played, factors, strict=True))])
    costs = columns["fee"] + columns["spread_cost"] + columns["financing"]
    return replace(
        first,
        timestamp=np.concatenate([first.timestamp[:1], *(b.timestamp[1:] for b in played)]),
        close=np.concatenate([first.close[:1], *(b.close[1:] for b in played)]),
        equity=equity,
        gross_equity=equity + np.concatenate([[0.0], np.cumsum(costs)]),
        terminated=last.terminated,
        closed_at_end=last.closed_at_end,
        name=name,
        trades=_trades(played, factors),
        exit_notional=np.concatenate([exit_notional(b) * f for b, f in zip(played, factors, strict=True)]),
        **columns,
    )


def _trades(backtests: Sequence[Backtest], factors: np.ndarray) -> Trades:
    starts = np.cumsum([0, *(len(b) for b in backtests[:-1])])
    columns: dict[str, list[np.ndarray]] = {field: [] for field in Trades._fields}
    for backtest, factor, start in zip(backtests, factors, starts, strict=True):
        for field, values in backtest.trades._asdict().items():
            if field in ("entry_index", "exit_index"):
                values = values + start
            elif field in ("units", "gross", "costs", "net"):
                values = values * factor
            columns[field].append(values)
    return Trades(**{field: np.concatenate(values) for field, values in columns.items()})
