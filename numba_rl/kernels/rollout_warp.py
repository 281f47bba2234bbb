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

from numba_rl.gpu import SIMULATED, cuda, device, float32, int32, jit, uint32
from numba_rl.kernel_cache import cached
from numba_rl.kernels.mma import Tiles, make_act
from numba_rl.kernels.ptx import converge, prices_of
from numba_rl.kernels.settled import settled_for, specialised
from numba_rl.kernels.slots import BAR, CLOSE, EPISODE, PLAYED, STEP, load_slot, store_slot
from numba_rl.kernels.step import TERMINATED, first_bar
from numba_rl.rules.actions import FLAT, NORMAL, compose
from numba_rl.rules.game import fresh_slot, make_play, play
from numba_rl.rules.philox import ACTION, uniform
from numba_rl.rules.portfolio import portfolio_features

NO_CHOICE = int(compose(FLAT, 0, NORMAL))  # played where the logits are no distribution
ROWS = 4 if SIMULATED else 16  # states of a tile; a warp has twice as many lanes
LANES = 2 * ROWS

# Bound anew for each network, pattern of settings and reward (see `warp_function`).
WORDS = BIASES = 1
act = settled = None
play_here = play

load_slot_here = load_slot.device
store_slot_here = store_slot.device
first_bar_here = first_bar.device


@device
def write_account(account, t, e, equity, share, spread):
    """The three portfolio features that the network sees at step t."""
    account[t, e, 0] = equity
    account[t, e, 1] = share
    account[t, e, 2] = spread


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
    lane = uint32(thread % LANES)
    warp = uint32(cuda.blockIdx.x * ((cuda.blockDim.x + LANES - 1) // LANES) + thread // LANES)
    episodes = clock.shape[0]
    if warp * ROWS * groups >= episodes:
        return
    mine = uint32(warp * ROWS * groups + (lane if groups == 2 else lane % ROWS))
    writes = mine < episodes and lane < ROWS * groups
    e = uint32(min(mine, episodes - 1))  # lanes past the end repeat the last episode

    slot = load_slot_here(portfolio, barrier, window, shaping, e)
    bar = clock[e, BAR]
    step = clock[e, STEP]
    played = clock[e, PLAYED]
    episode = clock[e, EPISODE]
    steps = actions.shape[0]
    truncations = 0
    broken = 0
    close = prices[uint32(bar), CLOSE]
    exact_equity, exact_share, exact_spread = portfolio_features(slot.portfolio, rules)
    equity = float32(exact_equity)
    share = float32(exact_share)
    spread = float32(exact_spread)
    for t in range(steps):
        converge()
        open_next, high_next, low_next, close_next = prices_of(prices, uint32(bar + 1))
        u = float32(uniform(launch.seed, ACTION, e, 0, played + t, 0))
        action, log_prob = act(words, biases, table, groups, lane, int32(bar), equity, share, spread, u)
        if launch.given == 1:
            action = int32(actions[uint32(t), e])
            log_prob = float32(0.0)
        if action < 0:
            action = int32(NO_CHOICE)
            if broken == 0:
                broken = t + 1
        if writes:
            bars[uint32(t), e] = bar
            write_account(account, uint32(t), e, equity, share, spread)
            actions[uint32(t), e] = action
            log_probs[uint32(t), e] = log_prob
        slot, outcome, reward = play_here(
            slot, action & 63, close, open_next, high_next, low_next, close_next, step, rules
        )  # & 63 shows the compiler that it is small
        step += 1
        bar += 1
        close = close_next
        exact_equity, exact_share, exact_spread = portfolio_features(slot.portfolio, rules)
        equity = float32(exact_equity)
        share = float32(exact_share)
        spread = float32(exact_spread)
        end = 0
        if outcome.terminated != 0:
            end = TERMINATED
        elif step >= rules.episode_length or bar + 1 >= launch.stop:
            truncations += 1
            end = truncations
            if writes:
                final_bars[uint32(end - 1), e] = bar
                write_account(final_account, uint32(end - 1), e, equity, share, spread)
        if writes:
            rewards[uint32(t), e] = float32(reward)
            ends[uint32(t), e] = end
        if end != 0:
            episode += 1
            step = 0
            bar = first_bar_here(launch, episode, e, rules.episode_length)
            close = prices[uint32(bar), CLOSE]
            slot = fresh_slot(close, slot.shaping, rules)
            exact_equity, exact_share, exact_spread = portfolio_features(slot.portfolio, rules)
            equity = float32(exact_equity)
            share = float32(exact_share)
            spread = float32(exact_spread)
    if writes:
        bars[uint32(steps), e] = bar
        write_account(account, uint32(steps), e, equity, share, spread)
        finals[e] = truncations
        if broken != 0:
            status[e] = broken
        store_slot_here(slot, portfolio, barrier, window, shaping, e)
        clock[e, BAR] = bar
        clock[e, STEP] = step
        clock[e, PLAYED] = played + steps
        clock[e, EPISODE] = episode


def warp_function(tiles: Tiles, pattern, base=None, registers=None):
    """The plain kernel function of one network, one pattern of settings and one base reward, under a name of its own."""
    names = {
        "WORDS": tiles.words,
        "BIASES": tiles.biases,
        "act": make_act(tiles),
        "settled": settled_for(pattern),
        "play_here": play if base is None else make_play(base),
    }
    sizes = (tiles.features, tiles.hidden1, tiles.hidden2, tiles.actions, registers or 0)
    return specialised(rollout_warp, names, sizes, tiles.slope, pattern)


def warp_kernel(tiles: Tiles, pattern, base=None, registers=None):
    """The compiled kernel; with a reward of the settings it is kept on disk. registers: at most so many a thread, None: any."""
    options = {"max_registers": registers} if registers else {}
    kernel = jit(warp_function(tiles, pattern, base, registers), **options)
    return cached(kernel) if base is None and not SIMULATED else kernel
