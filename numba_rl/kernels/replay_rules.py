"""The rules of prioritized replay as scalars, shared by the kernels, the simulator and the host replay.

Schaul et al. 2016, "Prioritized Experience Replay". float32 in and out where nothing else is said.
"""

from numba import njit
from numpy import float32

# The smallest N * P whose weight is told apart; below it (N P)^-beta would leave float32.
SMALLEST_RATIO = float32(1e-30)


@njit(error_model="numpy")
def priority_of(error, alpha, eps, cap):
    """|td error|^alpha + eps, within [eps, cap]. The error is finite; overflow of the power ends at cap."""
    return min(float32(abs(float32(error))) ** float32(alpha) + float32(eps), float32(cap))


@njit(error_model="numpy")
def beta_at(step, start, end, steps):
    """Importance exponent at `step` (64-bit): linear from start to end over `steps`, then end. No state, so nothing compounds."""
    done = float32(min(step, steps)) / float32(steps)
    return (float32(1) - done) * float32(start) + done * float32(end)


@njit(error_model="numpy")
def raw_weight(priority, scale, beta):
    """(1 / (N P))^beta with P = priority / total and N the number of filled slots; scale: N / total."""
    return max(float32(priority) * float32(scale), SMALLEST_RATIO) ** -float32(beta)


@njit(error_model="numpy")
def rewritten(slot, then, now, capacity):
    """Whether `slot` was written between the insert counters `then` and `now` (64-bit counts of items ever inserted)."""
    if now == then:
        return False
    return now - then >= capacity or (slot - then) % capacity < now - then
