"""Minibatches of a compact rollout: advantage statistics of each, and one of them gathered into network inputs.

A rollout keeps, for each of its R samples, the bar and three portfolio features; the network's input is built where it is
needed, as bf16 pairs: P = padded state width / 2 words a row, the market features first, the three portfolio features
after them, zeros behind. Sample w of minibatch j of a pass is sample `permuted(j * M + w)` of permutation number turn[0].

table uint64 [T, P / 2]: quads of the market features in bf16, zeros behind; bars int32 [R]; account float32 [R, 3]; actions int32,
log_probs, advantages, returns float32 [R]; source int64 [M]: which samples; x uint64 [M, P / 2]; batch_* [M]; parts float32
[J, MOMENT_BLOCKS, 2]: mean and sum of squared deviations of a part of minibatch j's advantages, to be combined by `combined`.
Launches: `pick` a thread a sample; `rows` and `states` a warp for `rows_a_warp` samples; `moments` a grid (J, MOMENT_BLOCKS). Cost:
memory-bound, 8 P + 48 bytes a sample.
"""

import math
from functools import lru_cache

from numba import int32, int64, uint32, uint64
from numpy import float32

from numba_rl.gpu import both, cuda, device, jit, warp_sum
from numba_rl.kernel_cache import cached
from numba_rl.kernels.bf16 import high, low, pack
from numba_rl.rules.permutation import permuted

MOMENT_BLOCKS = 16  # parts of a minibatch, combined in order
FLYING = 4  # samples of which a thread has a quad on its way


@both()
def _part_of(rows, part):
    """First and one past the last sample of a part of a minibatch of `rows`."""
    return rows * part // MOMENT_BLOCKS, rows * (part + 1) // MOMENT_BLOCKS


part_of = _part_of.device


@both(_part_of)
def _combined(parts, minibatch, rows):
    """Mean and 1 / (deviation + 1e-8) of a minibatch from its parts (Chan, Golub and LeVeque 1983), in their order."""
    count = float32(0.0)
    mean = float32(0.0)
    squares = float32(0.0)
    for part in range(MOMENT_BLOCKS):
        first, stop = _part_of(rows, part)
        size = float32(stop - first)
        if size > float32(0.0):
            whole = count + size
            step = parts[minibatch, part, 0] - mean
            squares += parts[minibatch, part, 1] + step * step * count * size / whole
            mean += step * size / whole
            count = whole
    deviation = float32(math.sqrt(squares / max(count - float32(1.0), float32(1.0))))
    return mean, float32(1.0) / (deviation + float32(1e-8))


combined = _combined.device


@device
def word_of(word, account, i, p, features):
    """Word p of the input of sample i, whose bar has `word` in the table: features, then the account, then zeros."""
    if 2 * p + 1 >= features:
        even = low(word)
        odd = high(word)
        if 2 * p >= features and 2 * p < features + 3:
            even = account[i, 2 * p - features]
        if 2 * p + 1 < features + 3:
            odd = account[i, 2 * p + 1 - features]
        word = pack(even, odd)
    return word



@device
def write_quads(table, bars, account, features, which, place, stop, first, step, x):
    """Quads first, first + step, ... of the inputs of the samples `which` int64 [FLYING] (local), to rows place.. of x before `stop`."""
    bar = cuda.local.array(FLYING, int32)
    quads = cuda.local.array(FLYING, uint64)
    for k in range(FLYING):
        bar[k] = bars[which[k]]
    for q in range(first, x.shape[1], step):
        for k in range(FLYING):
            quads[k] = table[bar[k], q]
        if 4 * q + 3 >= features:
            for k in range(FLYING):
                first_word = word_of(uint32(quads[k] & uint64(0xFFFFFFFF)), account, which[k], 2 * q, features)
                second_word = word_of(uint32(quads[k] >> uint64(32)), account, which[k], 2 * q + 1, features)
                quads[k] = uint64(first_word) | (uint64(second_word) << uint64(32))
        for k in range(FLYING):
            if place + k < stop:
                x[place + k, q] = quads[k]


def rows_a_warp(quads, lanes):
    """Rows of so many quads that a warp writes: FLYING by as many lanes as a row has quads, and as many such groups as there are."""
    return max(lanes // quads, 1) * FLYING


@device
def place_of_lane(quads, lanes):
    """(first row, first quad, step) of this thread; past the last group of its warp the first quad is `quads`, for nothing to do."""
    lane = cuda.threadIdx.x % lanes
    warp = int64(cuda.blockIdx.x) * (cuda.blockDim.x // lanes) + cuda.threadIdx.x // lanes
    groups = max(lanes // quads, 1)
    group = lane // quads
    first = lane - group * quads if group < groups else quads
    return (warp * groups + min(group, groups - 1)) * FLYING, first, min(lanes, quads)


@lru_cache
def make_kernels(lanes=32):
    """(pick, rows, states, moments) kernels for warps of `lanes` threads: 32 on a GPU, fewer in the simulator."""

    def pick(
        actions, log_probs, advantages, returns, seed, turn, minibatch, source, batch_actions, batch_log_probs, batch_advantages,
        batch_returns,
    ):  # fmt: skip
        w = cuda.grid(1)
        rows = source.shape[0]
        if w < rows:
            i = permuted(minibatch * rows + w, actions.shape[0], seed, turn[0])
            source[w] = i
            batch_actions[w] = actions[i]
            batch_log_probs[w] = log_probs[i]
            batch_advantages[w] = advantages[i]
            batch_returns[w] = returns[i]

    def rows(table, bars, account, source, features, x):
        which = cuda.local.array(FLYING, int64)
        place, first, step = place_of_lane(x.shape[1], lanes)
        for k in range(FLYING):  # past the end, the last sample is read again: no branch between the reads
            which[k] = source[min(place + k, source.shape[0] - 1)]
        write_quads(table, bars, account, features, which, place, x.shape[0], first, step, x)

    def states(table, bars, account, features, start, x):
        """Samples start.. of the rollout, in their own order."""
        which = cuda.local.array(FLYING, int64)
        place, first, step = place_of_lane(x.shape[1], lanes)
        for k in range(FLYING):
            which[k] = min(start + place + k, bars.shape[0] - 1)
        write_quads(table, bars, account, features, which, place, min(x.shape[0], bars.shape[0] - start), first, step, x)

    def moments(advantages, seed, turn, rows, parts):
        scratch = cuda.shared.array(32, float32)
        lane = cuda.threadIdx.x % lanes
        warp = cuda.threadIdx.x // lanes
        minibatch = cuda.blockIdx.x
        first, stop = part_of(rows, cuda.blockIdx.y)
        mean = float32(0.0)
        for turn_of in range(2):
            total = float32(0.0)
            for w in range(first + cuda.threadIdx.x, stop, cuda.blockDim.x):
                value = advantages[permuted(minibatch * rows + w, advantages.shape[0], seed, turn[0])] - mean
                total += value if turn_of == 0 else value * value
            total = warp_sum(total, scratch)
            cuda.syncthreads()
            if lane == 0:
                scratch[warp] = total
            cuda.syncthreads()
            total = float32(0.0)
            for other in range(cuda.blockDim.x // lanes):
                total += scratch[other]
            cuda.syncthreads()
            if turn_of == 0:
                mean = total / float32(max(stop - first, 1))
        if cuda.threadIdx.x == 0:
            parts[minibatch, cuda.blockIdx.y, 0] = mean
            parts[minibatch, cuda.blockIdx.y, 1] = total

    return cached(jit(pick)), cached(jit(rows)), cached(jit(states)), cached(jit(moments))
