"""One draw by one warp from logits in shared memory: the block form of the rollout's sampler.

The rule is that of kernels.sampling: the last action of positive probability whose predecessors' cumulative mass does not
exceed u x total. Each lane has two neighbouring actions. The simulator draws with the serial function instead.
"""

import math

from numba_rl.gpu import FULL_MASK, SIMULATED, cuda, device, float32, int32, warp_max
from numba_rl.kernels.sampling import draw_row

if SIMULATED:
    import numpy as np

    def draw_by_warp(logits, actions, u, lane, redux):
        """See below; the one lane there is wins."""
        action, log_prob = draw_row(logits, 0, actions, u, np.float32(1.0))
        return action, 0, np.float32(log_prob), np.float32(0.0), np.float32(1.0)

else:
    from numba_rl.kernels.ptx import largest

    @device
    def draw_by_warp(logits, actions, u, lane, redux):
        """(action, winning lane, its logit, largest logit, sum of exponentials); all but the winner's are its own business.

        logits float32 [1, 64], minus infinity past the actions. Action -1 where the logits are no distribution. redux: 1 for
        compute capability 8.0 or newer.
        """
        x0 = logits[0, 2 * lane]
        x1 = logits[0, 2 * lane + 1]
        top = largest(max_or_nan(x0, x1)) if redux else warp_max(max_or_nan(x0, x1), 0)
        e0 = math.exp(x0 - top)
        e1 = math.exp(x1 - top)
        mass = e0 + e1
        cumulative = mass
        distance = int32(1)
        while distance < 32:
            other = cuda.shfl_up_sync(FULL_MASK, cumulative, distance)
            if lane >= distance:
                cumulative += other
            distance *= int32(2)
        total = cuda.shfl_sync(FULL_MASK, cumulative, 31)
        threshold = u * total
        before = cumulative - mass
        second = e1 > float32(0.0) and before + e0 <= threshold
        candidates = cuda.ballot_sync(FULL_MASK, second or (e0 > float32(0.0) and before <= threshold))
        action = int32(2 * lane)
        logit = x0
        if second:
            action += int32(1)
            logit = x1
        winner = int32(31) - int32(cuda.clz(candidates))
        if not (total > float32(0.0) and total < float32(math.inf)):
            winner = int32(0)
            action = int32(-1)
        return action, winner, logit, top, total

    @device
    def max_or_nan(a, b):
        """The larger of two, or NaN if either is."""
        return a if a > b or math.isnan(a) else b


@device
def log_prob_of(logit, top, total):
    """Log-probability of the drawn action; NaN in `total` goes through."""
    return logit - top - math.log(total)
