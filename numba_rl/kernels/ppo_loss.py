"""The PPO losses and their gradients with respect to the logits and the critic's last hidden layer, in one kernel.

Schulman et al. 2017, equations 7 and 9, as a loss to go down, means over the M samples of a minibatch:

    policy  = -min(r A, clip(r, 1 - c, 1 + c) A),  r = exp(log pi - log pi_old), A = (advantage - mean) / deviation
    value   = value_coef * (v - return)^2
    entropy = -entropy_coef * H(pi)

The value head (H -> 1) is part of it: v = hidden . weight + bias. The log-ratio is held within +-20, so that neither the
ratio nor its product with a zero advantage overflows.

logits float32 [M, 48] without their bias (45 used); logit_bias float32 [48]; hidden uint32 [M, H / 2] bf16 pairs, ReLU
outputs; head float32 [H + 1]: weight and bias; actions, log_probs, advantages, returns [M]; parts: the
minibatches' advantage statistics (kernels.minibatch); settings float32 [4] in device memory: clip, value_coef, entropy_coef,
and 1 where advantages are normalised. Out: logit_gradient uint32 [M, 24];
hidden_gradient uint32 [M, H / 2], the ReLU's backward applied; values float32 [M]: v; partial float32 [G, B]: the gradient of the logit bias (48)
from column `actor_offset` on, of the bias of the hidden layer (H) and the head (H + 1) from `critic_offset` on, summed over
each block; sums float32 [G, 8]: policy, value (without
its weight), entropy, approximate KL ((r - 1) - log r), clipped, samples, 0, 0. Launch: G blocks of 32 groups of
8 lanes, a group a sample; every sum is added in an order that depends on G alone.
"""

import math
from functools import lru_cache

from numpy import float32, uint32

from numba_rl.gpu import cuda, group_max, group_sum, jit, most_registers
from numba_rl.kernel_cache import cached
from numba_rl.kernels.bf16 import high, low, pack
from numba_rl.kernels.minibatch import combined

LIMIT = 20.0
SUMS = 8


LANES, GROUPS_A_BLOCK = 8, 32  # lanes a sample, samples a block at a time


