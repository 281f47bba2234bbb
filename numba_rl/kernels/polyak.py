"""Polyak averaging of a target network (Polyak and Juditsky 1992): target += rate x (weights - target), after a step that was made.

weights, target float32 [n], n even; shadow uint32 [n / 2]: the target as bf16 pairs, written with it; left_out
float32 [1]: not 0, the last step was not made (kernels.adam), and target and shadow stay as they are, bit for bit. Rounded as
torch.lerp rounds. A thread a pair. Cost: memory-bound, 14 n bytes.
"""

from functools import lru_cache

from numba_rl.gpu import blocks_for, cuda, float32, jit
from numba_rl.kernel_cache import cached
from numba_rl.kernels.bf16 import pack

THREADS = 256


@lru_cache
def polyak_kernel():
    """The kernel, for a grid that covers n / 2 threads."""

    def polyak(weights, left_out, rate, target, shadow):
        pair = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        if left_out[0] == float32(0.0) and pair < shadow.shape[0]:
            for half in range(2):
                i = 2 * pair + half
                apart = weights[i] - target[i]
                if rate < float32(0.5):
                    target[i] += rate * apart
                else:  # so that a rate of 1 gives the weights themselves
                    target[i] = weights[i] - apart * (float32(1.0) - rate)
            shadow[pair] = pack(target[2 * pair], target[2 * pair + 1])

    return cached(jit(polyak))


def launch_polyak(weights, left_out, rate, target, shadow, stream=0, threads=THREADS):
    """Move `target` by `rate` (a float32) towards `weights`; arguments as above."""
    polyak_kernel()[blocks_for(shadow.shape[0], threads), threads, stream](weights, left_out, float32(rate), target, shadow)
