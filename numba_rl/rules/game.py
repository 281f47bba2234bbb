"""One step of the whole game for one episode slot: fills, ledger, reward and their running states."""

from typing import NamedTuple

from numba import njit
from numpy import float32

from numba_rl.kernel_cache import rebound
from numba_rl.rules.actions import exposure_index
from numba_rl.rules.barrier import Barrier, no_barrier
from numba_rl.rules.diversity import Window, diversity_term, empty_window, push
from numba_rl.rules.fills import advance
from numba_rl.rules.portfolio import Portfolio, open_portfolio
from numba_rl.rules.reward import combine, default_base
from numba_rl.rules.shaping import Shaping


class Slot(NamedTuple):
    """Everything that an episode slot carries from step to step."""

    portfolio: Portfolio
    barrier: Barrier
    window: Window
    shaping: Shaping


@njit(error_model="numpy")
def settle(slot, portfolio, action, outcome, paid, close_next, rules):
    """What is left of a step once `advance` has moved the account to `portfolio`: (slot, reward). paid: the base reward."""
    window = push(slot.window, exposure_index(action))
    diversity = diversity_term(window) if rules.diversity > 0.0 else float32(0.0)
    reward, barrier, shaping = combine(paid, slot.barrier, diversity, slot.shaping, outcome, close_next, rules)
    return Slot(portfolio, barrier, window, shaping), reward


base = default_base  # what `play` pays first; another one is bound by `make_play`


@njit(error_model="numpy")
def play(slot, action, close, open_next, high_next, low_next, close_next, step, rules):
    """One step: (slot, outcome, reward). `step` counts from 0 in the episode; prices are of bars t and t + 1."""
    portfolio, outcome = advance(slot.portfolio, action, close, open_next, high_next, low_next, close_next, rules)
    paid = base(outcome, close, close_next, step, rules)
    slot, reward = settle(slot, portfolio, action, outcome, paid, close_next, rules)
    return slot, outcome, reward


def make_play(base_reward):
    """`play` with another base reward compiled in (see `reward.user_base`)."""
    return njit(error_model="numpy")(rebound(play.py_func, {"base": base_reward}))


@njit(error_model="numpy")
def fresh_slot(price, shaping, rules):
    """The slot at the start of an episode; its shaping statistics go on."""
    return Slot(open_portfolio(price, rules), no_barrier(), empty_window(), Shaping(shaping.first, shaping.second))
