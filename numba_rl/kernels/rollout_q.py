"""Rollout of a Q-network: one launch plays N episodes for L steps, network, choice, game, reward and outputs together.

A block plays 16, 32 or 64 episodes. Eight warps evaluate the advantages of all its states on tensor cores
(kernels.q_products); the value's stream is left out, since it changes no choice. A further warp or two have an episode a
thread: they choose by kernels.select and play by rules, hand on bar and account, and work out reward and outputs of a step
while the network is at the next one. Two barriers of the block a step.

Arguments of a launch (L steps, N slots, F market features, K episodes that a slot can finish in a launch):

words       uint32, weights packed by kernels.q_layout; biases float32
table       uint32 [T, width / 2]: features as bf16 (kernels.q_layout)
slots       portfolio, barrier, window, shaping, clock: see kernels.slots; read at the start, written at the end
prices      float64 [T, 4]
outputs     account, bars, final_account, final_bars, finals, actions, rewards, ends, status: see kernels.rollout
choice      float32 [4], on the device: epsilon's schedule and temperature (kernels.select)
launch      kernels.step.Launch; `greedy` and its temperature are not read. rules: numba_rl.rules.parameters.Rules

Random draws are those of kernels.select: results do not depend on blocks or launch lengths. The values are those of the
network in bf16: where two are equal within its error (about 1% of their spread), the choice may differ from float32's.
"""

from functools import lru_cache
from typing import NamedTuple

from numba_rl.gpu import SIMULATED, blocks_for, cuda, device, float32, int32, jit, most_registers, uint32
from numba_rl.kernel_cache import cached
from numba_rl.kernels.ptx import converge, others_sync, prices_of
from numba_rl.kernels.q_layout import MOST_SUMS, QLayout, q_layout
from numba_rl.kernels.q_products import ROWS, THREADS, ahead_of, barriers_of, make_network, staged_of
from numba_rl.kernels.rollout_lane import NO_CHOICE, close_lane, move, next_episode, open_lane, with_slot, write_lane
from numba_rl.kernels.select import INVERSE_TEMPERATURE, explores, pick, random_part
from numba_rl.kernels.settled import pattern_of, settled_for, specialised
from numba_rl.kernels.slots import PLAYED
from numba_rl.rules.actions import ACTIONS
from numba_rl.rules.game import fresh_slot, settle
from numba_rl.rules.reward import default_base

GROUPS = (1, 2, 4)  # tiles of 16 episodes a block
STRIDE = 49  # of a row of values: neighbouring rows lie in different banks
STATIC_SHARED = 48 * 1024
TENSOR_CORES = (8, 0)  # compute capability of bf16 products

# Bound anew for each network, pattern of settings and reward (see `q_function`).
NETWORK, BARRIERS, EPISODES, WIDEST, AHEAD, COMING, HELD = THREADS, 0, 1, 1, 1, 1, 1
begin = evaluate = settled = None
base = default_base

explores_here = explores.device
random_part_here = random_part.device
pick_here = pick.device


class QPlan(NamedTuple):
    """How a rollout is launched: the network's layout, and the tiles of 16 episodes that a block plays."""

    layout: QLayout
    groups: int

    @property
    def episodes(self) -> int:
        """Episodes of a block."""
        return ROWS * self.groups

    @property
    def players(self) -> int:
        """Threads that play: whole warps on a GPU, an episode each; those without one repeat another's."""
        return self.episodes if SIMULATED else max(32, self.episodes)

    @property
    def widest(self) -> int:
        """uint32 of the block's activations."""
        return ROWS * self.groups * max(self.layout.width, *self.layout.padded[:-1]) // 2

    @property
    def registers(self) -> int:
        """Most registers of a thread with which a block can be launched."""
        return most_registers(THREADS + self.players)

    @property
    def fits(self) -> bool:
        """Whether a block fits static shared memory, and a warp's sums the registers."""
        shared = 4 * (self.widest + self.episodes * (STRIDE + 4))
        return shared <= STATIC_SHARED and self.groups * max(self.layout.tiles) <= MOST_SUMS


def plan_q(features, hidden, head, episodes, *, capability=(9, 0), multiprocessors=132) -> QPlan | None:
    """The plan for a dueling network of features + 3 inputs, or None where it does not fit.

    Blocks are as small as leaves each a multiprocessor of its own, which makes a step short; of more episodes each block plays
    as many as it can, so that weights are read less often. Limits: layers of up to 1,024 units, one hidden layer at least.
    """
    if capability < TENSOR_CORES or not hidden:
        return None
    plans = [plan for groups in GROUPS if (plan := QPlan(q_layout(features, hidden, head, ACTIONS), groups)).fits]
    wide_enough = (plan for plan in plans if episodes <= plan.episodes * multiprocessors)
    return next(wide_enough, plans[-1]) if plans else None


@device
def hand_on(bar_of, account_of, row, lane):
    """Give the network a lane's next state."""
    bar_of[row] = lane.bar
    account_of[row, 0] = lane.equity
    account_of[row, 1] = lane.share
    account_of[row, 2] = lane.spread


