"""Generalised advantage estimation as a scan over time, for a GPU: what kernels.gae computes, with many threads a slot.

advantage[t] = delta[t] + c[t] * advantage[t + 1], with c[t] = gamma * lambda where the episode goes on and 0 where it ends, is
a composition of affine maps, which is associative. A block owns a few neighbouring slots; a thread composes the map of a
chunk of steps in registers, one thread a slot strings the chunks' maps together from the end, and each thread then walks
its chunk with what comes from behind it. Every input is read once and every output written once: 18 bytes a sample.

Shapes and meaning as in kernels.gae. Launch: ceil(N / slots) blocks of slots x chunks threads; launches longer than
chunks x steps go backwards in several rounds.
"""

import math
from functools import lru_cache

from numba import uint32
from numpy import float32, int32

from numba_rl.gpu import blocks_for, cuda, jit
from numba_rl.kernel_cache import cached

OUTSIDE = int32(-2)  # beside the kinds of `ends`


@lru_cache
def gae_scan_kernel(slots, chunks, steps):
    """The kernel for blocks of `slots` x `chunks` threads, each with `steps` steps in registers."""
    round_steps = chunks * steps
    points = steps + 1
    together = math.gcd(chunks, 8)

    def gae_scan(rewards, values, ends, final_values, gamma, gae_lambda, advantages, returns):
        offsets = cuda.shared.array((chunks, slots), float32)
        factors = cuda.shared.array((chunks, slots), float32)
        behind = cuda.shared.array(slots, float32)
        delta = cuda.local.array(steps, float32)
        factor = cuda.local.array(steps, float32)
        value = cuda.local.array(points, float32)
        kind = cuda.local.array(steps, int32)
        some_offsets = cuda.local.array(together, float32)
        some_factors = cuda.local.array(together, float32)
        thread = uint32(cuda.threadIdx.x)
        slot = uint32(thread % uint32(slots))
        chunk = uint32(thread // uint32(slots))
        e = uint32(cuda.blockIdx.x * slots + slot)
        length = int32(rewards.shape[0])
        inside = e < uint32(rewards.shape[1])
        column = uint32(min(e, uint32(rewards.shape[1] - 1)))
        one = uint32(cuda.blockDim.y)  # as a number that the compiler does not know, so that it unrolls no loop: small code starts sooner
        if chunk == uint32(0):
            behind[slot] = float32(0.0)
        end = length  # of the round, one past its last step
        while end > int32(0):
            first = int32(end - round_steps + int32(chunk) * steps)
            # All loads first and none of them behind a branch, so that they are in flight together: outside the launch a
            # neighbour is read in vain, and the map is the identity.
            for k in range(points):
                value[k] = values[uint32(max(int32(first + k), int32(0))), column]
            for k in range(steps):
                delta[k] = rewards[uint32(max(int32(first + k), int32(0))), column]
                kind[k] = int32(ends[uint32(max(int32(first + k), int32(0))), column])
            for k in range(steps):
                if not inside or int32(first + k) < int32(0):
                    kind[k] = OUTSIDE
            for k in range(steps):
                following = value[k + 1]
                factor[k] = gamma * gae_lambda
                if kind[k] != int32(0):
                    following = float32(0.0)
                    factor[k] = float32(0.0)
                    if kind[k] > int32(0):
                        following = final_values[uint32(kind[k] - int32(1)), e]
                delta[k] += gamma * following - value[k]
                if kind[k] == OUTSIDE:
                    delta[k] = float32(0.0)
                    factor[k] = float32(1.0)
            offset = float32(0.0)
            whole = float32(1.0)
            for back in range(steps):
                k = steps - 1 - back
                offset = delta[k] + factor[k] * offset
                whole = factor[k] * whole
            offsets[chunk, slot] = offset
            factors[chunk, slot] = whole
            cuda.syncthreads()
            if chunk == uint32(0):
                running = behind[slot]
                done = uint32(0)
                while done < uint32(chunks):
                    for k in range(together):  # the reads of a few chunks together, since each waits for the one before
                        some_offsets[k] = offsets[uint32(chunks - 1 - k - done), slot]
                        some_factors[k] = factors[uint32(chunks - 1 - k - done), slot]
                    for k in range(together):
                        offsets[uint32(chunks - 1 - k - done), slot] = running  # what comes from behind the chunk
                        running = some_offsets[k] + some_factors[k] * running
                    done = uint32(done + one * together)
                behind[slot] = running
            cuda.syncthreads()
            running = offsets[chunk, slot]
            for back in range(steps):
                k = steps - 1 - back
                running = delta[k] + factor[k] * running
                t = int32(first + k)
                if inside and t >= int32(0):
                    advantages[uint32(t), e] = running
                    returns[uint32(t), e] = running + value[k]
            cuda.syncthreads()
            end = int32(end - int32(one) * round_steps)

    return cached(jit(gae_scan, launch_bounds=slots * chunks))


def shape_for(length, count):
    """(slots, chunks, steps) of a block: narrow blocks where there are few slots, so that all multiprocessors work, and short chunks
    where there are many, so that more threads with fewer registers fit (65,536 slots x 128: 54 us by 4 steps, 79 by 8 on an H200)."""
    slots = 32 if count >= 4096 else 8
    steps = 4 if count >= 32_768 else 8
    chunks = 1
    while chunks * steps < length and slots * chunks < 512:
        chunks *= 2
    return slots, chunks, steps


def launch_gae_scan(rewards, values, ends, final_values, gamma, gae_lambda, advantages, returns, stream=0, shape=None):
    """Fill advantages and returns; arguments as `kernels.gae.launch_gae`. shape: (slots, chunks, steps) of a block."""
    slots, chunks, steps = shape or shape_for(*rewards.shape)
    kernel = gae_scan_kernel(slots, chunks, steps)
    kernel[blocks_for(rewards.shape[1], slots), slots * chunks, stream](
        rewards, values, ends, final_values, float32(gamma), float32(gae_lambda), advantages, returns
    )
