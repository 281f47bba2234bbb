"""Backward of ReLU in place, and the column sums of the result, which are the bias gradient of the layer.

gradient uint32 [M, C]: bf16 pairs, rewritten as zero where hidden (uint32 [M, C], the layer's output) is not above zero;
partial float32 [G, B]: row g gets the sums of block row g, from column `offset` on, so that the total is added later in a
fixed order (no atomics). Launch: grid (ceil(C / lanes), G), block lanes x 8. Cost: 12 bytes a pair.
"""

from numpy import float32, uint32

from numba_rl.gpu import cuda, jit
from numba_rl.kernels.bf16 import high, low

ROWS = 8  # rows of a block at a time


def make_relu_grad(lanes=32):
    """The kernel for blocks of `lanes` pair columns: 32 on a GPU, fewer in the simulator."""
    width = 2 * lanes

    def relu_grad(gradient, hidden, partial, offset):
        sums = cuda.shared.array((ROWS, width), float32)
        lane = cuda.threadIdx.x % lanes
        row = cuda.threadIdx.x // lanes
        column = cuda.blockIdx.x * lanes + lane
        even = float32(0.0)
        odd = float32(0.0)
        if column < gradient.shape[1]:
            for m in range(cuda.blockIdx.y * ROWS + row, gradient.shape[0], ROWS * cuda.gridDim.y):
                word = gradient[m, column]
                output = hidden[m, column]
                # Outputs of a ReLU are +0 or positive, so a zero half is one that was cut.
                if output & uint32(0x7FFF) == uint32(0):
                    word = word & uint32(0xFFFF0000)
                if output & uint32(0x7FFF0000) == uint32(0):
                    word = word & uint32(0x0000FFFF)
                gradient[m, column] = word
                even += low(word)
                odd += high(word)
        sums[row, 2 * lane] = even
        sums[row, 2 * lane + 1] = odd
        cuda.syncthreads()
        if row == 0 and column < gradient.shape[1]:
            for other in range(1, ROWS):
                even += sums[other, 2 * lane]
                odd += sums[other, 2 * lane + 1]
            partial[cuda.blockIdx.y, offset + 2 * column] = even
            partial[cuda.blockIdx.y, offset + 2 * column + 1] = odd

    return jit(relu_grad)
