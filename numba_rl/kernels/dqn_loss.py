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

from numba_rl.gpu import cuda, int32, jit, most_registers, uint32, warp_broadcast, warp_first, warp_max, warp_sum
from numba_rl.kernel_cache import cached
from numba_rl.kernels.bf16 import pack
from numba_rl.kernels.ptx import converge
from numba_rl.kernels.replay_layout import TERMINATED

STATS = 3


def make_dqn_loss(actions, columns, lanes=32, warps=8):
    """The kernel for `actions` actions in `columns` columns; blocks of `warps` warps of `lanes` threads, fewer in the simulator."""
    pairs = columns // 2
    rounds = (pairs + lanes - 1) // lanes
    share = float32(1.0 / actions)
    held = 2 * rounds
    rows, width = warps + 1, columns + STATS + 1  # of a block's sums

    def dqn_loss(
        online, bias, target, target_bias, taken, rewards, discounts, flags, weights, settings, double, errors, values, gradient, partial,
        offset, losses, stats,
    ):  # fmt: skip
        scratch = cuda.shared.array(32, float32)
        sums = cuda.shared.array((rows, width), float32)  # of each warp; the last row: the statistics so far
        own = cuda.local.array(held, float32)  # this lane's share of the biases' gradient
        own_bias = cuda.local.array(held, float32)
        picking_bias = cuda.local.array(held, float32)
        there_bias = cuda.local.array(held, float32)
        picking = cuda.local.array(held, float32)
        there = cuda.local.array(held, float32)
        here = cuda.local.array(held, float32)
        weight = cuda.local.array(held, float32)
        before = cuda.local.array(STATS, float32)
        thread = uint32(cuda.threadIdx.x)
        lane = uint32(thread % uint32(lanes))
        warp = uint32(thread // uint32(lanes))
        block = uint32(cuda.blockIdx.x)
        batch = uint32(errors.shape[0])
        picker = online if double == 1 else target
        picker_bias = bias if double == 1 else target_bias
        picker_row = batch if double == 1 else uint32(0)
        for k in range(held):
            c = uint32(min(uint32(2 * (lane + (k // 2) * lanes) + k % 2), uint32(columns - 1)))
            own[k] = float32(0.0)
            own_bias[k] = bias[c]
            picking_bias[k] = picker_bias[c]
            there_bias[k] = target_bias[c]
        for k in range(STATS):  # early: at the end all would wait for it
            before[k] = stats[block, k]
        whole_sum = float32(0.0)
        loss_sum = float32(0.0)
        error_sum = float32(0.0)
        q_sum = float32(0.0)
        inverse = settings[0]
        edge = settings[1]
        # (Steps of a number that is not known beforehand keep the compiler from unrolling: small code starts sooner.)
        i = uint32(block * warps + warp)
        while i < batch:
            # All that is read of a sample is asked for before any of it is used; past the end, the last column again.
            for k in range(held):
                c = uint32(min(uint32(2 * (lane + (k // 2) * lanes) + k % 2), uint32(columns - 1)))
                picking[k] = picker[uint32(picker_row + i), c]
                there[k] = target[i, c]
                here[k] = online[i, c]
            action = uint32(taken[i] + 1)
            reward = rewards[i]
            discount = discounts[i]
            flag = flags[i]
            importance = weights[i]
            converge()
            # The next action: the largest advantage, the first of equals.
            top = float32(-math.inf)
            place = uint32(columns)
            for k in range(held):
                c = uint32(2 * (lane + (k // 2) * lanes) + k % 2)
                value = picking[k] + picking_bias[k]
                if c >= uint32(1) and c <= uint32(actions) and value > top:
                    top = value
                    place = c
            best = float32(warp_max(top, scratch))
            if rounds == 1:  # columns ascend with the lanes
                place = uint32(warp_broadcast(int32(place), warp_first(top == best, scratch), scratch))
            else:
                place = uint32(-int32(warp_max(-int32(place) if top == best else -int32(columns), scratch)))
            following = float32(0.0)
            q = float32(0.0)
            for k in range(held):
                c = uint32(2 * (lane + (k // 2) * lanes) + k % 2)
                factor = float32(1.0) if c == uint32(0) else -share
                weight[k] = factor + (float32(1.0) if c == action else float32(0.0))
                if c <= uint32(actions):
                    following += (there[k] + there_bias[k]) * (factor + (float32(1.0) if c == place else float32(0.0)))
                    q += (here[k] + own_bias[k]) * weight[k]
            following = float32(warp_sum(following, scratch))
            q = float32(warp_sum(q, scratch))
            y = reward
            if flag & TERMINATED == 0:
                y += discount * following
            error = q - y
            slope = error  # a NaN stays one, so that the step is skipped
            size = abs(error)
            loss = float32(0.5) * error * error
            if size > edge:
                slope = edge if error > float32(0.0) else -edge
                loss = edge * (size - float32(0.5) * edge)
            slope *= importance * inverse
            loss *= importance
            for r in range(rounds):
                pair = uint32(lane + r * lanes)
                even = slope * weight[2 * r] if uint32(2 * pair) <= uint32(actions) else float32(0.0)
                odd = slope * weight[2 * r + 1] if uint32(2 * pair) < uint32(actions) else float32(0.0)
                own[2 * r] += even
                own[2 * r + 1] += odd
                if pair < uint32(pairs):
                    gradient[i, pair] = pack(even, odd)
            if lane == uint32(0):
                errors[i] = error
                values[i] = q
            whole_sum += loss
            if loss - loss == float32(0.0) and q - q == float32(0.0):
                loss_sum += loss
                error_sum += size
                q_sum += q
            i = uint32(i + warps * cuda.gridDim.x)
        for r in range(rounds):
            pair = uint32(lane + r * lanes)
            if pair < uint32(pairs):
                sums[warp, uint32(2 * pair)] = own[2 * r]
                sums[warp, uint32(2 * pair + 1)] = own[2 * r + 1]
        if thread == uint32(0):
            for k in range(STATS):
                sums[warps, columns + k] = before[k]
        if lane == uint32(0):
            sums[warp, columns] = loss_sum
            sums[warp, columns + 1] = error_sum
            sums[warp, columns + 2] = q_sum
            sums[warp, columns + STATS] = whole_sum
        cuda.syncthreads()
        c = thread
        while c < uint32(width):
            total = float32(0.0)
            for other in range(warps):
                total += sums[other, c]
            if c < uint32(columns):
                partial[block, uint32(offset + c)] = total
            elif c < uint32(columns + STATS):
                stats[block, uint32(c - columns)] = sums[warps, c] + total
            else:
                losses[block, 0] = total
            c = uint32(c + cuda.blockDim.x)

    # With a limit, though it is not reached, the compiler does not save registers by waiting for the first reads before the others.
    return cached(jit(dqn_loss, max_registers=most_registers(lanes * warps)))