def rollout_q(
    words, biases, table, portfolio, barrier, window, shaping, clock, prices, account, bars, final_account, final_bars, finals,
    actions, rewards, ends, status, choice, launch, settings,
):  # fmt: skip
    activations = cuda.shared.array(WIDEST, uint32, alignment=16)
    values = cuda.shared.array((EPISODES, STRIDE), float32)
    bar_of = cuda.shared.array(EPISODES, int32)
    account_of = cuda.shared.array((EPISODES, 3), float32)
    thread = uint32(cuda.threadIdx.x)
    steps = actions.shape[0]

    if thread < NETWORK:
        ahead = cuda.local.array(AHEAD, uint32)
        coming = cuda.local.array(COMING, uint32)
        held = cuda.local.array(HELD, int32)
        begin(words, thread, ahead, coming, held)
        cuda.syncthreads()
        for _ in range(steps):
            evaluate(words, biases, table, bar_of, account_of, activations, values, thread, ahead, coming, held)
            cuda.syncthreads()
            cuda.syncthreads()
        return

    rules = settled(settings)
    episodes = clock.shape[0]
    player = uint32(thread - NETWORK)
    row = uint32(player % EPISODES)
    mine = uint32(cuda.blockIdx.x * EPISODES + row)
    writes = mine < episodes and player < EPISODES
    e = uint32(min(mine, episodes - 1))  # players past the end repeat the last episode
    lane = open_lane(portfolio, barrier, window, shaping, clock, prices, e, rules)
    played = clock[e, PLAYED]
    broken = 0
    hand_on(bar_of, account_of, row, lane)
    converge()
    cuda.syncthreads()
    for t in range(steps):
        coming_prices = prices_of(prices, uint32(lane.bar + 1))
        if writes:
            write_lane(bars, account, uint32(t), e, lane)
        explore = explores_here(e, played + t, episodes, choice, launch.seed)
        random = random_part_here(explore, ACTIONS, 0, e, played + t, launch.seed)
        converge()
        for _ in range(BARRIERS):
            others_sync()
        cuda.syncthreads()
        if launch.given == 1:
            action = int32(actions[uint32(t), e])
        else:
            action = int32(pick_here(values, row, 0, ACTIONS, random, 0, e, played + t, launch.seed, choice[INVERSE_TEMPERATURE]))
        if action < 0:
            action = int32(NO_CHOICE)
            if broken == 0:
                broken = t + 1
        small = action & 63  # shows the compiler that it is small
        moved, outcome, end = move(lane, small, coming_prices, launch, rules)
        following = moved
        if end != 0:
            following = next_episode(moved, prices, e, launch, rules)
        hand_on(bar_of, account_of, row, following)
        converge()
        cuda.syncthreads()
        # The network is at the next step now.
        paid = base(outcome, lane.close, moved.close, lane.step, rules)
        slot, reward = settle(lane.slot, moved.slot.portfolio, small, outcome, paid, moved.close, rules)
        if writes:
            actions[uint32(t), e] = action
            rewards[uint32(t), e] = float32(reward)
            ends[uint32(t), e] = end
            if end > 0:
                write_lane(final_bars, final_account, uint32(end - 1), e, moved)
        if end != 0:
            slot = fresh_slot(following.close, slot.shaping, rules)
        lane = with_slot(following, slot)
    if writes:
        write_lane(bars, account, uint32(steps), e, lane)
        if broken != 0:
            status[e] = broken
        close_lane(lane, portfolio, barrier, window, shaping, clock, finals, e, played + steps)


def q_function(plan: QPlan, pattern, base_reward=default_base):
    """The plain kernel function of one network, one pattern of settings and one base reward, under a name of its own."""
    first, second = make_network(plan.layout, plan.groups, STRIDE)
    names = {
        "BARRIERS": barriers_of(plan.layout),
        "EPISODES": plan.episodes,
        "WIDEST": plan.widest,
        "AHEAD": 4 * ahead_of(plan.layout),
        "COMING": 4 * staged_of(plan.layout, plan.groups),
        "HELD": 2 * staged_of(plan.layout, plan.groups),
        "begin": first,
        "evaluate": second,
        "settled": settled_for(pattern),
        "base": base_reward,
    }
    return specialised(rollout_q, names, plan.layout.features, plan.layout.units, plan.groups, pattern)


@lru_cache
def q_kernel(plan: QPlan, pattern, base_reward=None):
    """The compiled kernel; with a reward of the settings it is kept on disk."""
    kernel = jit(q_function(plan, pattern, base_reward or default_base), max_registers=plan.registers)
    return kernel if base_reward is not None else cached(kernel)


class QRollout:
    """A compiled rollout: `launch` plays one launch. Compiles at its first launch; make that one outside a captured graph."""

    def __init__(self, plan: QPlan, rules, base=None):
        """base: compiled base reward of the user (rules.reward.user_base), or None for that of the settings."""
        self.plan = plan
        self.kernel = q_kernel(plan, pattern_of(rules), base)

    def launch(self, words, biases, table, slots, prices, outputs, choice, launch, rules, stream=0):
        """One launch, arguments as above."""
        blocks = blocks_for(slots[0].shape[0], self.plan.episodes)
        self.kernel[blocks, THREADS + self.plan.players, stream](
            words, biases, table, *slots, prices, *outputs, choice, launch, rules
        )
