"""Triple barrier: a profit, a loss and a time limit around each position, judged on closes.

Lopez de Prado, "Advances in Financial Machine Learning" (2018), chapter 3, as a running reward component. It opens when a
position opens, at the fill price; the label is +1 at the profit barrier, -1 at the loss barrier, 0 when the time is over,
paid once, in the step that touches. It arms again when the position goes flat or flips.
"""

from typing import NamedTuple

from numba import njit


class Barrier(NamedTuple):
    """State of five, float64. side is 0 with no position; bars is -1 once the label was paid."""

    side: float
    entry: float
    upper: float
    lower: float
    bars: float


BARRIER_FIELDS = len(Barrier._fields)


@njit(error_model="numpy")
def no_barrier():
    """The state with no position."""
    return Barrier(0.0, 0.0, 0.0, 0.0, 0.0)


@njit(error_model="numpy")
def touch(barrier, position, fill_price, close, rules):
    """(barrier, label) after a step that ends with `position` units at `close`; a new position opened at `fill_price`."""
    side = 0.0
    if position > 0.0:
        side = 1.0
    elif position < 0.0:
        side = -1.0
    if side == 0.0:
        return Barrier(0.0, 0.0, 0.0, 0.0, 0.0), 0.0
    entry = barrier.entry
    upper = barrier.upper
    lower = barrier.lower
    bars = barrier.bars
    if side != barrier.side:
        entry = fill_price
        size = abs(entry)
        upper = entry + size * (rules.barrier_profit if side > 0.0 else rules.barrier_loss)
        lower = entry - size * (rules.barrier_loss if side > 0.0 else rules.barrier_profit)
        bars = 0.0
    label = 0.0
    if bars >= 0.0:
        bars += 1.0
        if close >= upper:
            label = side
            bars = -1.0
        elif close <= lower:
            label = -side
            bars = -1.0
        elif bars >= rules.barrier_bars:
            bars = -1.0
    return Barrier(side, entry, upper, lower, bars), label
