"""Synthetic markets with known answers, as bars.

Every kind opens a bar at the close before it and draws the bar's high and low from the exact extremes of a Brownian bridge
between open and close in log price, so that the chance that a limit order fills is known (see `fill_probability`).

- ``random_walk``: the price is a martingale whose volatility clusters (GARCH(1, 1)); before costs nothing can be earned.
- ``mean_reverting``: the log price is an AR(1) around its mean; an agent that knows the deviation earns.
- ``momentum``: the drift switches between + and - by a hidden Markov chain; an agent that knows the regime earns.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numba import njit

from numba_rl.data.bars import Bars
from numba_rl.errors import ConfigError
from numba_rl.kernel_cache import cached

Kind = Literal["random_walk", "mean_reverting", "momentum"]
START_NS = 1_704_067_200_000_000_000  # 2024-01-01 00:00 UTC
MINUTE_NS = 60_000_000_000
MINUTES_PER_YEAR = 365 * 24 * 60


@dataclass(frozen=True)
class Model:
    """What a market was drawn from. sigma: deviation of one bar's log return (its mean level for a random walk)."""

    kind: Kind
    sigma: float
    phi: float = 0.0  # mean_reverting: share of the deviation that is left after a bar
    drift: float = 0.0  # momentum: expected log return of a bar, up in one regime and down in the other
    switch: float = 0.0  # momentum: probability that the regime changes in a bar


@dataclass(frozen=True)
class Synthetic:
    """A drawn market. hidden float64 [T]: deviation of the log price at each close (mean_reverting), regime +1 or -1 that
    rules the next bar (momentum), or 0."""

    bars: Bars
    hidden: np.ndarray
    model: Model


SETTINGS = {"random_walk": ("sigma",), "mean_reverting": ("sigma", "phi"), "momentum": ("sigma", "drift", "switch")}
DEFAULTS = {
    "random_walk": Model("random_walk", sigma=0.002),
    "mean_reverting": Model("mean_reverting", sigma=0.004, phi=0.95),
    "momentum": Model("momentum", sigma=0.002, drift=0.0006, switch=0.01),
}


def generate(kind: Kind, bars: int, seed: int = 0, *, price: float = 100.0, **settings) -> Synthetic:
    """Draw `bars` one-minute bars of a kind; the same arguments give the same bars.

    settings: fields of Model to change, those that SETTINGS names for the kind. Raises ConfigError for an unknown kind or
    setting, a model that explodes, or no bars.
    """
    if kind not in DEFAULTS:
        raise ConfigError(f"there is no synthetic market '{kind}'; choose one of {', '.join(DEFAULTS)}")
    if bars < 1:
        raise ConfigError(f"a market of {bars} bars cannot be drawn; ask for at least 1")
    for name in settings:
        if name not in SETTINGS[kind]:
            raise ConfigError(f"a {kind} market has no {name}; it has {', '.join(SETTINGS[kind])}")
    model = replace(DEFAULTS[kind], **settings)
    if not (0 < model.sigma < 0.5 and 0 <= model.phi < 1 and abs(model.drift) < 0.1 and 0 <= model.switch <= 1 and 0 < price < math.inf):
        raise ConfigError(
            f"a {kind} market needs 0 < sigma < 0.5, 0 <= phi < 1, -0.1 < drift < 0.1, 0 <= switch <= 1 and price > 0; got "
            f"{', '.join(f'{name} {getattr(model, name):g}' for name in SETTINGS[kind])}, price {price:g}"
        )
    random = np.random.Generator(np.random.Philox(seed))
    noise = random.standard_normal(bars)
    if kind == "mean_reverting":
        hidden = _autoregression(noise, model.phi, model.sigma)
        log_close = hidden
    elif kind == "momentum":
        hidden = _regimes(random.random(bars), model.switch)
        before = np.concatenate([[hidden[0]], hidden[:-1]])  # the regime at the close before rules the bar
        log_close = np.cumsum(model.drift * before - 0.5 * model.sigma**2 + model.sigma * noise)
    else:
        hidden = np.zeros(bars)
        deviation = _garch(noise, model.sigma)
        log_close = np.cumsum(deviation * noise - 0.5 * deviation**2)
    log_open = np.concatenate([[log_close[0]], log_close[:-1]])
    bridge = deviation if kind == "random_walk" else np.full(bars, model.sigma)
    span = log_close - log_open
    high = 0.5 * (log_open + log_close + np.sqrt(span**2 - 2.0 * bridge**2 * np.log1p(-random.random(bars))))
    low = 0.5 * (log_open + log_close - np.sqrt(span**2 - 2.0 * bridge**2 * np.log1p(-random.random(bars))))
    volume = np.rint(500.0 * np.exp(0.5 * random.standard_normal(bars) + np.abs(span) / model.sigma * 0.3))
    open_, close = price * np.exp(log_open), price * np.exp(log_close)
    made = Bars(
        timestamp=START_NS + MINUTE_NS * np.arange(bars, dtype=np.int64),
        open=open_,
        high=np.maximum(price * np.exp(high), np.maximum(open_, close)),
        low=np.minimum(price * np.exp(low), np.minimum(open_, close)),
        close=close,
        volume=volume,
        interval_ns=MINUTE_NS,
        bars_per_year=float(MINUTES_PER_YEAR),
        source=f"synthetic:{kind}",
    )
    return Synthetic(made, hidden, model)


def fill_probability(move, offset, sigma):
    """Chance that a bar whose log price goes from 0 to `move` trades beyond -offset (a buy limit; a sell by symmetry).

    The minimum m of a Brownian bridge of deviation sigma: P(m < -offset) = exp(-2 offset (move + offset) / sigma^2), 1 where
    the bar closes below it.
    """
    distance = np.maximum(np.asarray(move) + offset, 0.0)
    return np.exp(-2.0 * offset * distance / sigma**2)


def _autoregression(noise, phi, sigma):
    start = noise[0] * sigma / math.sqrt(1.0 - phi * phi)
    return _recur(noise, phi, sigma, start)


@cached
@njit(error_model="numpy")
def _recur(noise, phi, sigma, start):
    path = np.empty(noise.size)
    path[0] = start
    for t in range(1, noise.size):
        path[t] = phi * path[t - 1] + sigma * noise[t]
    return path


@cached
@njit(error_model="numpy")
def _regimes(uniforms, switch):
    path = np.empty(uniforms.size)
    regime = 1.0 if uniforms[0] < 0.5 else -1.0
    for t in range(uniforms.size):
        if t > 0 and uniforms[t] < switch:
            regime = -regime
        path[t] = regime
    return path


@cached
@njit(error_model="numpy")
def _garch(noise, sigma):
    """Deviation of each bar: GARCH(1, 1) with news 0.08 and memory 0.90 around sigma^2."""
    deviation = np.empty(noise.size)
    variance = sigma * sigma
    for t in range(noise.size):
        deviation[t] = math.sqrt(variance)
        variance = 0.02 * sigma * sigma + 0.08 * variance * noise[t] * noise[t] + 0.90 * variance
    return deviation
