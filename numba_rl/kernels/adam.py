"""Gradient norms, then Adam with decoupled weight decay (Kingma and Ba 2015, Loshchilov and Hutter 2019) over all parameters at once, both without a word from the host.

Parameters of two networks lie flat, float32 [n]: the weight matrices of the first, of the second, then the biases (the
tail) of the first and of the second. weight_gradient float32 [n_w] comes from matrix products; the tail's gradient is still
spread over partial float32 [G, n - n_w] and is summed here, in a fixed order. `splits` (weights, tail) says where the second
network begins; each network's gradient is clipped by its own norm. `squares` float32 [blocks] holds a sum of squares a
block; the Adam kernel adds them in order in every block, so that all blocks see the same norms. The loss is summed beside them:
loss float32 [1] = sum of parts[g, k] x shares[k] over parts float32 [G', K'] and shares float32 [K <= K'].

The step is skipped, weights and moments untouched, where a norm or the loss is not finite, or where `stop` (this update is not
to be made) or `halted` (none is, any more), float32 [1] each, is not 0; a broken step is counted. left_out float32 [1] then is 1,
else 0.

settings float32 [5] in device memory: learning rate, beta1, beta2, epsilon, weight decay. counts int64 [4]: steps made (even and odd
turns, so that no block reads what another writes), broken steps, broken steps in a row. shadow uint32 [n / 2]: the
parameters as bf16 pairs, written with them. norms float32 [2]: the norms before clipping.
"""

import math
from functools import lru_cache

from numpy import float32

from numba_rl.gpu import cuda, jit, warp_sum
from numba_rl.kernel_cache import cached
from numba_rl.kernels.bf16 import pack

CHUNK = 2048  # weights of a norm block
COLUMNS = 8  # tail columns of a norm block: one memory sector
STRANDS = 32  # threads that share a tail column's sum


