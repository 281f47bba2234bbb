"""Rank-based draws: the slot of place r in order of priority is drawn with probability proportional to 1 / r^alpha.

Schaul et al. 2016, section 3.3. The order comes from a sort that is done now and then (see DeviceReplay); the running sums
of 1 / r^alpha do not depend on the priorities and are made once, so that a draw only needs to search them.
"""

from functools import lru_cache

import numpy as np

from numba_rl import gpu
from numba_rl.gpu import float32, int64


def cumulated_ranks(capacity: int, alpha: float) -> np.ndarray:
    """float64 [capacity]: sum of 1 / r^alpha over r = 1 .. i + 1."""
    return np.cumsum(np.arange(1, capacity + 1, dtype=np.float64) ** -alpha)


@lru_cache
def rank_search(lanes: int):
    """Device function for a warp of `lanes` >= 2, which narrows the range `lanes`-fold a step: 4 reads for a million slots."""

    @gpu.device
    def find(order, cumulated, ranked, alpha, share, lane, scratch):
        """(slot, 1 / rank^alpha, their sum) for a share in [0, 1) of the sum over `ranked` places; slot -1 if nothing is ranked."""
        if ranked < int64(1):
            return int64(-1), float32(0), 0.0
        total = cumulated[ranked - int64(1)]
        mass = share * total
        low = int64(0)
        high = ranked
        while high - low > int64(1):
            step = (high - low + int64(lanes - 1)) // int64(lanes)
            probe = min(low + (int64(lane) + int64(1)) * step, high) - int64(1)
            holder = int64(gpu.warp_first(cumulated[probe] > mass, scratch))
            if holder < int64(0):  # rounding put the mass on the total
                low = high - int64(1)
            else:
                low = low + holder * step
                high = min(low + step, high)
        return order[low], float32(low + int64(1)) ** -alpha, total

    return find
