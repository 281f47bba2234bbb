"""The reward of a step: a base, its shaping, and the other terms added after.

reward = shaped base + barrier x label + diversity x (entropy - 1) - risk x drawdown. Curiosity is added by the trainer, once
for a whole rollout, since it changes no state. All of it is float32.

A user's own base is a Python function of nine scalars, compiled into the kernel and the CPU path alike:

    def reward(equity_before, equity_after, price_before, price_after, exposure_before, exposure_after, cost, drawdown, step):
        return ...

equity_*: money at the closes of t and t + 1; price_*: those closes; exposure_*: held before and after the fill, in
-1..1; cost: fees, spread and financing of the step, money; drawdown: share of the equity peak lost; step: steps played in
the episode, counted from 0. All are float32 but `step`, an integer; the result is cast to float32.
"""

from math import log1p

from numba import njit
from numpy import float32, int32

from numba_rl.rules.barrier import touch
from numba_rl.rules.shaping import Shaping, differential_sharpe, scaled_by_deviation

RUIN_RATIO = 1e-3  # the floor of equity after / equity before in the log


@njit(error_model="numpy")
def relative_change(before, after):
    """(after - before) / before, float64; the subtraction comes first, so that small changes keep their digits."""
    return (after - before) / before


@njit(error_model="numpy")
def default_base(outcome, close, close_next, step, rules):
    """The base reward of the settings: net_return or sign_log_return, float32."""
    if rules.sign_log == 1:
        move = float32(0.0)
        if outcome.position_before > 0.0:
            move += log1p(float32(relative_change(close, outcome.price)))
        elif outcome.position_before < 0.0:
            move -= log1p(float32(relative_change(close, outcome.price)))
        if outcome.position_after > 0.0:
            move += log1p(float32(relative_change(outcome.price, close_next)))
        elif outcome.position_after < 0.0:
            move -= log1p(float32(relative_change(outcome.price, close_next)))
        return float32(rules.scale) * move
    change = relative_change(outcome.equity_before, outcome.equity_after)
    return float32(rules.scale) * log1p(float32(max(change, RUIN_RATIO - 1.0)))


def user_base(function):
    """The base that calls a user's compiled reward function, with the casts that keep its arithmetic float32."""

    @njit(error_model="numpy")
    def base(outcome, close, close_next, step, rules):
        cost = outcome.fee + outcome.spread_cost + outcome.financing + outcome.exit_fee + outcome.exit_spread_cost
        return float32(
            function(
                float32(outcome.equity_before),
                float32(outcome.equity_after),
                float32(close),
                float32(close_next),
                float32(outcome.exposure_before),
                float32(outcome.exposure_after),
                float32(cost),
                float32(outcome.drawdown),
                int32(step),
            )
        )

    return base


@njit(error_model="numpy")
def combine(base, barrier, diversity, shaping, outcome, close_next, rules):
    """(reward, barrier, shaping) from a base reward and what the step did; diversity: that term, only read where it has a weight."""
    barrier, label = touch(barrier, outcome.position_after, outcome.price, close_next, rules)
    total = base
    shaping = Shaping(shaping.first, shaping.second)
    if rules.shaping == 1:
        shaping, total = differential_sharpe(shaping, relative_change(outcome.equity_before, outcome.equity_after), rules)
    elif rules.shaping == 2:
        shaping, total = scaled_by_deviation(shaping, float(base), rules)
    if rules.barrier > 0.0:
        if rules.barrier_multiply == 1:
            total = total * (float32(1.0) + float32(rules.barrier) * float32(label))
        else:
            total = total + float32(rules.barrier) * float32(label)
    if rules.diversity > 0.0:
        total = total + float32(rules.diversity) * diversity
    if rules.risk > 0.0:
        total = total - float32(rules.risk) * float32(outcome.drawdown)
    return float32(total), barrier, shaping
