"""Generalised advantage estimation (Schulman et al. 2016), one slot after the other, backwards in time.

    delta[t] = reward[t] + gamma * next[t] - value[t]
    advantage[t] = delta[t] + gamma * lambda * advantage[t + 1], the last term only where the episode goes on
    return[t] = advantage[t] + value[t]

next[t] is value[t + 1] where the episode goes on (at the launch's end too: values has L + 1 rows), 0 after a ruin, and the
value of the true next state where the episode was cut.

Shapes (L steps, N slots): rewards, advantages, returns float32 [L, N]; values float32 [L + 1, N]; ends int16 [L, N]: 0 goes
on, -1 terminated, k >= 1 truncated with its next state's value in final_values float32 [K, N], row k - 1.
Launch: a thread a slot; L dependent steps. The CPU path runs slots in parallel.
"""

from numba import njit, prange
from numpy import float32

from numba_rl.gpu import blocks_for, both, cuda, jit, rebound
from numba_rl.kernel_cache import cached


@both()
def gae_slot(e, rewards, values, ends, final_values, gamma, gae_lambda, advantages, returns):
    """Advantages and returns of slot e."""
    running = float32(0.0)
    for back in range(rewards.shape[0]):
        t = rewards.shape[0] - 1 - back
        end = ends[t, e]
        following = float32(0.0)
        if end == 0:
            following = values[t + 1, e]
        else:
            running = float32(0.0)
            if end > 0:
                following = final_values[end - 1, e]
        running = rewards[t, e] + gamma * following - values[t, e] + gamma * gae_lambda * running
        advantages[t, e] = running
        returns[t, e] = running + values[t, e]


def gae_all(rewards, values, ends, final_values, gamma, gae_lambda, advantages, returns):
    """All slots on the CPU, in parallel; gamma and gae_lambda are float32."""
    for e in prange(rewards.shape[1]):
        gae_slot(e, rewards, values, ends, final_values, gamma, gae_lambda, advantages, returns)


def gae_on_gpu(rewards, values, ends, final_values, gamma, gae_lambda, advantages, returns):
    """All slots, a thread a slot."""
    e = cuda.grid(1)
    if e < rewards.shape[1]:
        gae_slot(e, rewards, values, ends, final_values, gamma, gae_lambda, advantages, returns)


gae_cpu = cached(njit(error_model="numpy", parallel=True)(rebound(gae_all, {"gae_slot": gae_slot.cpu})))
gae_kernel = cached(jit(rebound(gae_on_gpu, {"gae_slot": gae_slot.device})))


def launch_gae(rewards, values, ends, final_values, gamma, gae_lambda, advantages, returns, stream=0, threads=64):
    """Fill advantages and returns (kernel arguments as above) on a GPU or in the simulator."""
    gae_kernel[blocks_for(rewards.shape[1], threads), threads, stream](
        rewards, values, ends, final_values, float32(gamma), float32(gae_lambda), advantages, returns
    )
