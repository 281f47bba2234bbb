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

from numba import int32, uint32, uint64
from numpy import float32

from numba_rl.gpu import both, cuda, device, jit, warp_sum
from numba_rl.kernel_cache import cached
from numba_rl.kernels.bf16 import pack
from numba_rl.rules.permutation import permuted

MOMENT_BLOCKS = 16  # parts of a minibatch, combined in order
FLYING = 4  # samples of which a thread has a quad on its way


@both()
def _part_of(rows, part):
    """First and one past the last sample of a part of a minibatch of `rows`."""
    first = uint64(rows) * uint64(part)
    return uint32(first // uint64(MOMENT_BLOCKS)), uint32((first + uint64(rows)) // uint64(MOMENT_BLOCKS))


part_of = _part_of.device


@both(_part_of)
def _combined(parts, minibatch, rows):
    """Mean and 1 / (deviation + 1e-8) of a minibatch from its parts (Chan, Golub and LeVeque 1983), in their order."""
    count = float32(0.0)
    mean = float32(0.0)
    squares = float32(0.0)
    one = uint32(parts.shape[2] // 2)  # as a number that the compiler does not know, so that it unrolls nothing: small code starts sooner
    part = uint32(0)
    own_mean, own_squares = parts[minibatch, 0, 0], parts[minibatch, 0, 1]
    while part < uint32(MOMENT_BLOCKS):
        first, stop = _part_of(rows, part)
        size = float32(uint32(stop - first))
        part = uint32(part + one)
        following = uint32(min(part, uint32(MOMENT_BLOCKS - 1)))  # read while this part is added
        next_mean, next_squares = parts[minibatch, following, 0], parts[minibatch, following, 1]
        if size > float32(0.0):
            whole = count + size
            step = own_mean - mean
            squares += own_squares + step * step * count * size / whole
            mean += step * size / whole
            count = whole
        own_mean, own_squares = next_mean, next_squares
    deviation = float32(math.sqrt(squares / max(count - float32(1.0), float32(1.0))))
    return mean, float32(1.0) / (deviation + float32(1e-8))


combined = _combined.device


@device
def write_quads(table, bars, account, features, which, place, stop, first, step, x):
    """Quads first, first + step, ... of the inputs of the samples `which` uint64 [FLYING] (local), to rows place.. of x before `stop`."""
    bar = cuda.local.array(FLYING, uint32)
    quads = cuda.local.array(FLYING, uint64)
    for k in range(FLYING):
        bar[k] = uint32(bars[which[k]])
    q = first
    while q < uint32(x.shape[1]):  # (a step that the compiler does not know keeps it from unrolling: small code starts sooner)
        for k in range(FLYING):
            quads[k] = table[bar[k], q]
        past = int32(int32(4 * q) - int32(features))  # the quad's first number follows the market features by so many
        if past > int32(-4) and past < int32(3):  # an account's numbers side by side, shifted to their places; the table has zeros there
            left = uint64(max(int32(-16 * past), int32(0)))
            right = uint64(max(int32(16 * past), int32(0)))
            for k in range(FLYING):
                own = uint64(pack(account[which[k], 0], account[which[k], 1])) | (uint64(pack(account[which[k], 2], 0)) << uint64(32))
                quads[k] |= (own << left) >> right
        for k in range(FLYING):
            if uint32(place + k) < stop:
                x[uint64(place) + uint64(k), q] = quads[k]
        q = uint32(q + step)


def rows_a_warp(quads, lanes):
    """Rows of so many quads that a warp writes: FLYING by as many lanes as a row has quads, and as many such groups as there are."""
    return max(lanes // quads, 1) * FLYING


@device
def place_of_lane(quads, lanes):
    """(first row, first quad, step) of this thread; past the last group of its warp the first quad is `quads`, for nothing to do."""
    thread = uint32(cuda.threadIdx.x)
    lane = uint32(thread % uint32(lanes))
    warp = uint32(cuda.blockIdx.x * uint32(uint32(cuda.blockDim.x) // uint32(lanes)) + thread // uint32(lanes))
    width = uint32(quads)
    share = uint32(uint32(1 << 16) // width + uint32(1))  # with which numbers up to `lanes` are divided by `quads`, rounded down
    groups = uint32(max(uint32(uint32(lanes) * share >> uint32(16)), uint32(1)))
    group = uint32(lane * share >> uint32(16))
    first = uint32(lane - group * width) if group < groups else width
    return uint32((warp * groups + min(group, uint32(groups - 1))) * FLYING), first, uint32(min(uint32(lanes), width))


@lru_cache
def make_kernels(lanes=32):
    """(pick, rows, states, moments) kernels for warps of `lanes` threads: 32 on a GPU, fewer in the simulator."""

    def pick(
        actions, log_probs, advantages, returns, seed, turn, minibatch, source, batch_actions, batch_log_probs, batch_advantages,
        batch_returns,
    ):  # fmt: skip
        w = uint32(cuda.grid(1))
        rows = uint32(source.shape[0])
        if w < rows:
            i = uint32(permuted(uint32(uint32(minibatch) * rows + w), uint32(actions.shape[0]), seed, turn[0]))
            action, log_prob, advantage, gain = actions[i], log_probs[i], advantages[i], returns[i]  # all on their way at once
            source[w] = i
            batch_actions[w] = action
            batch_log_probs[w] = log_prob
            batch_advantages[w] = advantage
            batch_returns[w] = gain

    def rows(table, bars, account, source, features, x):
        which = cuda.local.array(FLYING, uint64)
        place, first, step = place_of_lane(x.shape[1], lanes)
        last = uint32(source.shape[0] - 1)
        for k in range(FLYING):  # past the end, the last sample is read again: no branch between the reads
            which[k] = uint64(source[uint32(min(uint32(place + k), last))])
        write_quads(table, bars, account, features, which, place, uint32(x.shape[0]), first, step, x)

    def states(table, bars, account, features, start, x):
        """Samples start.. of the rollout, in their own order."""
        which = cuda.local.array(FLYING, uint64)
        place, first, step = place_of_lane(x.shape[1], lanes)
        last = uint32(bars.shape[0] - 1)
        for k in range(FLYING):
            which[k] = uint64(min(uint32(uint32(start) + place + k), last))
        write_quads(table, bars, account, features, which, place, uint32(min(x.shape[0], bars.shape[0] - start)), first, step, x)

    def moments(advantages, seed, turn, rows, parts):
        scratch = cuda.shared.array(32, float32)
        thread = uint32(cuda.threadIdx.x)
        threads = uint32(cuda.blockDim.x)
        one = uint32(cuda.blockDim.y)  # as a number that the compiler does not know, so that it unrolls no loop: small code starts sooner
        minibatch = uint32(cuda.blockIdx.x)
        part = uint32(cuda.blockIdx.y)
        samples = uint32(advantages.shape[0])
        first, stop = part_of(rows, part)
        mean = float32(0.0)
        total = float32(0.0)
        squared = uint32(0)
        while squared < uint32(2):
            total = float32(0.0)
            w = uint32(first + thread)
            while w < stop:
                value = advantages[uint32(permuted(uint32(minibatch * uint32(rows) + w), samples, seed, turn[0]))] - mean
                total += value if squared == uint32(0) else value * value
                w = uint32(w + threads)
            total = warp_sum(total, scratch)
            cuda.syncthreads()
            if thread % uint32(lanes) == uint32(0):
                scratch[uint32(thread // uint32(lanes))] = total
            cuda.syncthreads()
            total = float32(0.0)
            other = uint32(0)
            while other < uint32(threads // uint32(lanes)):
                total += scratch[other]
                other = uint32(other + one)
            cuda.syncthreads()
            if squared == uint32(0):
                mean = total / float32(uint32(max(uint32(stop - first), uint32(1))))
            squared = uint32(squared + one)
        if thread == uint32(0):
            parts[minibatch, part, 0] = mean
            parts[minibatch, part, 1] = total

    return cached(jit(pick)), cached(jit(rows)), cached(jit(states)), cached(jit(moments))
