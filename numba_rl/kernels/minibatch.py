"""Minibatches of a compact rollout: advantage statistics of each, and one of them gathered into network inputs.

A rollout keeps, for each of its R samples, the bar and three portfolio features; the network's input is built where it is
needed, as bf16 pairs: P = padded state width / 2 words a row, the market features first, the three portfolio features
after them, zeros behind. Sample w of minibatch j of a pass is sample `permuted(j * M + w)` of permutation number turn[0].

table uint32 [T, P]: bf16 pairs of the market features, zeros behind; bars int32 [R]; account float32 [R, 3]; actions int32,
log_probs, advantages, returns float32 [R]; x uint32 [M, P]; batch_* [M]; moments float32 [J, 2]: mean and
1 / (standard deviation + 1e-8) of the advantages of minibatch j, or 0 and 1 where they are not normalised.
Launches: `gather` a warp a sample; `moments` a block a minibatch. Cost: memory-bound, 4 P + 40 bytes a sample.
"""

import math

from numba import int64
from numpy import float32, int32, uint32

from numba_rl.gpu import both, cuda, jit, warp_sum
from numba_rl.kernels.bf16 import high, low, pack
from numba_rl.rules.permutation import permuted

WARPS = 8  # of a block
MOMENT_THREADS = 1024


def _write_row(x, w, table, bar, account, i, features, lane, lanes):
    """Row w of x: the features of `bar` and the account of sample i."""
    for p in range(lane, x.shape[1], lanes):
        word = table[bar, p]
        if 2 * p + 1 >= features:
            even = low(word)
            odd = high(word)
            if 2 * p >= features and 2 * p < features + 3:
                even = account[i, 2 * p - features]
            if 2 * p + 1 < features + 3:
                odd = account[i, 2 * p + 1 - features]
            word = pack(even, odd)
        x[w, p] = word


write_row = both()(_write_row).device


def make_kernels(lanes=32):
    """(gather, states, moments) kernels for warps of `lanes` threads: 32 on a GPU, fewer in the simulator."""

    def gather(
        table, bars, account, actions, log_probs, advantages, returns, features, seed, turn, minibatch, x, batch_actions,
        batch_log_probs, batch_advantages, batch_returns,
    ):  # fmt: skip
        lane = cuda.threadIdx.x % lanes
        w = (cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x) // lanes
        rows = batch_actions.shape[0]
        if w < rows:
            i = permuted(minibatch * rows + w, bars.shape[0], seed, turn[0])
            write_row(x, w, table, bars[i], account, i, features, lane, lanes)
            if lane == 0:
                batch_actions[w] = actions[i]
                batch_log_probs[w] = log_probs[i]
            if lane == 1:
                batch_advantages[w] = advantages[i]
                batch_returns[w] = returns[i]

    def states(table, bars, account, features, first, x):
        """Rows first.. of the rollout, in their own order."""
        lane = cuda.threadIdx.x % lanes
        w = int64(cuda.blockIdx.x) * (cuda.blockDim.x // lanes) + cuda.threadIdx.x // lanes
        if w < x.shape[0] and first + w < bars.shape[0]:
            write_row(x, w, table, bars[first + w], account, first + w, features, lane, lanes)

    def moments(advantages, seed, turn, rows, normalize, out):
        scratch = cuda.shared.array(32, float32)
        lane = cuda.threadIdx.x % lanes
        warp = cuda.threadIdx.x // lanes
        minibatch = cuda.blockIdx.x
        mean = float32(0.0)
        spread = float32(0.0)
        for part in range(2):
            total = float32(0.0)
            for w in range(cuda.threadIdx.x, rows, cuda.blockDim.x):
                value = advantages[permuted(minibatch * rows + w, advantages.shape[0], seed, turn[0])] - mean
                total += value if part == 0 else value * value
            total = warp_sum(total, scratch)
            cuda.syncthreads()
            if lane == 0:
                scratch[warp] = total
            cuda.syncthreads()
            total = float32(0.0)
            for other in range(cuda.blockDim.x // lanes):
                total += scratch[other]
            cuda.syncthreads()
            if part == 0:
                mean = total / float32(rows)
            else:
                spread = float32(math.sqrt(total / float32(max(rows - 1, 1))))
        if cuda.threadIdx.x == 0:
            out[minibatch, 0] = mean if normalize == 1 else float32(0.0)
            out[minibatch, 1] = float32(1.0) / (spread + float32(1e-8)) if normalize == 1 else float32(1.0)

    return jit(gather), jit(states), jit(moments)
