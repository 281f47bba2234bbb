"""One step of every episode slot from a batch of logits: draw, play, start anew where an episode ends, next state.

The batched collector calls it once a step, between two forward passes of any network. A slot is independent of all others
and its random draws are addressed (see rules.philox), so the result does not depend on threads, blocks or launch lengths.

Shapes (N slots, L steps of a launch, F market features, A actions):
logits float32 [N, A]; features float32 [T, F] (scaled); prices float64 [T, 4]; slots: see kernels.slots;
states float32 [L + 1, N, F + 3]; actions int32, log_probs float32, rewards float32, bars int32 [L, N];
ends int16 [L, N]: 0 the episode goes on, -1 terminated (ruin), k >= 1 truncated, its true next state in row k - 1 of
final_states float32 [K, N, F + 3]; finals int32 [N]: truncations of the launch so far; status int32 [N]: 0, or 1 + the
first step at which the slot's logits were no distribution (NaN).
"""

from functools import cache
from typing import NamedTuple

from numba import njit, prange
from numpy import float32

from numba_rl.gpu import Both, both, cuda, jit, rebound
from numba_rl.kernel_cache import cached
from numba_rl.kernels.sampling import draw, greedy
from numba_rl.kernels.slots import BAR, CLOSE, EPISODE, PLAYED, STEP, load_slot, store_slot
from numba_rl.rules.actions import FLAT, NORMAL, compose
from numba_rl.rules.game import fresh_slot, make_play, play
from numba_rl.rules.philox import ACTION, START, below, uniform
from numba_rl.rules.portfolio import portfolio_features

TERMINATED = -1


class Launch(NamedTuple):
    """What a collection needs to know beside its arrays: all int64 but the last, float64."""

    seed: int
    start: int  # first bar of the range
    stop: int  # one past its last bar
    greedy: int  # 1: largest logit instead of a draw; log-probabilities are 0
    given: int  # 1: actions are given in `actions`; logits are not read and log-probabilities are 0
    inverse_temperature: float


@both()
def write_state(states, t, e, features, bar, equity, share, spread):
    """One row of the network's input: the features of a bar, then the three portfolio features."""
    width = features.shape[1]
    for index in range(width):
        states[t, e, index] = features[bar, index]
    states[t, e, width] = float32(equity)
    states[t, e, width + 1] = float32(share)
    states[t, e, width + 2] = float32(spread)


@both()
def first_bar(launch, episode, e, length):
    """First bar of a slot's episode: uniform over the range, early enough that a whole episode fits where it can."""
    last = launch.stop - 1 - min(length, launch.stop - 1 - launch.start)
    return launch.start + below(last - launch.start + 1, launch.seed, START, e, episode, 0, 0)


@both(load_slot, store_slot, write_state, first_bar)
def start_slot(e, portfolio, barrier, window, shaping, clock, prices, features, states, t, launch, rules):
    """Begin a new episode in slot e and write its first state to row t."""
    bar = first_bar(launch, clock[e, EPISODE], e, rules.episode_length)
    slot = fresh_slot(prices[bar, CLOSE], load_slot(portfolio, barrier, window, shaping, e).shaping, rules)
    store_slot(slot, portfolio, barrier, window, shaping, e)
    clock[e, BAR] = bar
    clock[e, STEP] = 0
    equity, share, spread = portfolio_features(slot.portfolio, rules)
    write_state(states, t, e, features, bar, equity, share, spread)


