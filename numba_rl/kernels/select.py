"""Choosing actions from action values, for a whole batch of episode slots: epsilon-greedy or softmax with a temperature.

Three kinds of values (q float32 [N, A]):
  FLAT       A = 45, one value an action
  BRANCHING  A = 11, three heads of 5 exposures, 3 order types and 3 urgencies, chosen each by itself
  EXPOSURE   A = 5, exposures; order type and urgency come from rules.routing

The first of equal values wins. A row with a NaN, or without a finite maximum, gives action -1, which the step records.
Epsilon is a function of the steps played by all slots, known to the device, so nothing is sent from the host:

    epsilon = start + (end - start) min(1, steps / duration),   steps = slots x steps of this slot

t int32 [1]: row of `actions` to write; clock int64 [N, 4] and portfolio float64 [N, 10] as in kernels.slots; regime float32
[T, 3], column 2 the volatility regime of each bar; actions int32 [L, N]; settings float32 [4] in device memory: epsilon at
the start, at the end, the duration in steps, and 1 / temperature of softmax selection, 0 for epsilon-greedy.
Random draws: rules.philox, EXPLORE (0: explore or not, 1-3: the parts of a random action) and ACTION (softmax).
Launch: a thread a slot.
"""

import math

from numba import njit, prange
from numpy import float32, int64, uint32

from numba_rl.gpu import blocks_for, both, cuda, jit, rebound
from numba_rl.kernel_cache import cached
from numba_rl.kernels.slots import BAR, PLAYED
from numba_rl.rules.actions import ACTIONS, EXPOSURES, ORDERS, URGENCIES, compose
from numba_rl.rules.philox import ACTION, EXPLORE, below, uniform
from numba_rl.rules.routing import route

FLAT, BRANCHING, EXPOSURE = range(3)
WIDTHS = {FLAT: ACTIONS, BRANCHING: EXPOSURES + ORDERS + URGENCIES, EXPOSURE: EXPOSURES}
START, END, DURATION, INVERSE_TEMPERATURE = range(4)  # of settings
HELD = 8  # column of the portfolio: the exposure held
VOLATILITY = 2  # column of the regime
THREADS = 64


@both()
def best_of(q, row, first, count, most):
    """Place 0..count - 1 of the largest of q[row, first : first + count], the first of equals; -1 with a NaN or no finite largest.

    most: constant and not below count; as many values are read, past the end the last one again.
    """
    best = uint32(0)
    top = q[row, uint32(first)]
    broken = math.isnan(top)
    index = uint32(1)
    while index < most:  # 32-bit places and no branch: a kernel unrolls it, and loads need not wait for comparisons
        value = q[row, uint32(first + min(index, uint32(count - uint32(1))))]
        broken |= math.isnan(value)
        if value > top:
            best = index
            top = value
        index = uint32(index + uint32(1))
    if broken or top - top != float32(0.0):
        return -1
    return int64(best)


@both()
def drawn_from(q, row, first, count, best, u, inverse_temperature):
    """A draw from the softmax of q x inverse_temperature; `best` is the place of the largest. A value of weight 0 is never drawn."""
    top = q[row, uint32(first + best)]
    total = float32(0.0)
    index = uint32(0)
    while index < count:
        total += float32(math.exp((q[row, uint32(first + index)] - top) * inverse_temperature))
        index = uint32(index + uint32(1))
    threshold = u * total
    cumulative = float32(0.0)
    chosen = -1
    index = uint32(0)
    while index < count:
        mass = float32(math.exp((q[row, uint32(first + index)] - top) * inverse_temperature))
        if mass > float32(0.0) and (chosen < 0 or cumulative <= threshold):
            chosen = int64(index)
        cumulative += mass
        index = uint32(index + uint32(1))
    return chosen


@both()
def epsilon_at(steps, settings):
    """Share of random actions after `steps` of all slots together, float32."""
    share = min(float32(1.0), float32(steps) / settings[DURATION])
    return settings[START] + (settings[END] - settings[START]) * share


@both(epsilon_at)
def explores(e, played, slots, settings, seed):
    """Whether slot e, which has played `played` steps, acts at random in its next one."""
    return uniform(seed, EXPLORE, e, 0, played, 0) < epsilon_at(played * slots, settings)


@both()
def random_part(explore, count, part, e, played, seed):
    """A random one of `count` choices where slot e explores, else -1; `part` numbers the choices of one action."""
    if explore:
        return int(below(count, seed, EXPLORE, e, 0, played, part + 1))
    return -1


