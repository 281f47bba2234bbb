"""n-step transitions from a launch of episodes, and from what the launch before it left open.

From step t of a slot, over k = min(n, steps to the episode's end) steps:

    return = sum over j < k of gamma^j reward[t + j],   discount = gamma^k,   next state = the state after step t + k - 1

A ruin sets TERMINATED; nothing follows it. An episode that is cut sets TRUNCATED; its true next state is the one kept beside
the rollout, not the first state of the next episode. Steps whose n successors are not played yet wait in the tail.

The time line has H + L rows, H of the tail (the last steps of the launches before) and L of the launch:
tail: states, next_states float32 [H, N, W] (next_states: the true next state where the row is a cut), actions int32, rewards
float32, ends int16 [H, N]; launch: as in collect.batched.Rollout. Output row i is time line row i / N, slot i % N:
states, next_states float32 [M, W], actions int32, rewards, discounts float32, flags int32 [M].
Launch: `lanes` threads a transition, fewer than 2^32 in all. Cost: memory-bound, 4 x 4 W bytes a transition.
"""

from numba import int32, njit, prange, uint32
from numpy import float32

from numba_rl.gpu import blocks_for, both, cuda, jit, rebound
from numba_rl.kernel_cache import cached
from numba_rl.kernels.replay_layout import TERMINATED, TRUNCATED

LANES, THREADS = 32, 256


@both()
def transition(
    i, lane, lanes, n, gamma, held, tail_states, tail_next, tail_actions, tail_rewards, tail_ends, states, final_states, actions,
    rewards, ends, out_states, out_next, out_actions, out_rewards, out_discounts, out_flags,
):  # fmt: skip
    """Output row i, the words `lane`, `lane + lanes`, ... of its states; `held` rows of the tail are in use."""
    i = uint32(i)
    held = uint32(held)
    slots = uint32(rewards.shape[1])
    start = uint32(i // slots)
    e = uint32(i - start * slots)
    total = float32(0.0)
    discount = float32(1.0)
    row = start
    end = int32(0)
    step = uint32(0)
    while end == int32(0) and step < uint32(n):
        row = uint32(start + step)
        if row < held:
            reward = tail_rewards[row, e]
            end = int32(tail_ends[row, e])
        else:
            reward = rewards[uint32(row - held), e]
            end = int32(ends[uint32(row - held), e])
        total += discount * reward
        discount *= gamma
        step = uint32(step + uint32(1))
    following = uint32(row + uint32(1))
    word = uint32(lane)
    while word < uint32(states.shape[2]):
        if start < held:
            own = tail_states[start, e, word]
        else:
            own = states[uint32(start - held), e, word]
        if end > int32(0) and row < held:
            reached = tail_next[row, e, word]
        elif end > int32(0):
            reached = final_states[uint32(end - int32(1)), e, word]
        elif following < held:
            reached = tail_states[following, e, word]
        else:
            reached = states[uint32(following - held), e, word]
        out_states[i, word] = own
        out_next[i, word] = reached
        word = uint32(word + uint32(lanes))
    if lane == 0:
        if start < held:
            out_actions[i] = tail_actions[start, e]
        else:
            out_actions[i] = actions[uint32(start - held), e]
        out_rewards[i] = total
        out_discounts[i] = discount
        out_flags[i] = TERMINATED if end < int32(0) else (TRUNCATED if end > int32(0) else 0)


def _transitions_all(
    count, n, gamma, held, tail_states, tail_next, tail_actions, tail_rewards, tail_ends, states, final_states, actions,
    rewards, ends, out_states, out_next, out_actions, out_rewards, out_discounts, out_flags,
):  # fmt: skip
    for i in prange(count):
        transition(
            i, 0, 1, n, gamma, held, tail_states, tail_next, tail_actions, tail_rewards, tail_ends, states, final_states,
            actions, rewards, ends, out_states, out_next, out_actions, out_rewards, out_discounts, out_flags,
        )  # fmt: skip


def _transitions_on_gpu(
    count, lanes, n, gamma, held, tail_states, tail_next, tail_actions, tail_rewards, tail_ends, states, final_states, actions,
    rewards, ends, out_states, out_next, out_actions, out_rewards, out_discounts, out_flags,
):  # fmt: skip
    place = uint32(cuda.grid(1))
    i = uint32(place // uint32(lanes))
    if i < uint32(count):
        transition(
            i, uint32(place - i * uint32(lanes)), lanes, n, gamma, held, tail_states, tail_next, tail_actions, tail_rewards, tail_ends,
            states, final_states, actions, rewards, ends, out_states, out_next, out_actions, out_rewards, out_discounts, out_flags,
        )  # fmt: skip


_transitions_cpu = cached(njit(error_model="numpy", parallel=True)(rebound(_transitions_all, {"transition": transition.cpu})))
transitions_kernel = cached(jit(rebound(_transitions_on_gpu, {"transition": transition.device})))


def transitions_cpu(count, n, gamma, held, tail, rollout, out):
    """Fill the first `count` rows of `out` on the CPU. tail, rollout, out: five, five and six arrays as above."""
    _transitions_cpu(count, n, float32(gamma), held, *tail, *rollout, *out)


def launch_transitions(count, n, gamma, held, tail, rollout, out, stream=0, lanes=LANES, threads=THREADS):
    """The same on a GPU or in the simulator."""
    if count:
        transitions_kernel[blocks_for(count * lanes, threads), threads, stream](
            count, lanes, n, float32(gamma), held, *tail, *rollout, *out
        )
