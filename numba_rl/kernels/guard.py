"""Is an update sound? One launch after each, on the device: checks, running averages, and every few updates the values' spread.

Inputs of an update, all on the device: loss float32 [1]; norms float32 [k]: gradient norms before clipping; values float32
[count]: Q-values (or the critic's) of its batch; stop float32 [1]: 1, this update was not meant to be made, and is not judged. Nothing is
judged any more after a halt.

thresholds float32 [3]: bound of losses, norm below which a gradient counts as collapsed, |mean value| that counts as diverged.
limits int64 [3]: collapsed updates in a row, skipped updates in a row, updates between statistics of the values.
counts int64 [6]: see COUNTS; running float32 [6]: the figures but the first two; halted float32 [1]: 1 once training
has to halt, read by the optimizer as a predicate. All three live from update to update.

The result is written into one of two rows in turn, which the host may read while the other is written (host-mapped memory on
a GPU): figures float32 [2, 8], see FIGURES, and record int64 [2, 7]: the counts and, written last, the number of updates
judged. An update whose loss or norm is not finite is counted as skipped: the optimizer leaves it out by itself, for
the same reason. A loss beyond its bound is counted and enters the averages as the bound; its step is bounded by the clipping of
gradients. Sums are added in a fixed order. Cost: one block.
"""

import math
from functools import cache

from numba import njit

from numba_rl.gpu import both, cuda, float32, jit, rebound, uint32
from numba_rl.kernel_cache import cached

JUDGED, SKIPPED, SKIPPED_ROW, COLLAPSED_ROW, CLIPPED, REASON = range(6)  # COUNTS
COUNTS, RECORD = 6, 7
FIGURES = ("loss", "grad_norm", "loss_average", "grad_norm_average", "q_mean", "q_std", "q_min", "q_max")
NONE, BROKEN, COLLAPSED, DIVERGED = range(4)  # reasons to halt
KEEP = 0.99  # of an average, an update
THREADS = 128
AHEAD = 4  # values that a thread reads at once


@both()
def judge(loss, norms, q_mean, has_values, thresholds, limits, counts, running, halted, figures, record, one):
    """Everything but the statistics of the values; one thread. one: uint32 1, which the compiler of a kernel had better not know.

    All is read before anything is written: one wait for the memory.
    """
    judged = counts[JUDGED] + 1
    skipped = counts[SKIPPED]
    skipped_row = counts[SKIPPED_ROW]
    collapsed_row = counts[COLLAPSED_ROW]
    clipped = counts[CLIPPED]
    reason = counts[REASON]
    loss_average = running[0]
    norm_average = running[1]
    q_figures = running[2], running[3], running[4], running[5]
    found = loss[0]
    bound = thresholds[0]
    collapse = thresholds[1]
    divergence = thresholds[2]
    most_collapsed = limits[0]
    most_skipped = limits[1]
    square = norms[0] * norms[0]
    k = uint32(1)
    while k < uint32(norms.shape[0]):
        square += norms[k] * norms[k]
        k = uint32(k + one)
    norm = float32(math.sqrt(square))
    if math.isfinite(found) and math.isfinite(norm):
        bounded = min(max(found, -bound), bound)
        if bounded != found:
            clipped += 1
        keep = float32(0.0) if judged - skipped == 1 else float32(KEEP)
        loss_average = float32(keep * loss_average + (float32(1.0) - keep) * bounded)
        norm_average = float32(keep * norm_average + (float32(1.0) - keep) * norm)
        skipped_row = 0
        collapsed_row = collapsed_row + 1 if norm < collapse else 0
    else:
        skipped += 1
        skipped_row += 1
    if reason == NONE:
        if skipped_row >= most_skipped:
            reason = BROKEN
        elif collapsed_row >= most_collapsed:
            reason = COLLAPSED
        elif has_values and not abs(q_mean) <= divergence and skipped_row == 0:
            reason = DIVERGED
    if reason != NONE:
        halted[0] = float32(1.0)
    counts[JUDGED] = judged
    counts[SKIPPED] = skipped
    counts[SKIPPED_ROW] = skipped_row
    counts[COLLAPSED_ROW] = collapsed_row
    counts[CLIPPED] = clipped
    counts[REASON] = reason
    running[0] = loss_average
    running[1] = norm_average
    row = judged & 1
    figures[row, 0] = found
    figures[row, 1] = norm
    figures[row, 2] = loss_average
    figures[row, 3] = norm_average
    figures[row, 4] = q_figures[0]
    figures[row, 5] = q_figures[1]
    figures[row, 6] = q_figures[2]
    figures[row, 7] = q_figures[3]
    record[row, JUDGED] = judged
    record[row, SKIPPED] = skipped
    record[row, SKIPPED_ROW] = skipped_row
    record[row, COLLAPSED_ROW] = collapsed_row
    record[row, CLIPPED] = clipped
    record[row, REASON] = reason


