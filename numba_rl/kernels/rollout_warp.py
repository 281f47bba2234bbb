"""Rollout, a warp for 16 or 32 episodes: the network on tensor cores in fp16, the game a lane an episode; for many episodes.

A warp evaluates the actor for 16 states at a time (kernels.mma) and hands each lane the action of its own episode. With 32
episodes a warp it does so twice a step, and the game, whose cost is the same for 16 lanes as for 32, is played once.
With 16, lanes 16 to 31 play the same as lanes 0 to 15 and write nothing.

Log-probabilities are those of the network in fp16 that really drew, so they differ from a float32 evaluation by that
network's error (kernels.mma). Everything else is as exact as in the block form.

Shapes: see kernels.rollout. Launch: any number of warps a block; static shared memory as kernels.mma says (39 KB for the
default network) whatever the number of warps.
"""

from numba import uint64

from numba_rl.gpu import SIMULATED, cuda, float32, int32, jit, uint32
from numba_rl.kernel_cache import cached
from numba_rl.kernels.mma import Tiles, make_act
from numba_rl.kernels.ptx import converge, prices_of
from numba_rl.kernels.rollout_lane import NO_CHOICE, close_lane, move, next_episode, open_lane, with_slot, write_lane
from numba_rl.kernels.settled import settled_for, specialised
from numba_rl.kernels.slots import PLAYED
from numba_rl.rules.game import settle
from numba_rl.rules.philox import ACTION, uniform
from numba_rl.rules.reward import default_base

ROWS = 4 if SIMULATED else 16  # states of a tile; a warp has twice as many lanes
LANES = 2 * ROWS

# Bound anew for each network, pattern of settings and reward (see `warp_function`).
WORDS = BIASES = 1
act = settled = None
base = default_base


def rollout_warp(
    packed, packed_biases, table, portfolio, barrier, window, shaping, clock, prices, account, bars, final_account, final_bars,
    finals, actions, log_probs, rewards, ends, status, launch, settings, groups,
):  # fmt: skip
    words = cuda.shared.array(WORDS, uint64)
    biases = cuda.shared.array(BIASES, float32)
    thread = uint32(cuda.threadIdx.x)
    index = thread
    while index < WORDS:
        words[index] = packed[index]
        index += uint32(cuda.blockDim.x)
    index = thread
    while index < BIASES:
        biases[index] = packed_biases[index]
        index += uint32(cuda.blockDim.x)
    cuda.syncthreads()

    rules = settled(settings)
    place = uint32(thread % LANES)
    warp = uint32(cuda.blockIdx.x * ((cuda.blockDim.x + LANES - 1) // LANES) + thread // LANES)
    episodes = clock.shape[0]
    if warp * ROWS * groups >= episodes:
        return
    mine = uint32(warp * ROWS * groups + (place if groups == 2 else place % ROWS))
    writes = mine < episodes and place < ROWS * groups
    e = uint32(min(mine, episodes - 1))  # lanes past the end repeat the last episode

    lane = open_lane(portfolio, barrier, window, shaping, clock, prices, e, rules)
    played = clock[e, PLAYED]
    steps = actions.shape[0]
    broken = 0
    for t in range(steps):
        converge()
        coming = prices_of(prices, uint32(lane.bar + 1))
        u = float32(uniform(launch.seed, ACTION, e, 0, played + t, 0))
        action, log_prob = act(words, biases, table, groups, place, int32(lane.bar), lane.equity, lane.share, lane.spread, u)
        if launch.given == 1:
            action = int32(actions[uint32(t), e])
            log_prob = float32(0.0)
        if action < 0:
            action = int32(NO_CHOICE)
            if broken == 0:
                broken = t + 1
        if writes:
            write_lane(bars, account, uint32(t), e, lane)
            actions[uint32(t), e] = action
            log_probs[uint32(t), e] = log_prob
        small = action & 63  # shows the compiler that it is small
        moved, outcome, end = move(lane, small, coming, launch, rules)
        paid = base(outcome, lane.close, moved.close, lane.step, rules)
        slot, reward = settle(lane.slot, moved.slot.portfolio, small, outcome, paid, moved.close, rules)
        lane = with_slot(moved, slot)
        if writes:
            rewards[uint32(t), e] = float32(reward)
            ends[uint32(t), e] = end
            if end > 0:
                write_lane(final_bars, final_account, uint32(end - 1), e, lane)
        if end != 0:
            lane = next_episode(lane, prices, e, launch, rules)
    if writes:
        write_lane(bars, account, uint32(steps), e, lane)
        if broken != 0:
            status[e] = broken
        close_lane(lane, portfolio, barrier, window, shaping, clock, finals, e, played + steps)


def warp_function(tiles: Tiles, pattern, base_reward=default_base, registers=None):
    """The plain kernel function of one network, one pattern of settings and one base reward, under a name of its own."""
    names = {
        "WORDS": tiles.words,
        "BIASES": tiles.biases,
        "act": make_act(tiles),
        "settled": settled_for(pattern),
        "base": base_reward,
    }
    sizes = (tiles.features, tiles.hidden1, tiles.hidden2, tiles.actions, registers or 0)
    return specialised(rollout_warp, names, sizes, tiles.slope, pattern)


def warp_kernel(tiles: Tiles, pattern, base_reward=None, registers=None):
    """The compiled kernel; with a reward of the settings it is kept on disk. registers: at most so many a thread, None: any."""
    options = {"max_registers": registers} if registers else {}
    kernel = jit(warp_function(tiles, pattern, base_reward or default_base, registers), **options)
    return kernel if base_reward is not None else cached(kernel)
