"""The settings of the game as one flat tuple of scalars, which kernels take as an argument."""

import math
from typing import NamedTuple

from numba_rl.config import Config
from numba_rl.errors import ConfigError

SHAPING = {"none": 0, "dsr": 1, "ema": 2}


class Rules(NamedTuple):
    """Settings of the game. Floats are float64 and flags int64, so that every caller compiles one version.

    Rates are shares, not basis points; `financing` is per bar; a flag is 0 or 1.
    """

    next_open: int  # market and IOC orders fill at the next open (1) or at the decision's close (0)
    fill_simulation: int
    taker: float
    maker: float
    spread: float
    min_fee: float
    financing: float
    multiplier: float
    tick: float
    lot: float
    equity_sizing: int
    leverage: float
    reserve: float
    max_position: float
    initial_capital: float
    equity_floor: float
    drift_tolerance: float
    sign_log: int  # base reward: sign_log_return (1) or net_return (0)
    scale: float
    barrier: float
    barrier_multiply: int
    barrier_profit: float
    barrier_loss: float
    barrier_bars: int
    diversity: float
    risk: float
    shaping: int  # SHAPING
    shaping_rate: float
    shaping_frozen: int  # evaluation reads the running statistics and leaves them as they are
    episode_length: int


def rules_of(config: Config, bars_per_year: float = math.nan) -> Rules:
    """The game that `config` describes; `bars_per_year` turns the yearly financing rate into one per bar."""
    market, reward = config.market, config.reward
    financing = 0.0
    if market.financing_rate > 0:
        if not bars_per_year > 0:
            raise ConfigError("market.financing_rate needs the number of bars per year; set data.bars_per_year")
        financing = market.financing_rate / bars_per_year
    return Rules(
        next_open=int(market.fill_at == "next_open"),
        fill_simulation=int(market.fill_simulation),
        taker=float(market.taker_bps) * 1e-4,
        maker=float(market.maker_bps) * 1e-4,
        spread=float(market.spread_bps) * 1e-4,
        min_fee=float(market.min_fee),
        financing=float(financing),
        multiplier=float(market.multiplier),
        tick=float(market.tick),
        lot=float(market.lot),
        equity_sizing=int(market.sizing == "equity"),
        leverage=float(market.leverage),
        reserve=float(market.reserve),
        max_position=float(market.max_position),
        initial_capital=float(market.initial_capital),
        equity_floor=float(market.equity_floor),
        drift_tolerance=float(market.drift_tolerance),
        sign_log=int(reward.mode == "sign_log_return"),
        scale=float(reward.scale),
        barrier=float(reward.barrier),
        barrier_multiply=int(reward.barrier_mode == "multiply"),
        barrier_profit=float(reward.barrier_profit),
        barrier_loss=float(reward.barrier_loss),
        barrier_bars=int(reward.barrier_bars),
        diversity=float(reward.diversity),
        risk=float(reward.risk),
        shaping=SHAPING[reward.shaping],
        shaping_rate=float(reward.shaping_rate),
        shaping_frozen=0,
        episode_length=int(config.episodes.length),
    )