@both()
def spread(values, count, start, step, shift):
    """(sum of deviations from `shift`, of their squares, smallest, largest) of values[start::step]."""
    total = float32(0.0)
    square = float32(0.0)
    low = float32(math.inf)
    high = float32(-math.inf)
    for i in range(start, count, step):
        apart = values[i] - shift
        total += apart
        square += apart * apart
        low = min(low, values[i])
        high = max(high, values[i])
    return total, square, low, high


@both()
def write_spread(total, square, low, high, count, shift, running):
    """Mean, deviation, minimum and maximum into their places; the mean."""
    part = total / float32(count)
    mean = shift + part
    running[2] = mean
    running[3] = float32(math.sqrt(max(square / float32(count) - part * part, float32(0.0))))
    running[4] = low
    running[5] = high
    return mean


def _guard_all(loss, norms, values, count, stop, thresholds, limits, counts, running, halted, figures, record):
    if stop[0] != 0.0 or halted[0] != 0.0:
        return
    mean = float32(0.0)
    due = count > 0 and counts[0] % limits[2] == 0
    if due:
        shift = values[0]
        total, square, low, high = spread(values, count, 0, 1, shift)
        mean = write_spread(total, square, low, high, count, shift, running)
    judge(loss, norms, mean, due, thresholds, limits, counts, running, halted, figures, record, uint32(1))
    record[counts[0] % 2, 6] = counts[0]


guard_cpu = cached(
    njit(error_model="numpy")(rebound(_guard_all, {"judge": judge.cpu, "spread": spread.cpu, "write_spread": write_spread.cpu}))
)


judged, written = judge.device, write_spread.device


@cache
def guard_kernel(threads):
    """The kernel, launched as one block of `threads`. (Loops step by numbers that the compiler does not know, so that it unrolls none
    beyond what is written: small code starts sooner.)"""
    together = AHEAD if threads % AHEAD == 0 else 1

    def guard(loss, norms, values, count, stop, thresholds, limits, counts, running, halted, figures, record):
        sums = cuda.shared.array((threads, 4), float32)
        one = uint32(uint32(cuda.blockDim.x) // uint32(threads))
        stopped = stop[0]
        ended = halted[0]
        so_far = counts[0]
        every = uint32(limits[2])
        shift = values[0]
        judging = stopped == float32(0.0) and ended == float32(0.0)
        cuda.syncthreads()  # all threads have seen the same before one of them sets `halted` or counts
        if judging:
            thread = uint32(cuda.threadIdx.x)
            due = count > 0 and uint32(uint32(so_far) % every) == uint32(0)
            mean = float32(0.0)
            if due:
                total = float32(0.0)
                square = float32(0.0)
                low = float32(math.inf)
                high = float32(-math.inf)
                some = cuda.local.array(AHEAD, float32)
                i = thread
                while i < uint32(count):
                    for k in range(AHEAD):
                        some[k] = values[uint32(min(uint32(i + k * threads), uint32(count - 1)))]
                    for k in range(AHEAD):
                        if uint32(i + k * threads) < uint32(count):
                            apart = some[k] - shift
                            total += apart
                            square += apart * apart
                            low = min(low, some[k])
                            high = max(high, some[k])
                    i = uint32(i + AHEAD * cuda.blockDim.x)
                sums[thread, 0] = total
                sums[thread, 1] = square
                sums[thread, 2] = low
                sums[thread, 3] = high
                cuda.syncthreads()
                if thread == uint32(0):
                    total = float32(-0.0)  # which changes no number that is added
                    square = float32(-0.0)
                    low = float32(math.inf)
                    high = float32(-math.inf)
                    other = uint32(0)
                    while other < uint32(threads):
                        for k in range(together):
                            total += sums[uint32(other + k), 0]
                            square += sums[uint32(other + k), 1]
                            low = min(low, sums[uint32(other + k), 2])
                            high = max(high, sums[uint32(other + k), 3])
                        other = uint32(other + together * one)
                    mean = written(total, square, low, high, count, shift, running)
            if thread == uint32(0):
                judged(loss, norms, mean, due, thresholds, limits, counts, running, halted, figures, record, one)
                cuda.threadfence_system()  # the host must not see the number before what it stands for
                number = so_far + 1
                record[number & 1, 6] = number

    return cached(jit(guard))


def launch_guard(loss, norms, values, count, stop, thresholds, limits, counts, running, halted, figures, record, stream=0, threads=THREADS):
    """Judge one update; arguments as above. `values` has at least one element, count may be 0."""
    guard_kernel(threads)[1, threads, stream](
        loss, norms, values, count, stop, thresholds, limits, counts, running, halted, figures, record
    )
