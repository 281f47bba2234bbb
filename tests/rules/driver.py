"""Plays whole action sequences through the product's rules on the CPU, and keeps everything that a step did.

The loop is compiled once for all tests of the rules.
"""

import numpy as np
from numba import njit

from numba_rl.config import Config, EpisodeConfig, MarketConfig, RewardConfig
from numba_rl.kernel_cache import cached
from numba_rl.rules.fills import Outcome
from numba_rl.rules.game import fresh_slot, play
from numba_rl.rules.parameters import rules_of
from numba_rl.rules.portfolio import Portfolio, equity_at, portfolio_features
from numba_rl.rules.shaping import no_shaping

ACCOUNT = tuple(f"account_{name}" for name in Portfolio._fields)
EXTRA = ("reward", "equity", "feature_equity", "feature_share", "barrier_side", "barrier_bars", "shaping_first", "shaping_second")
COLUMNS = (*Outcome._fields, *ACCOUNT, *EXTRA)


@cached
@njit(error_model="numpy")
def _play(actions, prices, rules, record):
    slot = fresh_slot(prices[0, 3], no_shaping(), rules)
    for t in range(len(actions)):
        slot, o, reward = play(
            slot, actions[t], prices[t, 3], prices[t + 1, 0], prices[t + 1, 1], prices[t + 1, 2], prices[t + 1, 3], t, rules
        )
        p = slot.portfolio
        share = portfolio_features(p, rules)
        values = (
            o.equity_before, o.equity_after, o.price, o.units, o.fee, o.spread_cost, o.financing, o.exit_units, o.exit_price,
            o.exit_fee, o.exit_spread_cost, o.exposure_before, o.exposure_after, o.position_before, o.position_after, o.drawdown,
            np.float64(o.terminated), o.filled_at, p.cash, p.position, p.entry, p.initial, p.spread, p.last, p.reserve, p.costs,
            p.exposure, p.peak, np.float64(reward), equity_at(p, prices[t + 1, 3], rules), share[0], share[1], slot.barrier.side, slot.barrier.bars,
            slot.shaping.first, slot.shaping.second,
        )  # fmt: skip
        for index, value in enumerate(values):
            record[t, index] = value
        if o.terminated == 1:
            return t + 1
    return len(actions)


class Played:
    """Columns of COLUMNS as attributes, float64 [steps]; the steps stop at a termination."""

    def __init__(self, record):
        self.steps = len(record)
        for index, name in enumerate(COLUMNS):
            setattr(self, name, record[:, index])


def play_rules(actions, prices, rules) -> Played:
    """actions [n] 0..44, prices float64 [n + 1, 4]; the first decision is made at the close of bar 0."""
    record = np.zeros((len(actions), len(COLUMNS)))
    steps = _play(np.asarray(actions, np.int64), np.ascontiguousarray(prices, np.float64), rules, record)
    return Played(record[:steps])


def rules(reward=None, bars_per_year=252.0, episodes=None, **market):
    """Rules from market settings, and reward settings as a dictionary."""
    return rules_of(
        Config(market=MarketConfig(**market), reward=RewardConfig(**(reward or {})), episodes=EpisodeConfig(**(episodes or {}))),
        bars_per_year,
    )


def costless(**market):
    """Market settings without any cost, every order filling whole at the reference price, all of the equity invested."""
    return {"taker_bps": 0.0, "maker_bps": 0.0, "spread_bps": 0.0, "reserve": 0.0, **market}


def bars(closes, opens=None):
    """Prices [n, 4] whose bars open at the close before (or at `opens`) and reach no further than open and close."""
    close = np.asarray(closes, np.float64)
    open_ = np.concatenate([close[:1], close[:-1]]) if opens is None else np.asarray(opens, np.float64)
    return np.stack([open_, np.maximum(open_, close), np.minimum(open_, close), close], 1)


def random_bars(rng, n, volatility=0.01, gap=0.3, level=100.0):
    """A random walk of log prices with gaps and wicks."""
    moves = rng.normal(0, volatility, n)
    gaps = rng.normal(0, gap * volatility, n)
    close = level * np.exp(np.cumsum(moves + gaps))
    open_ = close * np.exp(-moves)
    wicks = np.abs(rng.normal(0, volatility / 2, (2, n)))
    return np.stack([open_, np.maximum(open_, close) * np.exp(wicks[0]), np.minimum(open_, close) * np.exp(-wicks[1]), close], 1)


def arithmetic_bars(rng, n, step=1.0, level=3.0):
    """A random walk of prices that crosses zero."""
    close = level + np.cumsum(rng.normal(0, step, n))
    open_ = np.concatenate([[level], close[:-1]]) + rng.normal(0, 0.3 * step, n)
    wicks = np.abs(rng.normal(0, step / 2, (2, n)))
    return np.stack([open_, np.maximum(open_, close) + wicks[0], np.minimum(open_, close) - wicks[1], close], 1)
