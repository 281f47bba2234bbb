"""Shaping of the base reward by running statistics of its own episode slot.

`dsr`: the differential Sharpe ratio (Moody and Saffell 2001, "Learning to trade via direct reinforcement"), on the step's
net return R: with A, B the exponential averages of R and R^2, D = (B dA - A dB / 2) / (B - A^2)^1.5, dA = R - A,
dB = R^2 - B. The first return that is not 0 seeds A and B and pays 0; a vanishing variance pays 0; D is clipped to +-10.
`ema`: the base divided by its running standard deviation; the mean is tracked and not subtracted.
"""

from math import sqrt
from typing import NamedTuple

from numba import njit
from numpy import float32

CLIP = 10.0


class Shaping(NamedTuple):
    """Running statistics of one slot, float64: A and B, or mean and variance. B = 0 says that nothing was seen."""

    first: float
    second: float


SHAPING_FIELDS = len(Shaping._fields)


@njit(error_model="numpy")
def no_shaping():
    """Statistics that have seen nothing."""
    return Shaping(0.0, 0.0)


@njit(error_model="numpy")
def clipped(value):
    """`value` within +-10, as float32."""
    return float32(max(-CLIP, min(CLIP, value)))


@njit(error_model="numpy")
def differential_sharpe(shaping, net_return, rules):
    """(shaping, D) for one net return."""
    squared = net_return * net_return
    if shaping.second == 0.0:
        if rules.shaping_frozen == 1 or squared == 0.0:
            return Shaping(shaping.first, shaping.second), float32(0.0)
        return Shaping(rules.shaping_rate * net_return, squared), float32(0.0)
    variance = shaping.second - shaping.first * shaping.first
    step_first = net_return - shaping.first
    step_second = squared - shaping.second
    value = 0.0
    if variance > 1e-12 * shaping.second:
        value = (shaping.second * step_first - 0.5 * shaping.first * step_second) / (variance * sqrt(variance))
    if rules.shaping_frozen == 1:
        return Shaping(shaping.first, shaping.second), clipped(value)
    rate = rules.shaping_rate
    return Shaping(shaping.first + rate * step_first, shaping.second + rate * step_second), clipped(value)


@njit(error_model="numpy")
def scaled_by_deviation(shaping, base, rules):
    """(shaping, base / running standard deviation). The first base that is not 0 seeds the variance with its square."""
    mean = shaping.first
    variance = shaping.second
    if rules.shaping_frozen == 0:
        if variance == 0.0:
            variance = base * base
            mean = base if variance > 0.0 else 0.0
        else:
            # West (1979): the exponentially weighted variance, which stays above 0
            step = base - mean
            mean += rules.shaping_rate * step
            variance = (1.0 - rules.shaping_rate) * (variance + rules.shaping_rate * step * step)
    value = 0.0
    if variance > 0.0:
        value = base / sqrt(variance)
    return Shaping(mean, variance), clipped(value)
