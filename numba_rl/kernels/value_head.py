"""The critic's last layer alone: value = hidden . weight + bias, a few lanes a row.

hidden uint64 [R, Q]: four bf16 a word; head float32 [4 Q + 1]: weight and bias; values float32 [R], from element `first` on. Launch:
`blocks_of` blocks. Cost: memory-bound, 8 Q bytes a row; a lane has the words of four rows on their way.
"""

from functools import lru_cache

from numba import uint64
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
        thread = uint32(cuda.threadIdx.x)
        lane = uint32(thread % uint32(group))
        groups = uint32(uint32(cuda.blockDim.x) // uint32(group))
        row = uint32(cuda.blockIdx.x * (FLYING * groups) + thread // uint32(group))
        rows = uint32(hidden.shape[0])
        words = cuda.local.array(held, uint64)
        weight = cuda.local.array(numbers, float32)
        totals = cuda.local.array(FLYING, float32)
        for r in range(FLYING):  # past the end, the last row is read again: no branch between the reads
            for k in range(each):
                place = uint32(min(uint32(row + r * groups), uint32(rows - 1)))
                words[r * each + k] = hidden[place, uint32(min(uint32(lane + k * group), uint32(quads - 1)))]
        for k in range(each):
            quad = uint32(lane + k * group)
            for c in range(4):
                weight[4 * k + c] = head[uint32(4 * quad + c)] if quad < uint32(quads) else float32(0.0)
        bias = head[4 * quads]
        for r in range(FLYING):
            total = float32(0.0)
            for k in range(each):
                word = words[r * each + k] if uint32(lane + k * group) < uint32(quads) else uint64(0)  # adds zeros: no branch here either
                left = uint32(word & uint64(0xFFFFFFFF))
                right = uint32(word >> uint64(_SHIFT))
                total += low(left) * weight[4 * k] + high(left) * weight[4 * k + 1]
                total += low(right) * weight[4 * k + 2] + high(right) * weight[4 * k + 3]
            totals[r] = total
        for r in range(FLYING):
            total = group_sum(totals[r], group, scratch)
            if uint32(row + r * groups) < rows and lane == uint32(0):
                values[first + uint32(row + r * groups)] = total + bias

    # With a limit, though it is not reached, the compiler does not save registers by waiting for the first reads before the others.
    return cached(jit(value_head, max_registers=255))