@both(drawn_from)
def settled(best, q, row, first, count, random, part, e, played, seed, inverse_temperature):
    """What slot e chooses where `best` is the best choice, or -1; other arguments as of `pick`."""
    if best < 0:
        return -1
    if inverse_temperature > float32(0.0):
        return drawn_from(q, row, first, count, best, float32(uniform(seed, ACTION, e, 0, played, part)), inverse_temperature)
    return random if random >= 0 else best


@both(best_of, settled)
def pick(q, row, first, count, random, part, e, played, seed, inverse_temperature):
    """One choice of slot e among the values q[row, first : first + count]; random: a choice to take instead of the best one, or -1."""
    best = best_of(q, row, first, count, count)
    return settled(best, q, row, first, count, random, part, e, played, seed, inverse_temperature)


@both(best_of, explores, random_part, settled)
def select_slot(e, t, q, clock, portfolio, regime, actions, settings, seed, kind):
    """The action of slot e at step t, written to actions[t, e]."""
    e = uint32(e)
    played = clock[e, PLAYED]
    inverse_temperature = settings[INVERSE_TEMPERATURE]
    explore = explores(e, played, clock.shape[0], settings, seed)
    one = uint32(min(q.shape[1], 1))  # as a number that the compiler does not know, so that the code of a part is there once
    parts = uint32(3) if kind == BRANCHING else uint32(1)
    action = order = urgency = int64(0)
    first = count = part = uint32(0)
    while part < parts:
        if kind == FLAT:
            count = uint32(ACTIONS)
            best = best_of(q, e, 0, ACTIONS, ACTIONS)
        else:
            count = uint32(EXPOSURES) if part == uint32(0) else (uint32(ORDERS) if part == uint32(1) else uint32(URGENCIES))
            best = best_of(q, e, first, count, max(EXPOSURES, ORDERS, URGENCIES))
        random = random_part(explore, count, part, e, played, seed)
        choice = settled(best, q, e, first, count, random, part, e, played, seed, inverse_temperature)
        if part == uint32(0):
            action = choice
        elif part == uint32(1):
            order = choice
        else:
            urgency = choice
        first = uint32(first + count)
        part = uint32(part + one)
    if kind == BRANCHING:
        action = -1 if min(action, min(order, urgency)) < 0 else int(compose(action, order, urgency))
    elif kind == EXPOSURE and action >= 0:
        action = int(route(action, portfolio[e, HELD], float32(regime[clock[e, BAR], VOLATILITY])))
    actions[t, e] = action


def _select_all(t, q, clock, portfolio, regime, actions, settings, seed, kind):
    for e in prange(clock.shape[0]):
        select_slot(e, t[0], q, clock, portfolio, regime, actions, settings, seed, kind)


def _select_on_gpu(t, q, clock, portfolio, regime, actions, settings, seed, kind):
    e = uint32(cuda.grid(1))
    if e < uint32(clock.shape[0]):
        select_slot(e, t[0], q, clock, portfolio, regime, actions, settings, seed, kind)


_select_cpu = cached(njit(error_model="numpy", parallel=True)(rebound(_select_all, {"select_slot": select_slot.cpu})))
select_kernel = cached(jit(rebound(_select_on_gpu, {"select_slot": select_slot.device})))


def check_values(shape, slots, kind):
    """ValueError where action values of `shape` cannot be chosen from for `slots` slots."""
    wanted = (slots, WIDTHS[kind])
    if slots < 1:
        raise ValueError("there is nothing to choose for: the batch is empty")
    if tuple(shape) != wanted:
        raise ValueError(f"action values have shape {tuple(shape)}, expected {wanted}: a row a slot, a column a choice")


def select_cpu(t, q, clock, portfolio, regime, actions, settings, seed, kind):
    """Choose on the CPU; arrays as above."""
    check_values(q.shape, clock.shape[0], kind)
    _select_cpu(t, q, clock, portfolio, regime, actions, settings, seed, kind)


def launch_select(t, q, clock, portfolio, regime, actions, settings, seed, kind, stream=0, threads=THREADS):
    """Choose on a GPU or in the simulator; arrays as above."""
    check_values(q.shape, clock.shape[0], kind)
    select_kernel[blocks_for(clock.shape[0], threads), threads, stream](
        t, q, clock, portfolio, regime, actions, settings, seed, kind
    )
