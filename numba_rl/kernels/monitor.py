"""What an epoch looked like, in 12 float32 (48 bytes): one launch over the rewards and actions of a rollout.

    0 mean, 1 standard deviation (n - 1), 2 smallest, 3 largest reward of a step, 4 Sharpe ratio of the steps (mean / deviation)
    5-9 steps that asked for exposure -1, -0.5, 0, 0.5, 1
    10 steps, 11 steps whose reward was not finite (left out of 0-4)

Without a finite reward 0-4 are NaN; so are 1 and 4 for fewer than two, and 4 where the deviation is rounding of a constant.
The counts are exact to 16.7 million. Blocks leave partial results (count, mean, sum of squared deviations: Chan et al. 1979) and
the last one to finish adds them up in the order of the blocks, so that reruns are bit-identical.

rewards float32 [S], actions int32 [S], count: how many of them are steps (0 is legal); partial float32 [blocks, 5] and
counts int32 [blocks, 7] are scratch, ticket int32 [1] starts as 0; figures float32 [12]. Cost: one read of 8 bytes a step.
"""

import math
from functools import cache

import numpy as np

from numba_rl.gpu import cuda, device, float32, int32, int64, jit, uint32
from numba_rl.kernel_cache import cached

FIGURES = (
    "reward_mean", "reward_std", "reward_min", "reward_max", "reward_sharpe", "short", "half_short", "flat", "half_long", "long",
    "steps", "non_finite",
)  # fmt: skip
THREADS, BLOCKS = 256, 264
AHEAD = 4  # steps that a thread reads at once
CONSTANT = 1e-6  # a deviation below this share of the largest |reward| is rounding
EXPOSURE_ACTIONS = 9  # actions of one exposure