@both(draw, greedy, load_slot, store_slot, write_state, start_slot)
def step_slot(
    e, t, logits, portfolio, barrier, window, shaping, clock, prices, features, states, final_states, finals, actions, log_probs,
    rewards, bars, ends, status, launch, rules,
):  # fmt: skip
    """Play step t of slot e; states row t + 1 is what the policy sees next."""
    bar = clock[e, BAR]
    scale = float32(launch.inverse_temperature)
    if launch.given == 1:
        action = actions[t, e]
        log_prob = float32(0.0)
    elif launch.greedy == 1:
        action = greedy(logits, e, logits.shape[1])
        log_prob = float32(0.0)
    else:
        u = uniform(launch.seed, ACTION, e, 0, clock[e, PLAYED], 0)
        action, log_prob = draw(logits, e, logits.shape[1], float32(u), scale)
    if action < 0:
        if status[e] == 0:
            status[e] = t + 1
        action = compose(FLAT, 0, NORMAL)
    slot, outcome, reward = play(
        load_slot(portfolio, barrier, window, shaping, e),
        action,
        prices[bar, CLOSE],
        prices[bar + 1, 0],
        prices[bar + 1, 1],
        prices[bar + 1, 2],
        prices[bar + 1, CLOSE],
        clock[e, STEP],
        rules,
    )
    actions[t, e] = action
    log_probs[t, e] = log_prob
    rewards[t, e] = float32(reward)
    bars[t, e] = bar
    store_slot(slot, portfolio, barrier, window, shaping, e)
    clock[e, BAR] = bar + 1
    clock[e, STEP] += 1
    clock[e, PLAYED] += 1
    equity, share, spread = portfolio_features(slot.portfolio, rules)
    end = 0
    if outcome.terminated == 1:
        end = TERMINATED
    elif clock[e, STEP] >= rules.episode_length or bar + 2 >= launch.stop:
        write_state(final_states, finals[e], e, features, bar + 1, equity, share, spread)
        finals[e] += 1
        end = finals[e]
    ends[t, e] = end
    if end == 0:
        write_state(states, t + 1, e, features, bar + 1, equity, share, spread)
    else:
        clock[e, EPISODE] += 1
        start_slot(e, portfolio, barrier, window, shaping, clock, prices, features, states, t + 1, launch, rules)


def step_all(
    t, logits, portfolio, barrier, window, shaping, clock, prices, features, states, final_states, finals, actions, log_probs,
    rewards, bars, ends, status, launch, rules,
):  # fmt: skip
    """Step t of all slots on the CPU, in parallel."""
    for e in prange(clock.shape[0]):
        step_slot(
            e, t, logits, portfolio, barrier, window, shaping, clock, prices, features, states, final_states, finals, actions,
            log_probs, rewards, bars, ends, status, launch, rules,
        )  # fmt: skip


def start_all(portfolio, barrier, window, shaping, clock, prices, features, states, t, launch, rules):
    """Begin a new episode in every slot on the CPU."""
    for e in prange(clock.shape[0]):
        start_slot(e, portfolio, barrier, window, shaping, clock, prices, features, states, t, launch, rules)


def step_on_gpu(
    t, logits, portfolio, barrier, window, shaping, clock, prices, features, states, final_states, finals, actions, log_probs,
    rewards, bars, ends, status, launch, rules,
):  # fmt: skip
    """Step t of all slots, a thread a slot. t int32 [1] lies on the device, so that a captured graph can advance it."""
    e = cuda.grid(1)
    if e < clock.shape[0]:
        step_slot(
            e, t[0], logits, portfolio, barrier, window, shaping, clock, prices, features, states, final_states, finals,
            actions, log_probs, rewards, bars, ends, status, launch, rules,
        )  # fmt: skip


def start_on_gpu(portfolio, barrier, window, shaping, clock, prices, features, states, t, launch, rules):
    """Begin a new episode in every slot, a thread a slot."""
    e = cuda.grid(1)
    if e < clock.shape[0]:
        start_slot(e, portfolio, barrier, window, shaping, clock, prices, features, states, t, launch, rules)


class Steppers(NamedTuple):
    """The compiled steps of one game: `start` and `step` for the CPU, `start_kernel` and `step_kernel` for a GPU."""

    start: object
    step: object
    start_kernel: object
    step_kernel: object


def _compiled(play_function, keep) -> Steppers:
    step = Both(rebound(step_slot.function, {"play": play_function}), step_slot.uses)
    cpu = {"error_model": "numpy", "parallel": True}
    wrap = cached if keep else (lambda dispatcher: dispatcher)
    return Steppers(
        wrap(njit(**cpu)(rebound(start_all, {"start_slot": start_slot.cpu}))),
        wrap(njit(**cpu)(rebound(step_all, {"step_slot": step.cpu}))),
        wrap(jit(rebound(start_on_gpu, {"start_slot": start_slot.device}))),
        wrap(jit(rebound(step_on_gpu, {"step_slot": step.device}))),
    )


_DEFAULT = _compiled(play, keep=True)


@cache
def steppers(base=None) -> Steppers:
    """The steps of the game; `base` replaces the base reward (see `rules.reward.user_base`) and compiles anew."""
    return _DEFAULT if base is None else _compiled(make_play(base), keep=False)
