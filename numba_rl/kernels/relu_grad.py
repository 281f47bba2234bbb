"""Backward of ReLU in place, and the column sums of the result, which are the bias gradient of the layer.

gradient uint64 [M, C]: four bf16 a word, rewritten as zero where hidden (uint64 [M, C], the layer's output) is not above
zero; partial float32 [G, B]: row g gets the sums of block row g, from column `offset` on, so that the total is added later
in a fixed order (no atomics). Launch: grid (ceil(C / lanes), G), block lanes x 8. Cost: memory-bound, 24 bytes a word; four
rows are in flight a thread, so that two blocks of a multiprocessor suffice to keep the memory busy.
"""

from functools import lru_cache

from numba import uint64
from numpy import float32, uint32

from numba_rl.gpu import both, cuda, jit
from numba_rl.kernel_cache import cached
from numba_rl.kernels.bf16 import high, low

ROWS = 8  # rows of a block at a time
FLYING = 4  # rows that a thread has on their way
_SHIFT = 32


@both()
def _masked(word, output):
    """The bf16 pair `word` with the halves zeroed whose output is zero. Outputs of a ReLU are +0, -0 or positive: a zero half was cut."""
    kept = uint32(uint32(uint32(output & uint32(0x7FFF7FFF)) + uint32(0x7FFF7FFF)) & uint32(0x80008000))  # a bit for each half
    return uint32(word & uint32(uint32(kept >> uint32(15)) * uint32(0xFFFF)))


masked = _masked.device


@lru_cache
def make_relu_grad(lanes=32):
    """The kernel for blocks of `lanes` word columns: 32 on a GPU, fewer in the simulator."""
    width = 4 * lanes

    def relu_grad(gradient, hidden, partial, offset):
        sums = cuda.shared.array((ROWS, width), float32)
        thread = uint32(cuda.threadIdx.x)
        lane = uint32(thread % uint32(lanes))
        row = uint32(thread // uint32(lanes))
        column = uint32(cuda.blockIdx.x * lanes + lane)
        rows = uint32(gradient.shape[0])
        columns = uint32(gradient.shape[1])
        stride = uint32(ROWS * cuda.gridDim.y)
        a = float32(0.0)
        b = float32(0.0)
        c = float32(0.0)
        d = float32(0.0)
        if column < columns:
            words = cuda.local.array(FLYING, uint64)
            outputs = cuda.local.array(FLYING, uint64)
            places = cuda.local.array(FLYING, uint32)
            # (Steps of a number that is not known beforehand keep the compiler from unrolling: small code starts sooner.)
            m = uint32(cuda.blockIdx.y * ROWS + row)
            while m < rows:
                for k in range(FLYING):  # past the end, the last row is read again: no branch between the reads
                    places[k] = min(uint32(m + k * stride), uint32(rows - 1))
                    words[k] = gradient[places[k], column]
                    outputs[k] = hidden[places[k], column]
                for k in range(FLYING):
                    if uint32(m + k * stride) < rows:
                        left = masked(uint32(words[k] & uint64(0xFFFFFFFF)), uint32(outputs[k] & uint64(0xFFFFFFFF)))
                        right = masked(uint32(words[k] >> uint64(_SHIFT)), uint32(outputs[k] >> uint64(_SHIFT)))
                        gradient[places[k], column] = uint64(left) | (uint64(right) << uint64(_SHIFT))
                        a += low(left)
                        b += high(left)
                        c += low(right)
                        d += high(right)
                m = uint32(m + FLYING * stride)
        first = uint32(uint32(4) * lane)
        sums[row, first] = a
        sums[row, uint32(first + 1)] = b
        sums[row, uint32(first + 2)] = c
        sums[row, uint32(first + 3)] = d
        cuda.syncthreads()
        place = thread
        while place < uint32(width):
            target = uint32(cuda.blockIdx.x * width + place)
            if target < uint32(4 * columns):
                total = float32(0.0)
                for other in range(ROWS):
                    total += sums[other, place]
                partial[uint32(cuda.blockIdx.y), uint32(offset + target)] = total
            place = uint32(place + cuda.blockDim.x)

    return cached(jit(relu_grad))
