"""Diversity of the last 100 actions: entropy of their exposures over ln 5, minus 1 (0 best, -1 worst).

The window is kept as scalars: five 60-bit words of twenty 3-bit exposure indices, newest in the low bits of the first,
and five 7-bit counts in one word, so that a push costs no memory traffic and no recount.
"""

import math
from typing import NamedTuple

from numba import njit
from numpy import float32, int64

from numba_rl.rules.actions import EXPOSURES

WINDOW = 100
MINIMUM = 20  # actions before the term counts
_WORD = (1 << 60) - 1
_INVERSE_LN5 = 1.0 / math.log(5.0)


class Window(NamedTuple):
    """The last 100 exposure indices, all int64."""

    word0: int
    word1: int
    word2: int
    word3: int
    word4: int
    counts: int  # 7 bits an exposure
    size: int


WINDOW_FIELDS = len(Window._fields)


@njit(error_model="numpy")
def empty_window():
    """A window with no action in it."""
    return Window(0, 0, 0, 0, 0, 0, 0)


@njit(error_model="numpy")
def push(window, exposure):
    """The window after an action with exposure index 0..4; the oldest falls out of a full one."""
    oldest = window.word4 >> 57
    counts = window.counts + (int64(1) << (7 * int64(exposure)))
    size = window.size
    if size == WINDOW:
        counts -= int64(1) << (7 * oldest)
    else:
        size += 1
    return Window(
        ((window.word0 << 3) & _WORD) | int64(exposure),
        ((window.word1 << 3) & _WORD) | (window.word0 >> 57),
        ((window.word2 << 3) & _WORD) | (window.word1 >> 57),
        ((window.word3 << 3) & _WORD) | (window.word2 >> 57),
        ((window.word4 << 3) & _WORD) | (window.word3 >> 57),
        counts,
        size,
    )


@njit(error_model="numpy")
def count_of(window, exposure):
    """How often an exposure is in the window."""
    return (window.counts >> (7 * exposure)) & 127


@njit(error_model="numpy")
def weight_of(count):
    """count x ln(count), float32."""
    if count == 0:
        return float32(0.0)
    return float32(count) * math.log(float32(count))


@njit(error_model="numpy")
def entropy_term(weighted, size):
    """Normalised entropy - 1 of a window of `size` actions, by the sum of the `weight_of` its counts; float32, 0 until there are 20."""
    if size < MINIMUM:
        return float32(0.0)
    entropy = math.log(float32(size)) - weighted / float32(size)
    return entropy * float32(_INVERSE_LN5) - float32(1.0)


@njit(error_model="numpy")
def diversity_term(window):
    """Normalised entropy - 1 in [-1, 0], float32; 0 until 20 actions are in the window."""
    weighted = float32(0.0)
    for exposure in range(EXPOSURES):
        weighted += weight_of(count_of(window, exposure))
    return entropy_term(weighted, window.size)
