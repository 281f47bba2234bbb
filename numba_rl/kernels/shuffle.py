"""The order in which a pass of an update visits its samples: order[i] = place of item i in a random permutation.

order int64 [n]; turn int64 [1] lies in device memory, so that a captured graph can advance it from pass to pass. Nothing is
kept between passes: the order is a function of (seed, turn, n) alone, on the CPU, the simulator and a GPU.
Launch: a thread an item. A permutation costs about as much as writing it.
"""

from numba import njit, prange, uint32

from numba_rl.gpu import blocks_for, cuda, jit
from numba_rl.kernel_cache import cached
from numba_rl.rules.permutation import permuted


def shuffle_all(order, seed, turn):
    """Permutation number turn[0] of `seed`, on the CPU, in parallel."""
    for i in prange(order.shape[0]):
        order[i] = permuted(i, order.shape[0], seed, turn[0])


def shuffle_on_gpu(order, seed, turn):
    """Permutation number turn[0] of `seed`, a thread an item."""
    i = uint32(cuda.grid(1))
    if i < uint32(order.shape[0]):
        order[i] = permuted(i, uint32(order.shape[0]), seed, turn[0])


shuffle_cpu = cached(njit(error_model="numpy", parallel=True)(shuffle_all))
shuffle_kernel = cached(jit(shuffle_on_gpu))


def launch_shuffle(order, seed, turn, stream=0, threads=256):
    """Fill `order` on a GPU or in the simulator."""
    shuffle_kernel[blocks_for(order.shape[0], threads), threads, stream](order, seed, turn)
