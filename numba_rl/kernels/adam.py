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

from numba_rl.gpu import cuda, device, int32, jit, uint32, warp_broadcast, warp_sum
from numba_rl.kernel_cache import cached
from numba_rl.kernels.bf16 import pack

CHUNK = 2048  # weights of a norm block
COLUMNS = 8  # tail columns of a norm block: one memory sector
STRANDS = 32  # threads that share a tail column's sum
AHEAD = 4  # of its rows that a thread reads at once


def norm_blocks(weights, weight_split, tail, tail_split):
    """Blocks of the norm kernel, which is the length of `squares`."""
    sizes = ((weight_split, CHUNK), (weights - weight_split, CHUNK), (tail_split, COLUMNS), (tail - tail_split, COLUMNS))
    return sum((size + step - 1) // step for size, step in sizes)


@device
def chunks(size, step):
    """Blocks of `step` that cover `size` items, uint32."""
    return uint32(uint32(size + uint32(step - 1)) // uint32(step))


@device
def block_ends(weights, weight_split, tail_split):
    """Where the norm blocks of the first network's weights, of all weights, and of the first network's tail end, uint32 each."""
    first_blocks = chunks(weight_split, CHUNK)
    weight_blocks = uint32(first_blocks + chunks(uint32(weights - weight_split), CHUNK))
    return first_blocks, weight_blocks, uint32(weight_blocks + chunks(tail_split, COLUMNS))


@device
def root(square):
    """Square root of a number that is not negative. (Zeros, here and below, are kept from instructions that do them by a slow call.)"""
    zero = square == float32(0.0)
    found = float32(math.sqrt(float32(1.0) if zero else square))
    return square if zero else found


@lru_cache
def make_kernels(lanes=32, warps=8):
    """(norm, adam) kernels for blocks of `warps` warps of `lanes` threads: 8 x 32 on a GPU, less in the simulator; CHUNK is a multiple.

    (Loops step by blockDim, which is that number, or by a few times `one`, so that the compiler does not unroll them: small code starts
    sooner.)
    """
    threads = lanes * warps
    reads = CHUNK // threads

    def norm(weight_gradient, partial, tail_gradient, weight_split, tail_split, squares, parts, shares, loss):
        """Grid: norm_blocks(n_w, weight_split, n - n_w, tail_split) blocks and one more, for the loss."""
        scratch = cuda.shared.array(32, float32)
        sums = cuda.shared.array((STRANDS, COLUMNS), float32)
        warp_sums = cuda.shared.array(warps, float32)
        t = uint32(cuda.threadIdx.x)
        block = uint32(cuda.blockIdx.x)
        one = uint32(uint32(cuda.blockDim.x) // uint32(threads))  # a number that the compiler does not know
        weights = uint32(weight_gradient.shape[0])
        first_weights = uint32(weight_split)
        first_tail = uint32(tail_split)
        first_blocks, weight_blocks, tail_blocks = block_ends(weights, first_weights, first_tail)
        square = float32(0.0)
        if block == uint32(squares.shape[0]):
            columns = uint32(shares.shape[0])
            end = uint32(uint32(parts.shape[0]) * columns)
            i = t
            while i < end:
                row = uint32(i // columns)
                column = uint32(i - row * columns)
                square += parts[row, column] * shares[column]
                i = uint32(i + cuda.blockDim.x)
        elif block < weight_blocks:
            first = uint32(block * CHUNK)
            stop = first_weights
            if block >= first_blocks:
                first = uint32(first_weights + uint32(block - first_blocks) * CHUNK)
                stop = weights
            # All reads are under way before the first is waited for.
            held = cuda.local.array(reads, float32)
            first = uint32(first + t)
            left = int32(int32(stop) - int32(first))
            for k in range(reads):
                held[k] = weight_gradient[first + k * threads] if left > int32(k * threads) else float32(0.0)
            for k in range(reads):
                square += held[k] * held[k]
        else:
            first = uint32(uint32(block - weight_blocks) * COLUMNS)
            stop = first_tail
            if block >= tail_blocks:
                first = uint32(first_tail + uint32(block - tail_blocks) * COLUMNS)
                stop = uint32(tail_gradient.shape[0])
            rows = uint32(partial.shape[0])
            some = cuda.local.array(AHEAD, float32)
            place = t
            while place < uint32(STRANDS * COLUMNS):
                strand = uint32(place // uint32(COLUMNS))
                column = uint32(first + place % uint32(COLUMNS))
                total = float32(0.0)
                g = strand if column < stop else rows
                while g < rows:
                    for k in range(AHEAD):
                        row = uint32(g + k * STRANDS)
                        some[k] = partial[row, column] if row < rows else float32(0.0)
                    for k in range(AHEAD):
                        total += some[k]
                    g = uint32(g + AHEAD * STRANDS)
                sums[strand, uint32(place % uint32(COLUMNS))] = total
                place = uint32(place + cuda.blockDim.x)
            cuda.syncthreads()
            place = t
            while place < uint32(COLUMNS):
                column = uint32(first + place)
                if column < stop:
                    total = float32(0.0)
                    strand = uint32(0)
                    while strand < uint32(STRANDS):
                        for k in range(8):
                            total += sums[uint32(strand + k), place]
                        strand = uint32(strand + 8 * one)
                    tail_gradient[column] = total
                    square += total * total
                place = uint32(place + cuda.blockDim.x)
        square = warp_sum(square, scratch)
        if t % uint32(lanes) == uint32(0):
            warp_sums[uint32(t // uint32(lanes))] = square
        cuda.syncthreads()
        if t == uint32(0):
            total = float32(0.0)
            for warp in range(warps):
                total += warp_sums[warp]
            if block == uint32(squares.shape[0]):
                loss[0] = total
            else:
                squares[block] = total

    def adam(
        parameters, first_moment, second_moment, weight_gradient, tail_gradient, weight_split, tail_split, squares, loss, settings,
        max_norm, stop, halted, left_out, counts, turn, norms, shadow,
    ):  # fmt: skip
        """A thread a pair of parameters; turn is 0 or 1, changing from call to call."""
        scratch = cuda.shared.array(32, float32)
        warp_sums = cuda.shared.array((2, warps), float32)
        corrections = cuda.shared.array(2, float32)
        t = uint32(cuda.threadIdx.x)
        size = uint32(parameters.shape[0])
        weights = uint32(weight_gradient.shape[0])
        first_weights = uint32(weight_split)
        first_tail = uint32(tail_split)
        first_blocks, weight_blocks, tail_blocks = block_ends(weights, first_weights, first_tail)
        one = uint32(uint32(cuda.blockDim.x) // uint32(threads))  # a number that the compiler does not know
        pair = uint32(uint32(cuda.blockIdx.x) * uint32(cuda.blockDim.x) + t)
        inside = pair < uint32(size // uint32(2))
        # All that is read is asked for before the norms are known: one wait for the memory instead of several.
        held = cuda.local.array(2, float32)
        gradient = cuda.local.array(2, float32)
        first = cuda.local.array(2, float32)
        second = cuda.local.array(2, float32)
        place = uint32(2 * min(pair, uint32(uint32(size // uint32(2)) - 1)))
        for half in range(2):
            i = uint32(place + half)
            held[half] = parameters[place + half]
            first[half] = first_moment[place + half]
            second[half] = second_moment[place + half]
            gradient[half] = weight_gradient[i] if i < weights else tail_gradient[uint32(i - weights)]
        rate = settings[0]
        beta1 = settings[1]
        beta2 = settings[2]
        epsilon = settings[3]
        decay = settings[4]
        made = counts[uint32(turn)]
        broken = counts[2]
        broken_row = counts[3]
        stopped = stop[0]
        ended = halted[0]
        loss_now = loss[0]
        if t >= uint32(threads - 2):
            # 1 - beta^t without cancellation for small t, by one warp while the others are at the norms
            which = uint32(t - uint32(threads - 2))
            beta = beta2 if which == uint32(1) else beta1
            corrections[which] = -float32(math.expm1(float32(made + 1) * float32(math.log(beta))))
        own = float32(0.0)
        other = float32(0.0)
        block = t
        while block < uint32(squares.shape[0]):
            value = squares[block]
            if block < first_blocks or (block >= weight_blocks and block < tail_blocks):
                own += value
            else:
                other += value
            block = uint32(block + cuda.blockDim.x)
        own = warp_sum(own, scratch)
        other = warp_sum(other, scratch)
        if t % uint32(lanes) == uint32(0):
            warp_sums[0, uint32(t // uint32(lanes))] = own
            warp_sums[1, uint32(t // uint32(lanes))] = other
        cuda.syncthreads()
        # The first network's norm in even lanes and the second's in odd ones, by the same code. A scale below 0: the norm is not finite
        # (NaN fails the comparison too).
        total = float32(0.0)
        for warp in range(warps):
            total += warp_sums[uint32(t % uint32(2)), warp]
        norm_here = root(total)
        if pair < uint32(2):
            norms[pair] = norm_here
        scale = min(float32(1.0), max_norm / (norm_here + float32(1e-6))) if norm_here < float32(math.inf) else float32(-1.0)
        first_scale = warp_broadcast(scale, 0, scratch)
        second_scale = warp_broadcast(scale, 1, scratch)
        finite = min(first_scale, second_scale) >= float32(0.0) and abs(loss_now) < float32(math.inf)
        wanted = stopped == float32(0.0) and ended == float32(0.0)
        applied = wanted and finite
        if pair == uint32(0):
            counts[uint32(1 - turn)] = made + 1 if applied else made
            if wanted:
                counts[2] = broken if finite else broken + 1
                counts[3] = 0 if finite else broken_row + 1
            left_out[0] = float32(0.0) if applied else float32(1.0)
        if applied and inside:
            kept = float32(1.0) - rate * decay
            quotient = rate / corrections[0]
            correction2 = corrections[1]
            # Always the first of the two, which then change places: the code is there once.
            i = place
            while i < uint32(place + 2):
                is_first = i < first_weights or (i >= weights and i < uint32(weights + first_tail))
                g = gradient[0] * (first_scale if is_first else second_scale)
                m = beta1 * first[0] + (float32(1.0) - beta1) * g
                v = beta2 * second[0] + (float32(1.0) - beta2) * g * g
                first_moment[i] = m
                second_moment[i] = v
                zero = v == float32(0.0)
                spread = root((float32(1.0) if zero else v) / correction2)
                spread = (float32(0.0) if zero else spread) + epsilon
                move = quotient * m
                zero = move == float32(0.0)
                moved = (float32(1.0) if zero else move) / spread
                now = kept * held[0] - (move if zero else moved)
                parameters[i] = now
                held[0], held[1] = held[1], now
                gradient[0], gradient[1] = gradient[1], gradient[0]
                first[0], first[1] = first[1], first[0]
                second[0], second[1] = second[1], second[0]
                i = uint32(i + one)
            shadow[pair] = pack(held[0], held[1])

    return cached(jit(norm)), cached(jit(adam))