@cache
def monitor_kernel(threads):
    """The kernel for blocks of `threads`, a power of two from 2 on.

    (Loops begin or step at blockDim, which is that number, so that the compiler unrolls none: small code starts sooner.)
    """

    def monitor(rewards, actions, count, partial, counts, ticket, figures):
        number = cuda.shared.array(threads, int32)
        mean = cuda.shared.array(threads, float32)
        squares = cuda.shared.array(threads, float32)
        low = cuda.shared.array(threads, float32)
        high = cuda.shared.array(threads, float32)
        tally = cuda.shared.array((threads, 6), int32)
        is_last = cuda.shared.array(1, int32)
        some = cuda.local.array(AHEAD, float32)
        chosen = cuda.local.array(AHEAD, uint32)
        thread = uint32(cuda.threadIdx.x)
        block = uint32(cuda.blockIdx.x)
        blocks = uint32(cuda.gridDim.x)
        half = uint32(uint32(cuda.blockDim.x) // uint32(2))
        # sums about the first reward keep their digits where rewards vary little
        shift = rewards[0] if math.isfinite(rewards[0]) else float32(0.0)
        n = int32(0)
        total = float32(0.0)
        square = float32(0.0)
        smallest = float32(math.inf)
        largest = float32(-math.inf)
        for k in range(6):
            tally[thread, k] = int32(0)
        i = int64(block) * threads + int64(thread)
        stride = int64(blocks) * threads
        while i < count:
            for k in range(AHEAD):
                place = min(i + k * stride, count - 1)
                some[k] = rewards[place]
                chosen[k] = uint32(actions[place])
            for k in range(AHEAD):
                if i + k * stride < count:
                    tally[thread, uint32(chosen[k] // uint32(EXPOSURE_ACTIONS))] += int32(1)
                    if math.isfinite(some[k]):
                        n = int32(n + 1)
                        apart = some[k] - shift
                        total += apart
                        square += apart * apart
                        smallest = min(smallest, some[k])
                        largest = max(largest, some[k])
                    else:
                        tally[thread, 5] += int32(1)
            i += AHEAD * stride
        several = float32(max(n, int32(1)))
        number[thread] = n
        mean[thread] = shift + total / several
        squares[thread] = max(square - total * total / several, float32(0.0))
        low[thread] = smallest
        high[thread] = largest
        width = half
        while width > uint32(0):
            cuda.syncthreads()
            if thread < width:
                merge(number, mean, squares, low, high, tally, thread, uint32(thread + width))
            width = uint32(width // uint32(2))
        if thread == uint32(0):
            partial[block, 0] = mean[0]
            partial[block, 1] = squares[0]
            partial[block, 2] = low[0]
            partial[block, 3] = high[0]
            counts[block, 6] = number[0]
            for k in range(6):
                counts[block, k] = tally[0, k]
            cuda.threadfence()
            is_last[0] = 1 if cuda.atomic.add(ticket, 0, 1) == cuda.gridDim.x - 1 else 0
        cuda.syncthreads()
        if is_last[0] == 1:
            cuda.threadfence()
            if thread == uint32(0):
                ticket[0] = 0
                number[0] = int32(0)
                mean[0] = float32(0.0)
                squares[0] = float32(0.0)
                low[0] = float32(math.inf)
                high[0] = float32(-math.inf)
                for k in range(6):
                    tally[0, k] = int32(0)
            # The first thread adds the blocks up, which the others hand to it.
            base = uint32(0)
            while base < blocks:
                other = uint32(base + thread)
                if thread > uint32(0) and other <= blocks:
                    other = uint32(other - 1)
                    number[thread] = counts[other, 6]
                    mean[thread] = partial[other, 0]
                    squares[thread] = partial[other, 1]
                    low[thread] = partial[other, 2]
                    high[thread] = partial[other, 3]
                    for k in range(6):
                        tally[thread, k] = counts[other, k]
                cuda.syncthreads()
                if thread == uint32(0):
                    place = uint32(1)
                    while place < uint32(threads) and uint32(base + place) <= blocks:
                        merge(number, mean, squares, low, high, tally, uint32(0), place)
                        place = uint32(place + uint32(half // uint32(threads // 2)))
                cuda.syncthreads()
                base = uint32(base + cuda.blockDim.x - 1)
            if thread == uint32(0):
                report(number[0], mean[0], squares[0], low[0], high[0], tally, count, figures)

    return cached(jit(monitor))


@device
def merge(number, mean, squares, low, high, tally, into, other):
    """Count, mean, squared deviations, extremes and tallies of two parts together, at `into`."""
    n = int32(number[into] + number[other])
    if number[other] > 0:
        apart = mean[other] - mean[into]
        share = float32(number[other]) / float32(n)
        squares[into] += squares[other] + apart * apart * float32(number[into]) * share
        mean[into] += apart * share
    number[into] = n
    low[into] = min(low[into], low[other])
    high[into] = max(high[into], high[other])
    for k in range(6):
        tally[into, k] = int32(tally[into, k] + tally[other, k])


@device
def report(number, mean, squares, low, high, tally, count, figures):
    """Write the 12 figures."""
    missing = float32(math.nan)
    deviation = float32(math.sqrt(squares / float32(number - 1))) if number > 1 else missing
    noise = float32(CONSTANT) * max(abs(low), abs(high))
    figures[0] = mean if number > 0 else missing
    figures[1] = deviation
    figures[2] = low if number > 0 else missing
    figures[3] = high if number > 0 else missing
    figures[4] = mean / deviation if number > 1 and deviation > noise else missing
    for k in range(5):
        figures[5 + k] = float32(tally[0, k])
    figures[10] = float32(count)
    figures[11] = float32(tally[0, 5])


def monitor_host(rewards, actions):
    """The 12 figures, float32, of NumPy arrays of any shape: the CPU path, summed in float64."""
    finite = rewards[np.isfinite(rewards)].astype(np.float64)
    figures = np.full(12, np.nan)
    if finite.size:
        figures[[0, 2, 3]] = finite.mean(), finite.min(), finite.max()
    if finite.size > 1:
        figures[1] = finite.std(ddof=1)
        if figures[1] > CONSTANT * np.abs(finite).max():
            figures[4] = figures[0] / figures[1]
    figures[5:10] = np.bincount(np.ravel(actions) // EXPOSURE_ACTIONS, minlength=5)
    figures[10:] = rewards.size, rewards.size - finite.size
    return figures.astype(np.float32)


def launch_monitor(rewards, actions, count, partial, counts, ticket, figures, stream=0, threads=THREADS):
    """Fill `figures`; arguments as above. The number of blocks is that of `partial`."""
    monitor_kernel(threads)[partial.shape[0], threads, stream](rewards, actions, count, partial, counts, ticket, figures)
