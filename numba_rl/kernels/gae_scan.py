"""Generalised advantage estimation as a scan over time, for a GPU: what kernels.gae computes, with many threads a slot.

advantage[t] = delta[t] + c[t] * advantage[t + 1], with c[t] = gamma * lambda where the episode goes on and 0 where it ends, is
a composition of affine maps, which is associative. A block owns a few neighbouring slots; a thread composes the map of a
chunk of steps in registers, one thread a slot strings the chunks' maps together from the end, and each thread then walks
its chunk with what comes from behind it. Every input is read once and every output written once: 18 bytes a sample.

Shapes and meaning as in kernels.gae. Launch: ceil(N / slots) blocks of slots x chunks threads; launches longer than
chunks x steps go backwards in several rounds.
"""

from functools import lru_cache

from numpy import float32, int32

from numba_rl.gpu import blocks_for, cuda, jit
from numba_rl.kernel_cache import cached

OUTSIDE = int32(-2)  # beside the kinds of `ends`


@lru_cache
def gae_scan_kernel(slots, chunks, steps):
    """The kernel for blocks of `slots` x `chunks` threads, each with `steps` steps in registers."""
    round_steps = chunks * steps
    points = steps + 1

    def gae_scan(rewards, values, ends, final_values, gamma, gae_lambda, advantages, returns):
        offsets = cuda.shared.array((chunks, slots), float32)
        factors = cuda.shared.array((chunks, slots), float32)
        behind = cuda.shared.array(slots, float32)
        delta = cuda.local.array(steps, float32)
        factor = cuda.local.array(steps, float32)
        value = cuda.local.array(points, float32)
        kind = cuda.local.array(steps, int32)
        slot = cuda.threadIdx.x % slots
        chunk = cuda.threadIdx.x // slots
        e = cuda.blockIdx.x * slots + slot
        length = rewards.shape[0]
        inside = e < rewards.shape[1]
        if chunk == 0:
            behind[slot] = float32(0.0)
        for turn in range((length + round_steps - 1) // round_steps):
            first = length - (turn + 1) * round_steps + chunk * steps
            # All loads first and none of them behind a branch, so that they are in flight together. Outside the launch
            # the map is the identity.
            for k in range(steps):
                t = first + k
                there = inside and t >= 0
                value[k] = values[t, e] if there else float32(0.0)
                delta[k] = rewards[t, e] if there else float32(0.0)
                kind[k] = int32(ends[t, e]) if there else OUTSIDE
            value[steps] = values[first + steps, e] if inside and first + steps >= 0 else float32(0.0)
            for k in range(steps):
                following = value[k + 1]
                factor[k] = gamma * gae_lambda
                if kind[k] != 0:
                    following = float32(0.0)
                    factor[k] = float32(0.0)
                    if kind[k] > 0:
                        following = final_values[kind[k] - 1, e]
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
            if chunk == 0:
                running = behind[slot]
                for back in range(chunks):
                    c = chunks - 1 - back
                    here = offsets[c, slot] + factors[c, slot] * running
                    offsets[c, slot] = running  # what comes from behind chunk c
                    running = here
                behind[slot] = running
            cuda.syncthreads()
            running = offsets[chunk, slot]
            for back in range(steps):
                k = steps - 1 - back
                running = delta[k] + factor[k] * running
                if inside and first + k >= 0:
                    advantages[first + k, e] = running
                    returns[first + k, e] = running + value[k]
            cuda.syncthreads()

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
