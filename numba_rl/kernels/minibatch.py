"""Minibatches of a compact rollout: advantage statistics of each, and one of them gathered into network inputs.

A rollout keeps, for each of its R samples, the bar and three portfolio features; the network's input is built where it is
needed, as bf16 pairs: P = padded state width / 2 words a row, the market features first, the three portfolio features
after them, zeros behind. Sample w of minibatch j of a pass is sample `permuted(j * M + w)` of permutation number turn[0].

table uint32 [T, P]: bf16 pairs of the market features, zeros behind; bars int32 [R]; account float32 [R, 3]; actions int32,
log_probs, advantages, returns float32 [R]; source int64 [M]: which samples; x uint32 [M, P]; batch_* [M]; parts float32
[J, MOMENT_BLOCKS, 2]: mean and sum of squared deviations of a part of minibatch j's advantages, to be combined by `combined`.
Launches: `pick` a thread a sample; `rows` and `states` a warp for FLYING samples; `moments` a grid (J, MOMENT_BLOCKS). Cost:
memory-bound, 8 P + 48 bytes a sample.
"""

import math
from functools import lru_cache

from numba import int32, int64, uint32
from numpy import float32

from numba_rl.gpu import both, cuda, device, jit, warp_sum
from numba_rl.kernel_cache import cached
from numba_rl.kernels.bf16 import high, low, pack
from numba_rl.rules.permutation import permuted

MOMENT_BLOCKS = 16  # parts of a minibatch, combined in order
FLYING = 4  # samples whose words a warp has on their way


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


@both()
def _word(table, bar, account, i, p, features):
    """Word p of the input of sample i: features of `bar`, then the account, then zeros."""
    word = table[bar, p]
    if 2 * p + 1 >= features:
        even = low(word)
        odd = high(word)
        if 2 * p >= features and 2 * p < features + 3:
            even = account[i, 2 * p - features]
        if 2 * p + 1 < features + 3:
            odd = account[i, 2 * p + 1 - features]
        word = pack(even, odd)
    return word


word_of = _word.device


@device
def write_words(table, bars, account, features, which, place, stop, lane, lanes, x):
    """The inputs of the samples `which` int64 [FLYING] (local), to rows place.. of x before `stop`; a warp together."""
    bar = cuda.local.array(FLYING, int32)
    words = cuda.local.array(FLYING, uint32)
    for k in range(FLYING):
        bar[k] = bars[which[k]]
    for p in range(lane, x.shape[1], lanes):
        for k in range(FLYING):
            words[k] = word_of(table, bar[k], account, which[k], p, features)
        for k in range(FLYING):
            if place + k < stop:
                x[place + k, p] = words[k]


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
        place = (int64(cuda.blockIdx.x) * (cuda.blockDim.x // lanes) + cuda.threadIdx.x // lanes) * FLYING
        for k in range(FLYING):  # past the end, the last sample is read again: no branch between the reads
            which[k] = source[min(place + k, source.shape[0] - 1)]
        write_words(table, bars, account, features, which, place, x.shape[0], cuda.threadIdx.x % lanes, lanes, x)

    def states(table, bars, account, features, first, x):
        """Samples first.. of the rollout, in their own order."""
        which = cuda.local.array(FLYING, int64)
        place = (int64(cuda.blockIdx.x) * (cuda.blockDim.x // lanes) + cuda.threadIdx.x // lanes) * FLYING
        for k in range(FLYING):
            which[k] = min(first + place + k, bars.shape[0] - 1)
        write_words(table, bars, account, features, which, place, min(x.shape[0], bars.shape[0] - first), cuda.threadIdx.x % lanes, lanes, x)

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
