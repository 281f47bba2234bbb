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
    """`word` with the quarters zeroed whose output is zero. Outputs of a ReLU are +0 or positive: a zero quarter was cut."""
    mask = uint64(0)
    if output & uint64(0x7FFF) != uint64(0):
        mask |= uint64(0xFFFF)
    if output & uint64(0x7FFF0000) != uint64(0):
        mask |= uint64(0xFFFF0000)
    if output & uint64(0x7FFF00000000) != uint64(0):
        mask |= uint64(0xFFFF00000000)
    if output & uint64(0x7FFF000000000000) != uint64(0):
        mask |= uint64(0xFFFF000000000000)
    return word & mask


masked = _masked.device


@lru_cache
def make_relu_grad(lanes=32):
    """The kernel for blocks of `lanes` word columns: 32 on a GPU, fewer in the simulator."""
    width = 4 * lanes

    def relu_grad(gradient, hidden, partial, offset):
        sums = cuda.shared.array((ROWS, width), float32)
        lane = cuda.threadIdx.x % lanes
        row = cuda.threadIdx.x // lanes
        column = cuda.blockIdx.x * lanes + lane
        rows = gradient.shape[0]
        stride = ROWS * cuda.gridDim.y
        a = float32(0.0)
        b = float32(0.0)
        c = float32(0.0)
        d = float32(0.0)
        if column < gradient.shape[1]:
            words = cuda.local.array(FLYING, uint64)
            outputs = cuda.local.array(FLYING, uint64)
            for m in range(cuda.blockIdx.y * ROWS + row, rows, FLYING * stride):
                for k in range(FLYING):  # past the end, the last row is read again: no branch between the reads
                    words[k] = gradient[min(m + k * stride, rows - 1), column]
                    outputs[k] = hidden[min(m + k * stride, rows - 1), column]
                for k in range(FLYING):
                    if m + k * stride < rows:
                        word = masked(words[k], outputs[k])
                        gradient[m + k * stride, column] = word
                        a += low(uint32(word & uint64(0xFFFFFFFF)))
                        b += high(uint32(word & uint64(0xFFFFFFFF)))
                        c += low(uint32(word >> uint64(_SHIFT)))
                        d += high(uint32(word >> uint64(_SHIFT)))
        sums[row, 4 * lane] = a
        sums[row, 4 * lane + 1] = b
        sums[row, 4 * lane + 2] = c
        sums[row, 4 * lane + 3] = d
        cuda.syncthreads()
        for place in range(cuda.threadIdx.x, width, cuda.blockDim.x):
            target = cuda.blockIdx.x * width + place
            if target < 4 * gradient.shape[1]:
                total = float32(0.0)
                for other in range(ROWS):
                    total += sums[other, place]
                partial[cuda.blockIdx.y, offset + target] = total

    return cached(jit(relu_grad))
