"""Double-DQN target, td error, loss and the gradient at the heads of a dueling network, in one pass; a warp a sample.

The two streams end in one product of C columns: column 0 the value, 1 .. A the advantages, zeros behind (C even). Then

    q(s, a) = value + advantage[a] - mean advantage,   y = reward + discount x q_target(s', argmax q_online(s'))

online float32 [2 B, C]: of the states, then of the next states; target float32 [B, C]: of the next states; both without their
biases, float32 [C]. actions int32, rewards, discounts, weights float32 [B]; flags int32 [B], bit 0: no next state.
settings float32 [2]: 1 / B, and Huber's edge (infinity: squared loss). double int64: 0 lets the target network pick as well.
out: errors float32 [B] (q - y); values float32 [B] (q); gradient uint32 [B, C / 2] bf16 pairs, of the mean weighted loss at the
products; partial float32 [G, n]: the block's column sums of it from `offset` on (the biases' gradient); losses float32 [G, 1]: the
block's sum of weighted losses, finite or not; stats float32 [G, 3]: the block adds its sums of loss, |error| and q, where they are
finite. No atomics: block g owns row g.
Launch: G blocks of `warps` warps. Cost: memory-bound, 16 C bytes a sample.
"""

import math

from numpy import float32

from numba_rl.gpu import cuda, int32, jit, warp_max, warp_sum
from numba_rl.kernel_cache import cached
from numba_rl.kernels.bf16 import pack
from numba_rl.kernels.replay_layout import TERMINATED

STATS = 3


def make_dqn_loss(actions, columns, lanes=32, warps=8):
    """The kernel for `actions` actions in `columns` columns; blocks of `warps` warps of `lanes` threads, fewer in the simulator."""
    pairs = columns // 2
    rounds = (pairs + lanes - 1) // lanes
    share = float32(1.0 / actions)
    threads = lanes * warps
    held = 2 * rounds
    summed = STATS + 1

    def dqn_loss(
        online, bias, target, target_bias, taken, rewards, discounts, flags, weights, settings, double, errors, values, gradient, partial,
        offset, losses, stats,
    ):  # fmt: skip
        scratch = cuda.shared.array(32, float32)
        columns_of = cuda.shared.array((warps, columns), float32)
        sums = cuda.shared.array((warps, summed), float32)
        own = cuda.local.array(held, float32)  # this lane's share of the biases' gradient
        lane = int32(cuda.threadIdx.x % lanes)
        warp = int32(cuda.threadIdx.x // lanes)
        batch = errors.shape[0]
        for k in range(held):
            own[k] = float32(0.0)
        whole_sum = float32(0.0)
        loss_sum = float32(0.0)
        error_sum = float32(0.0)
        q_sum = float32(0.0)
        inverse = settings[0]
        edge = settings[1]
        for first in range(cuda.blockIdx.x * warps, batch, warps * cuda.gridDim.x):
            inside = first + warp < batch
            i = min(first + warp, batch - 1)
            # The next action: the largest advantage, the first of equals.
            top = float32(-math.inf)
            place = float32(columns)
            for k in range(held):
                c = 2 * (lane + (k // 2) * lanes) + k % 2
                if c >= 1 and c <= actions:
                    value = online[batch + i, c] + bias[c] if double == 1 else target[i, c] + target_bias[c]
                    if value > top:
                        top = value
                        place = float32(c)
            best = float32(warp_max(top, scratch))
            place = -float32(warp_max(-place if top == best else -float32(columns), scratch))
            action = taken[i] + 1
            following = float32(0.0)
            q = float32(0.0)
            for k in range(held):
                c = 2 * (lane + (k // 2) * lanes) + k % 2
                if c <= actions:
                    there = target[i, c] + target_bias[c]
                    here = online[i, c] + bias[c]
                    factor = float32(1.0) if c == 0 else -share
                    following += there * (factor + (float32(1.0) if float32(c) == place else float32(0.0)))
                    q += here * (factor + (float32(1.0) if c == action else float32(0.0)))
            following = float32(warp_sum(following, scratch))
            q = float32(warp_sum(q, scratch))
            y = rewards[i]
            if flags[i] & TERMINATED == 0:
                y += discounts[i] * following
            error = q - y
            slope = error  # a NaN stays one, so that the step is skipped
            size = abs(error)
            loss = float32(0.5) * error * error
            if size > edge:
                slope = edge if error > float32(0.0) else -edge
                loss = edge * (size - float32(0.5) * edge)
            slope *= weights[i] * inverse
            loss *= weights[i]
            for r in range(rounds):
                pair = lane + r * lanes
                if inside and pair < pairs:
                    c = 2 * pair
                    even = float32(0.0)
                    odd = float32(0.0)
                    if c <= actions:
                        factor = float32(1.0) if c == 0 else -share
                        even = slope * (factor + (float32(1.0) if c == action else float32(0.0)))
                    if c + 1 <= actions:
                        odd = slope * ((float32(1.0) if c + 1 == action else float32(0.0)) - share)
                    gradient[i, pair] = pack(even, odd)
                    own[2 * r] += even
                    own[2 * r + 1] += odd
            if inside:
                if lane == 0:
                    errors[i] = error
                    values[i] = q
                whole_sum += loss
                if loss - loss == float32(0.0) and q - q == float32(0.0):
                    loss_sum += loss
                    error_sum += size
                    q_sum += q
        for r in range(rounds):
            pair = lane + r * lanes
            if pair < pairs:
                columns_of[warp, 2 * pair] = own[2 * r]
                columns_of[warp, 2 * pair + 1] = own[2 * r + 1]
        if lane == 0:
            sums[warp, 0] = loss_sum
            sums[warp, 1] = error_sum
            sums[warp, 2] = q_sum
            sums[warp, STATS] = whole_sum
        cuda.syncthreads()
        for c in range(cuda.threadIdx.x, columns + summed, threads):
            total = float32(0.0)
            if c < columns:
                for other in range(warps):
                    total += columns_of[other, c]
                partial[cuda.blockIdx.x, offset + c] = total
            else:
                for other in range(warps):
                    total += sums[other, c - columns]
                if c < columns + STATS:
                    stats[cuda.blockIdx.x, c - columns] += total
                else:
                    losses[cuda.blockIdx.x, 0] = total

    return cached(jit(dqn_loss))