@lru_cache
def make_ppo_loss(actions, hidden_pairs, lanes=LANES, warps=GROUPS_A_BLOCK):
    """The kernel for `actions` logits and a last hidden layer of 2 * hidden_pairs: `warps` groups of `lanes` lanes a block."""
    logit_pairs = (actions + 15) // 16 * 8
    logit_steps = (logit_pairs + lanes - 1) // lanes
    hidden_steps = (hidden_pairs + lanes - 1) // lanes
    # columns of a block's sums: logit bias, bias of the hidden layer, head
    hidden_column = 2 * logit_pairs
    head_column = hidden_column + 2 * hidden_pairs
    columns = head_column + 2 * hidden_pairs + 1
    width = columns + SUMS
    own_logits = 2 * logit_steps  # of a lane
    own_hidden = 2 * hidden_steps
    added = min(warps, 8)  # groups whose sums are read at once

    def ppo_loss(
        logits, logit_bias, hidden, head, taken, old_log_probs, advantages, returns, parts, minibatch, settings,
        logit_gradient, hidden_gradient, values, partial, actor_offset, critic_offset, sums,
    ):  # fmt: skip
        scratch = cuda.shared.array(32, float32)
        gathered = cuda.shared.array((warps, width), float32)
        thread = uint32(cuda.threadIdx.x)
        lane = uint32(thread % uint32(lanes))
        warp = uint32(thread // uint32(lanes))
        block = uint32(cuda.blockIdx.x)
        x = cuda.local.array(own_logits, float32)
        p = cuda.local.array(own_logits, float32)
        bias = cuda.local.array(own_logits, float32)
        bias_sum = cuda.local.array(own_logits, float32)
        words = cuda.local.array(hidden_steps, uint32)
        weight = cuda.local.array(own_hidden, float32)
        weight_sum = cuda.local.array(own_hidden, float32)
        hidden_sum = cuda.local.array(own_hidden, float32)
        clip = settings[0]
        value_coef = settings[1]
        entropy_coef = settings[2]
        normalised = settings[3] > float32(0.0)
        head_bias = head[2 * hidden_pairs]
        for k in range(hidden_steps):
            pair = uint32(lane + k * lanes)
            inside = pair < uint32(hidden_pairs)
            weight[2 * k] = head[uint32(2 * pair)] if inside else float32(0.0)
            weight[2 * k + 1] = head[uint32(2 * pair + 1)] if inside else float32(0.0)
            weight_sum[2 * k] = float32(0.0)
            weight_sum[2 * k + 1] = float32(0.0)
            hidden_sum[2 * k] = float32(0.0)
            hidden_sum[2 * k + 1] = float32(0.0)
        for j in range(own_logits):
            bias[j] = logit_bias[uint32(min(uint32(2 * (lane + j // 2 * lanes) + j % 2), uint32(2 * logit_pairs - 1)))]
            bias_sum[j] = float32(0.0)
        mean = float32(0.0)
        inverse_deviation = float32(1.0)
        if normalised:
            mean, inverse_deviation = combined(parts, minibatch, logits.shape[0])
        samples = uint32(logits.shape[0])
        whole_share = float32(1.0) / float32(samples)
        policy_sum = float32(0.0)
        value_sum = float32(0.0)
        entropy_sum = float32(0.0)
        kl_sum = float32(0.0)
        clipped_sum = float32(0.0)
        head_bias_sum = float32(0.0)
        seen = float32(0.0)
        # All groups of a warp go round equally often, since they share its shuffles; those past the end weigh nothing. (Steps of a number
        # that is not known beforehand keep the compiler from unrolling: small code starts sooner.)
        first = uint32(block * warps)
        while first < samples:
            live = uint32(first + warp) < samples
            i = uint32(min(uint32(first + warp), uint32(samples - 1)))
            share = whole_share if live else float32(0.0)
            # All reads of a sample first: behind the writes of gradients, which might be to the same place, each would be waited for alone.
            taken_action = uint32(taken[i])
            old_log_prob = old_log_probs[i]
            raw_advantage = advantages[i]
            wanted = returns[i]
            for k in range(hidden_steps):
                words[k] = hidden[i, uint32(min(uint32(lane + k * lanes), uint32(hidden_pairs - 1)))]
            for j in range(own_logits):
                column = uint32(2 * (lane + j // 2 * lanes) + j % 2)
                x[j] = logits[i, uint32(min(column, uint32(2 * logit_pairs - 1)))]
            top = float32(-math.inf)
            for k in range(logit_steps):
                for half in range(2):
                    j = 2 * k + half
                    column = uint32(2 * (lane + k * lanes) + half)
                    x[j] = x[j] + bias[j] if column < uint32(actions) else float32(-math.inf)
                top = max(top, max(x[2 * k], x[2 * k + 1]))
            top = group_max(top, lanes, scratch)
            total = float32(0.0)
            for k in range(own_logits):
                p[k] = float32(math.exp(x[k] - top))
                total += p[k]
            total = group_sum(total, lanes, scratch)
            log_total = float32(math.log(total))
            inverse_total = float32(1.0) / total
            taken_log_prob = float32(0.0)
            negative_entropy = float32(0.0)
            for k in range(logit_steps):
                for half in range(2):
                    j = 2 * k + half
                    p[j] = p[j] * inverse_total
                    x[j] = x[j] - top - log_total
                    if p[j] > float32(0.0):
                        negative_entropy += p[j] * x[j]
                    taken_log_prob = x[j] if uint32(2 * (lane + k * lanes) + half) == taken_action else taken_log_prob
            negative_entropy = group_sum(negative_entropy, lanes, scratch)
            log_ratio = group_sum(taken_log_prob, lanes, scratch) - old_log_prob
            held = max(float32(-LIMIT), min(float32(LIMIT), log_ratio))
            ratio = float32(math.exp(held))
            advantage = (raw_advantage - mean) * inverse_deviation
            surrogate = ratio * advantage
            bounded = max(float32(1.0) - clip, min(float32(1.0) + clip, ratio)) * advantage
            slope = float32(0.0)
            if surrogate <= bounded and held == log_ratio:
                slope = -surrogate * share
            for k in range(logit_steps):
                pair = uint32(lane + k * lanes)
                for half in range(2):
                    j = 2 * k + half
                    column = uint32(2 * pair + half)
                    hit = float32(1.0) if column == taken_action else float32(0.0)
                    gradient = slope * (hit - p[j])
                    if p[j] > float32(0.0):
                        gradient += entropy_coef * share * p[j] * (x[j] - negative_entropy)
                    x[j] = gradient if column < uint32(actions) else float32(0.0)
                    bias_sum[j] += x[j]
                if live and pair < uint32(logit_pairs):
                    logit_gradient[i, pair] = pack(x[2 * k], x[2 * k + 1])
            value = float32(0.0)
            for k in range(hidden_steps):
                if uint32(lane + k * lanes) < uint32(hidden_pairs):
                    value += low(words[k]) * weight[2 * k] + high(words[k]) * weight[2 * k + 1]
            value = group_sum(value, lanes, scratch) + head_bias
            error = value - wanted
            value_slope = float32(2.0) * value_coef * share * error
            for k in range(hidden_steps):
                pair = uint32(lane + k * lanes)
                weight_sum[2 * k] += value_slope * low(words[k])
                weight_sum[2 * k + 1] += value_slope * high(words[k])
                even = value_slope * weight[2 * k] if low(words[k]) > float32(0.0) else float32(0.0)
                odd = value_slope * weight[2 * k + 1] if high(words[k]) > float32(0.0) else float32(0.0)
                hidden_sum[2 * k] += even
                hidden_sum[2 * k + 1] += odd
                if live and pair < uint32(hidden_pairs):
                    hidden_gradient[i, pair] = pack(even, odd)
            head_bias_sum += value_slope
            if live:
                if lane == uint32(0):
                    values[i] = value
                policy_sum -= min(surrogate, bounded)
                value_sum += error * error
                entropy_sum -= negative_entropy
                kl_sum += ratio - float32(1.0) - held
                if abs(ratio - float32(1.0)) > clip:
                    clipped_sum += float32(1.0)
                seen += float32(1.0)
            first = uint32(first + warps * cuda.gridDim.x)
        for k in range(hidden_steps):
            pair = uint32(lane + k * lanes)
            if pair < uint32(hidden_pairs):
                column = uint32(2 * pair)
                gathered[warp, uint32(head_column + column)] = weight_sum[2 * k]
                gathered[warp, uint32(head_column + column + 1)] = weight_sum[2 * k + 1]
                gathered[warp, uint32(hidden_column + column)] = hidden_sum[2 * k]
                gathered[warp, uint32(hidden_column + column + 1)] = hidden_sum[2 * k + 1]
        for k in range(logit_steps):
            pair = uint32(lane + k * lanes)
            if pair < uint32(logit_pairs):
                gathered[warp, uint32(2 * pair)] = bias_sum[2 * k]
                gathered[warp, uint32(2 * pair + 1)] = bias_sum[2 * k + 1]
        if lane == uint32(0):
            gathered[warp, columns - 1] = head_bias_sum
            gathered[warp, columns] = policy_sum
            gathered[warp, columns + 1] = value_sum
            gathered[warp, columns + 2] = entropy_sum
            gathered[warp, columns + 3] = kl_sum
            gathered[warp, columns + 4] = clipped_sum
            gathered[warp, columns + 5] = seen
            gathered[warp, columns + 6] = float32(0.0)
            gathered[warp, columns + 7] = float32(0.0)
        cuda.syncthreads()
        column = thread
        while column < uint32(width):
            total = float32(0.0)
            other = uint32(0)
            while other < uint32(warps):
                for k in range(added):
                    total += gathered[uint32(other + k), column]
                other = uint32(other + added * cuda.blockDim.x // (lanes * warps))
            if column < uint32(hidden_column):
                partial[block, uint32(actor_offset + column)] = total
            elif column < uint32(columns):
                partial[block, uint32(critic_offset + column - hidden_column)] = total
            else:
                sums[block, uint32(column - columns)] = total
            column = uint32(column + cuda.blockDim.x)

    # Room for two blocks on a multiprocessor: with what the compiler would take, one, whose latencies nothing hides.
    return cached(jit(ppo_loss, max_registers=most_registers(2 * lanes * warps)))