def norm_blocks(weights, weight_split, tail, tail_split):
    """Blocks of the norm kernel, which is the length of `squares`."""
    sizes = ((weight_split, CHUNK), (weights - weight_split, CHUNK), (tail_split, COLUMNS), (tail - tail_split, COLUMNS))
    return sum((size + step - 1) // step for size, step in sizes)


@cuda.jit(device=True)
def block_sum(value, scratch, lanes, warps):
    """Sum of `value` over the block, in every thread, added in a fixed order."""
    value = warp_sum(value, scratch)
    cuda.syncthreads()
    if cuda.threadIdx.x % lanes == 0:
        scratch[cuda.threadIdx.x // lanes] = value
    cuda.syncthreads()
    total = float32(0.0)
    for other in range(warps):
        total += scratch[other]
    cuda.syncthreads()
    return total


@lru_cache
def make_kernels(lanes=32, warps=8):
    """(norm, adam) kernels for blocks of `warps` warps of `lanes` threads: 8 x 32 on a GPU, less in the simulator."""
    threads = lanes * warps

    def norm(weight_gradient, partial, tail_gradient, weight_split, tail_split, squares, parts, shares, loss):
        """Grid: norm_blocks(n_w, weight_split, n - n_w, tail_split) blocks and one more, for the loss."""
        scratch = cuda.shared.array(32, float32)
        sums = cuda.shared.array((STRANDS, COLUMNS), float32)
        t = cuda.threadIdx.x
        weights = weight_gradient.shape[0]
        tail = tail_gradient.shape[0]
        block = cuda.blockIdx.x
        first_blocks = (weight_split + CHUNK - 1) // CHUNK
        weight_blocks = first_blocks + (weights - weight_split + CHUNK - 1) // CHUNK
        tail_blocks = weight_blocks + (tail_split + COLUMNS - 1) // COLUMNS
        square = float32(0.0)
        if block == squares.shape[0]:
            for i in range(t, parts.shape[0] * shares.shape[0], threads):
                square += parts[i // shares.shape[0], i % shares.shape[0]] * shares[i % shares.shape[0]]
        elif block < weight_blocks:
            first = block * CHUNK
            stop = weight_split
            if block >= first_blocks:
                first = weight_split + (block - first_blocks) * CHUNK
                stop = weights
            for i in range(first + t, min(first + CHUNK, stop), threads):
                square += weight_gradient[i] * weight_gradient[i]
        else:
            first = (block - weight_blocks) * COLUMNS
            stop = tail_split
            if block >= tail_blocks:
                first = tail_split + (block - tail_blocks) * COLUMNS
                stop = tail
            for place in range(t, STRANDS * COLUMNS, threads):
                column = first + place % COLUMNS
                total = float32(0.0)
                if column < stop:
                    for g in range(place // COLUMNS, partial.shape[0], STRANDS):
                        total += partial[g, column]
                sums[place // COLUMNS, place % COLUMNS] = total
            cuda.syncthreads()
            for place in range(t, COLUMNS, threads):
                column = first + place
                if column < stop:
                    total = float32(0.0)
                    for row in range(STRANDS):
                        total += sums[row, place]
                    tail_gradient[column] = total
                    square += total * total
        total = block_sum(square, scratch, lanes, warps)
        if t == 0:
            if block == squares.shape[0]:
                loss[0] = total
            else:
                squares[block] = total

    def adam(
        parameters, first_moment, second_moment, weight_gradient, tail_gradient, weight_split, tail_split, squares, loss, settings,
        max_norm, stop, halted, left_out, counts, turn, norms, shadow,
    ):  # fmt: skip
        """A thread a pair of parameters; turn is 0 or 1, changing from call to call."""
        scratch = cuda.shared.array(32, float32)
        t = cuda.threadIdx.x
        weights = weight_gradient.shape[0]
        first_blocks = (weight_split + CHUNK - 1) // CHUNK
        weight_blocks = first_blocks + (weights - weight_split + CHUNK - 1) // CHUNK
        tail_blocks = weight_blocks + (tail_split + COLUMNS - 1) // COLUMNS
        pair = cuda.blockIdx.x * cuda.blockDim.x + t
        inside = 2 * pair < parameters.shape[0]
        # The parameters are read before the norms are known: one wait for the memory instead of two.
        held = cuda.local.array(2, float32)
        gradient = cuda.local.array(2, float32)
        first = cuda.local.array(2, float32)
        second = cuda.local.array(2, float32)
        for half in range(2):
            i = min(2 * pair + half, parameters.shape[0] - 1)
            held[half] = parameters[i]
            first[half] = first_moment[i]
            second[half] = second_moment[i]
            gradient[half] = weight_gradient[i] if i < weights else tail_gradient[i - weights]
        own = float32(0.0)
        other = float32(0.0)
        for i in range(t, squares.shape[0], threads):
            if i < first_blocks or (i >= weight_blocks and i < tail_blocks):
                own += squares[i]
            else:
                other += squares[i]
        first_norm = float32(math.sqrt(block_sum(own, scratch, lanes, warps)))
        second_norm = float32(math.sqrt(block_sum(other, scratch, lanes, warps)))
        made = counts[turn]
        # NaN fails the comparison too
        finite = first_norm < float32(math.inf) and second_norm < float32(math.inf) and abs(loss[0]) < float32(math.inf)
        wanted = stop[0] == float32(0.0) and halted[0] == float32(0.0)
        applied = wanted and finite
        if cuda.blockIdx.x == 0 and t == 0:
            counts[1 - turn] = made + 1 if applied else made
            if wanted:
                counts[2] += 0 if finite else 1
                counts[3] = 0 if finite else counts[3] + 1
            left_out[0] = float32(0.0) if applied else float32(1.0)
            norms[0] = first_norm
            norms[1] = second_norm
        if applied:
            rate = settings[0]
            beta1 = settings[1]
            beta2 = settings[2]
            epsilon = settings[3]
            kept = float32(1.0) - rate * settings[4]
            first_scale = min(float32(1.0), max_norm / (first_norm + float32(1e-6)))
            second_scale = min(float32(1.0), max_norm / (second_norm + float32(1e-6)))
            # 1 - beta^t without cancellation for small t
            step = float32(made + 1)
            correction1 = -float32(math.expm1(step * float32(math.log(beta1))))
            correction2 = -float32(math.expm1(step * float32(math.log(beta2))))
            if inside:
                for half in range(2):
                    i = 2 * pair + half
                    is_first = i < weight_split or (i >= weights and i - weights < tail_split)
                    g = gradient[half] * (first_scale if is_first else second_scale)
                    m = beta1 * first[half] + (float32(1.0) - beta1) * g
                    v = beta2 * second[half] + (float32(1.0) - beta2) * g * g
                    first_moment[i] = m
                    second_moment[i] = v
                    held[half] = kept * held[half] - rate / correction1 * m / (float32(math.sqrt(v / correction2)) + epsilon)
                    parameters[i] = held[half]
                shadow[pair] = pack(held[0], held[1])

    return cached(jit(norm)), cached(jit(adam))
