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

from numba_rl.gpu import both, cuda, float32, jit, rebound
from numba_rl.kernel_cache import cached

JUDGED, SKIPPED, SKIPPED_ROW, COLLAPSED_ROW, CLIPPED, REASON = range(6)  # COUNTS
COUNTS, RECORD = 6, 7
FIGURES = ("loss", "grad_norm", "loss_average", "grad_norm_average", "q_mean", "q_std", "q_min", "q_max")
NONE, BROKEN, COLLAPSED, DIVERGED = range(4)  # reasons to halt
KEEP = 0.99  # of an average, an update
THREADS = 128


@both()
def judge(loss, norms, q_mean, has_values, thresholds, limits, counts, running, halted, figures, record):
    """Everything but the statistics of the values; one thread."""
    counts[0] += 1
    row = counts[0] % 2
    square = float32(0.0)
    for k in range(norms.shape[0]):
        square += norms[k] * norms[k]
    norm = float32(math.sqrt(square))
    if math.isfinite(loss[0]) and math.isfinite(norm):
        bounded = min(max(loss[0], -thresholds[0]), thresholds[0])
        if bounded != loss[0]:
            counts[4] += 1
        first = counts[0] - counts[1] == 1
        keep = float32(0.0) if first else float32(KEEP)
        running[0] = keep * running[0] + (float32(1.0) - keep) * bounded
        running[1] = keep * running[1] + (float32(1.0) - keep) * norm
        counts[2] = 0
        counts[3] = counts[3] + 1 if norm < thresholds[1] else 0
    else:
        counts[1] += 1
        counts[2] += 1
    if counts[5] == 0:
        if counts[2] >= limits[1]:
            counts[5] = 1
        elif counts[3] >= limits[0]:
            counts[5] = 2
        elif has_values and not abs(q_mean) <= thresholds[2] and counts[2] == 0:
            counts[5] = 3
    if counts[5] != 0:
        halted[0] = float32(1.0)
    figures[row, 0] = loss[0]
    figures[row, 1] = norm
    for k in range(6):
        figures[row, 2 + k] = running[k]
    for k in range(6):
        record[row, k] = counts[k]


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
    judge(loss, norms, mean, due, thresholds, limits, counts, running, halted, figures, record)
    record[counts[0] % 2, 6] = counts[0]


guard_cpu = cached(
    njit(error_model="numpy")(rebound(_guard_all, {"judge": judge.cpu, "spread": spread.cpu, "write_spread": write_spread.cpu}))
)


judged, spread_over, written = judge.device, spread.device, write_spread.device


@cache
def guard_kernel(threads):
    """The kernel, launched as one block of `threads`."""

    def guard(loss, norms, values, count, stop, thresholds, limits, counts, running, halted, figures, record):
        sums = cuda.shared.array((threads, 4), float32)
        judging = stop[0] == float32(0.0) and halted[0] == float32(0.0)
        cuda.syncthreads()  # all threads have seen the same before one of them sets `halted`
        if judging:
            thread = cuda.threadIdx.x
            due = count > 0 and counts[0] % limits[2] == 0
            shift = values[0]
            if due:
                total, square, low, high = spread_over(values, count, thread, threads, shift)
                sums[thread, 0] = total
                sums[thread, 1] = square
                sums[thread, 2] = low
                sums[thread, 3] = high
            cuda.syncthreads()
            if thread == 0:
                mean = float32(0.0)
                if due:
                    for other in range(1, threads):
                        sums[0, 0] += sums[other, 0]
                        sums[0, 1] += sums[other, 1]
                        sums[0, 2] = min(sums[0, 2], sums[other, 2])
                        sums[0, 3] = max(sums[0, 3], sums[other, 3])
                    mean = written(sums[0, 0], sums[0, 1], sums[0, 2], sums[0, 3], count, shift, running)
                judged(loss, norms, mean, due, thresholds, limits, counts, running, halted, figures, record)
                cuda.threadfence_system()  # the host must not see the number before what it stands for
                record[counts[0] % 2, 6] = counts[0]

    return cached(jit(guard))


def launch_guard(loss, norms, values, count, stop, thresholds, limits, counts, running, halted, figures, record, stream=0, threads=THREADS):
    """Judge one update; arguments as above. `values` has at least one element, count may be 0."""
    guard_kernel(threads)[1, threads, stream](
        loss, norms, values, count, stop, thresholds, limits, counts, running, halted, figures, record
    )
