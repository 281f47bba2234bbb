"""Inclusive prefix sums of a float32 array of any length (Hillis and Steele 1986, "Data parallel algorithms").

A block scans `threads` neighbouring values in shared memory, log2(threads) rounds, and leaves its total; the totals are scanned
in the same way, level by level, and added to the blocks behind them. Memory beside the array: n / threads + n / threads^2 + ...
floats. The order of additions depends on n and `threads` alone, so reruns are bit-identical.

values, sums float32 [n] (may be the same array). Cost: 2 reads and 2 writes of n values; 2 levels of launches up to
threads^2 values.
"""

from functools import cache

from numba_rl.gpu import blocks_for, cuda, float32, jit
from numba_rl.kernel_cache import cached

THREADS = 1024


@cache
def scan_kernels(threads):
    """(scan, add) kernels for blocks of `threads`, a power of two."""

    def scan(values, sums, totals):
        buffer = cuda.shared.array((2, threads), float32)
        thread = cuda.threadIdx.x
        index = cuda.blockIdx.x * threads + thread
        side = 0
        buffer[0, thread] = values[index] if index < values.shape[0] else float32(0.0)
        cuda.syncthreads()
        distance = 1
        while distance < threads:
            value = buffer[side, thread]
            if thread >= distance:
                value += buffer[side, thread - distance]
            buffer[1 - side, thread] = value
            side = 1 - side
            distance *= 2
            cuda.syncthreads()
        if index < values.shape[0]:
            sums[index] = buffer[side, thread]
        if thread == threads - 1:
            totals[cuda.blockIdx.x] = buffer[side, thread]

    def add(sums, totals):
        index = cuda.blockIdx.x * threads + cuda.threadIdx.x
        if cuda.blockIdx.x > 0 and index < sums.shape[0]:
            sums[index] += totals[cuda.blockIdx.x - 1]

    return cached(jit(scan)), cached(jit(add))


def levels(n: int, threads: int = THREADS) -> list[int]:
    """Lengths of the scratch arrays that `launch_scan` needs for n values: block totals, their totals, ... down to one."""
    lengths = []
    while n > 1 or not lengths:
        n = blocks_for(n, threads)
        lengths.append(n)
    return lengths


def launch_scan(values, sums, scratch, stream=0, threads=THREADS):
    """Fill `sums` with the inclusive prefix sums of `values`. scratch: a float32 array of each length in `levels(n)`."""
    scan, add = scan_kernels(threads)
    arrays = [sums, *scratch]
    for level, totals in enumerate(scratch):
        source = values if level == 0 else arrays[level]
        scan[blocks_for(arrays[level].shape[0], threads), threads, stream](source, arrays[level], totals)
    for level in range(len(scratch) - 2, -1, -1):
        add[blocks_for(arrays[level].shape[0], threads), threads, stream](arrays[level], scratch[level])
