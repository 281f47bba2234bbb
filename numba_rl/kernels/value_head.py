"""The critic's last layer alone: value = hidden . weight + bias, a few lanes a row.

hidden uint64 [R, Q]: four bf16 a word; head float32 [4 Q + 1]: weight and bias; values float32 [R], from element `first` on. Launch:
`blocks_of` blocks. Cost: memory-bound, 8 Q bytes a row; a lane has the words of four rows on their way.
"""

from functools import lru_cache

from numba import int64, uint64
from numpy import float32, uint32

from numba_rl.gpu import blocks_for, cuda, group_sum, jit
from numba_rl.kernel_cache import cached
from numba_rl.kernels.bf16 import high, low

LANES = 8  # of a row
FLYING = 4  # rows of a group of lanes
_SHIFT = 32


def blocks_of(rows: int, threads: int, lanes: int = 32) -> int:
    """Blocks of `threads` that cover so many rows."""
    return blocks_for(rows, threads // min(lanes, LANES) * FLYING)


@lru_cache
def make_value_head(quads, lanes=32):
    """The kernel for rows of `quads` words; lanes: threads of a warp, 32 on a GPU, fewer in the simulator."""
    group = min(lanes, LANES)
    each = -(-quads // group)  # words of a lane
    held = FLYING * each
    numbers = 4 * each

    def value_head(hidden, head, first, values):
        scratch = cuda.shared.array(32, float32)
        lane = cuda.threadIdx.x % group
        groups = cuda.blockDim.x // group
        row = int64(cuda.blockIdx.x) * (FLYING * groups) + cuda.threadIdx.x // group
        rows = hidden.shape[0]
        words = cuda.local.array(held, uint64)
        weight = cuda.local.array(numbers, float32)
        for r in range(FLYING):  # past the end, the last row is read again: no branch between the reads
            for k in range(each):
                words[r * each + k] = hidden[min(row + r * groups, rows - 1), min(lane + k * group, quads - 1)]
        for k in range(each):
            quad = lane + k * group
            for c in range(4):
                weight[4 * k + c] = head[4 * quad + c] if quad < quads else float32(0.0)
        for r in range(FLYING):
            total = float32(0.0)
            for k in range(each):
                if lane + k * group < quads:
                    left = uint32(words[r * each + k] & uint64(0xFFFFFFFF))
                    right = uint32(words[r * each + k] >> uint64(_SHIFT))
                    total += low(left) * weight[4 * k] + high(left) * weight[4 * k + 1]
                    total += low(right) * weight[4 * k + 2] + high(right) * weight[4 * k + 3]
            total = group_sum(total, group, scratch)
            if row + r * groups < rows and lane == 0:
                values[first + row + r * groups] = total + head[4 * quads]

    return cached(jit(value_head))
