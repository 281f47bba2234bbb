"""The arrays behind episode slots. One source for the CPU path, the GPU and the simulator.

portfolio float64 [N, 10], barrier float64 [N, 5], window int64 [N, 7], shaping float64 [N, 2]: see numba_rl.rules.
clock int64 [N, 4]: bar, step in the episode, steps played by the slot, episode number.
prices float64 [T, 4]: open, high, low, close.
"""

from numba_rl.gpu import both
from numba_rl.rules.barrier import Barrier
from numba_rl.rules.diversity import Window
from numba_rl.rules.game import Slot
from numba_rl.rules.portfolio import Portfolio
from numba_rl.rules.shaping import Shaping

BAR, STEP, PLAYED, EPISODE = 0, 1, 2, 3
CLOCK_FIELDS = 4
CLOSE = 3  # column of prices


@both()
def load_slot(portfolio, barrier, window, shaping, e):
    """The slot of row e as a NamedTuple of scalars."""
    return Slot(
        Portfolio(
            portfolio[e, 0],
            portfolio[e, 1],
            portfolio[e, 2],
            portfolio[e, 3],
            portfolio[e, 4],
            portfolio[e, 5],
            portfolio[e, 6],
            portfolio[e, 7],
            portfolio[e, 8],
            portfolio[e, 9],
        ),
        Barrier(barrier[e, 0], barrier[e, 1], barrier[e, 2], barrier[e, 3], barrier[e, 4]),
        Window(window[e, 0], window[e, 1], window[e, 2], window[e, 3], window[e, 4], window[e, 5], window[e, 6]),
        Shaping(shaping[e, 0], shaping[e, 1]),
    )


@both()
def store_slot(slot, portfolio, barrier, window, shaping, e):
    """Write a slot back to row e."""
    account = slot.portfolio
    portfolio[e, 0] = account.cash
    portfolio[e, 1] = account.position
    portfolio[e, 2] = account.entry
    portfolio[e, 3] = account.initial
    portfolio[e, 4] = account.spread
    portfolio[e, 5] = account.last
    portfolio[e, 6] = account.reserve
    portfolio[e, 7] = account.costs
    portfolio[e, 8] = account.exposure
    portfolio[e, 9] = account.peak
    barrier[e, 0] = slot.barrier.side
    barrier[e, 1] = slot.barrier.entry
    barrier[e, 2] = slot.barrier.upper
    barrier[e, 3] = slot.barrier.lower
    barrier[e, 4] = slot.barrier.bars
    window[e, 0] = slot.window.word0
    window[e, 1] = slot.window.word1
    window[e, 2] = slot.window.word2
    window[e, 3] = slot.window.word3
    window[e, 4] = slot.window.word4
    window[e, 5] = slot.window.counts
    window[e, 6] = slot.window.size
    shaping[e, 0] = slot.shaping.first
    shaping[e, 1] = slot.shaping.second
