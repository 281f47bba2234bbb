"""An episode on one thread: the game in the rollouts whose network evaluates many episodes at once.

A launch opens a lane, moves and settles it once a step, and closes it. The two halves of a step stand apart, so that what
the network waits for (bar and account) can be handed on before the reward is worked out.

Shapes: see kernels.rollout and kernels.slots.
"""

from typing import NamedTuple

from numba_rl.gpu import device, float32, uint32
from numba_rl.kernels.slots import BAR, CLOSE, EPISODE, PLAYED, STEP, load_slot, store_slot
from numba_rl.kernels.step import TERMINATED, first_bar
from numba_rl.rules.actions import FLAT, NORMAL, compose
from numba_rl.rules.fills import advance
from numba_rl.rules.game import Slot, fresh_slot
from numba_rl.rules.portfolio import portfolio_features

NO_CHOICE = int(compose.py_func(FLAT, 0, NORMAL))  # played where the network's outputs give no action

load_slot_here = load_slot.device
store_slot_here = store_slot.device
first_bar_here = first_bar.device


class Lane(NamedTuple):
    """An episode slot between two steps: its state, where it stands, and what the network sees of its account."""

    slot: Slot
    bar: int
    step: int  # in the episode
    episode: int
    truncations: int  # of this launch
    close: float  # of `bar`
    equity: float  # / initial capital; this and the next two float32
    share: float
    spread: float


@device
def open_lane(portfolio, barrier, window, shaping, clock, prices, e, rules):
    """Slot e as it stands."""
    slot = load_slot_here(portfolio, barrier, window, shaping, e)
    bar = clock[e, BAR]
    equity, share, spread = portfolio_features(slot.portfolio, rules)
    return Lane(
        slot, bar, clock[e, STEP], clock[e, EPISODE], 0, prices[uint32(bar), CLOSE], float32(equity), float32(share), float32(spread)
    )  # fmt: skip


@device
def move(lane, action, coming, launch, rules):
    """The account's half of a step: (lane at the next bar, outcome, end). coming: open, high, low and close of the next bar.

    The new lane still has the old running states of the reward. end: 0, or TERMINATED, or the number of truncations so far.
    """
    open_next, high_next, low_next, close_next = coming
    account, outcome = advance(lane.slot.portfolio, action, lane.close, open_next, high_next, low_next, close_next, rules)
    equity, share, spread = portfolio_features(account, rules)
    slot = Slot(account, lane.slot.barrier, lane.slot.window, lane.slot.shaping)
    bar = lane.bar + 1
    step = lane.step + 1
    truncations = lane.truncations
    end = 0
    if outcome.terminated != 0:
        end = TERMINATED
    elif step >= rules.episode_length or bar + 1 >= launch.stop:
        truncations += 1
        end = truncations
    moved = Lane(slot, bar, step, lane.episode, truncations, close_next, float32(equity), float32(share), float32(spread))
    return moved, outcome, end


@device
def with_slot(lane, slot):
    """The lane with another slot."""
    return Lane(slot, lane.bar, lane.step, lane.episode, lane.truncations, lane.close, lane.equity, lane.share, lane.spread)


@device
def next_episode(lane, prices, e, launch, rules):
    """The lane at the start of its next episode; the shaping's statistics go on."""
    bar = first_bar_here(launch, lane.episode + 1, e, rules.episode_length)
    close = prices[uint32(bar), CLOSE]
    slot = fresh_slot(close, lane.slot.shaping, rules)
    equity, share, spread = portfolio_features(slot.portfolio, rules)
    return Lane(slot, bar, 0, lane.episode + 1, lane.truncations, close, float32(equity), float32(share), float32(spread))


@device
def write_state(bars, account, t, e, bar, equity, share, spread):
    """What the network sees of an episode, at row t: its bar and three portfolio features."""
    bars[t, e] = bar
    account[t, e, 0] = float32(equity)
    account[t, e, 1] = float32(share)
    account[t, e, 2] = float32(spread)


@device
def write_lane(bars, account, t, e, lane):
    """`write_state` of a lane."""
    write_state(bars, account, t, e, lane.bar, lane.equity, lane.share, lane.spread)


@device
def close_lane(lane, portfolio, barrier, window, shaping, clock, finals, e, played):
    """Write the lane back to slot e; played: steps that the slot has played by now."""
    finals[e] = lane.truncations
    store_slot_here(lane.slot, portfolio, barrier, window, shaping, e)
    clock[e, BAR] = lane.bar
    clock[e, STEP] = lane.step
    clock[e, PLAYED] = played
    clock[e, EPISODE] = lane.episode
