"""The critic's last layer alone: value = hidden . weight + bias, a warp a row.

hidden uint32 [R, H / 2]: bf16 pairs; head float32 [H + 1]: weight and bias; values float32 [R], from element `first` on.
Cost: memory-bound, 2 H bytes a row.
"""

from functools import lru_cache

from numba import int64
from numpy import float32

from numba_rl.gpu import cuda, jit, warp_sum
from numba_rl.kernel_cache import cached
from numba_rl.kernels.bf16 import high, low


@lru_cache
def make_value_head(lanes=32):
    """The kernel for warps of `lanes` threads: 32 on a GPU, fewer in the simulator."""

    def value_head(hidden, head, first, values):
        scratch = cuda.shared.array(32, float32)
        lane = cuda.threadIdx.x % lanes
        row = int64(cuda.blockIdx.x) * (cuda.blockDim.x // lanes) + cuda.threadIdx.x // lanes
        inside = row < hidden.shape[0]
        total = float32(0.0)
        if inside:
            for pair in range(lane, hidden.shape[1], lanes):
                word = hidden[row, pair]
                total += low(word) * head[2 * pair] + high(word) * head[2 * pair + 1]
        total = warp_sum(total, scratch)
        if inside and lane == 0:
            values[first + row] = total + head[2 * hidden.shape[1]]

    return cached(jit(value_head))
