"""Rollout, a block per episode: exact float32, for few episodes, where the time of one step decides.

What depends on what is cut short by letting groups of warps, each with a role, work side by side on a step:

- network: holds all weights in registers; from the account on, its features, which it stores, and three layers to the logits; then,
  while the action is drawn, the first layer's share of the next bar's market features.
- sampler: its uniform first, then softmax and the inverse CDF of the logits; then stores action and log-probability.
- players: a thread an action, each playing *its* action on the current account while the network still thinks. Once the
  action is known, so is what comes of it: all read the account from that action's column of a table in shared memory.
- paymaster: reward, running states of the reward and episode ends of a step, while the next one is made.

A step costs the longest of network + sampler, players and paymaster, which are within a fifth of each other: what a player need not work
out before the action is known, such as the features of an account, is left to the network. Where an episode ends, all wait for the
paymaster to open the next.

Shapes: see kernels.rollout. Launch: `Block.threads` threads an episode, a block an episode; static shared memory below 20 KB
for the default network, no local memory.
"""

from functools import lru_cache
from math import inf
from typing import NamedTuple

from numba import float64, int64

from numba_rl.gpu import SIMULATED, cuda, device, float32, int32, jit, most_registers, uint32
from numba_rl.kernel_cache import cached
from numba_rl.kernels.mlp import Layer, layer_functions, layer_of, place
from numba_rl.kernels.ptx import others_sync, some_arrive, some_sync
from numba_rl.kernels.rollout_lane import NO_CHOICE, first_bar_here, load_slot_here, store_slot_here, write_state
from numba_rl.kernels.sampling_warp import draw_by_warp, log_prob_of
from numba_rl.kernels.settled import settled_for, specialised
from numba_rl.kernels.slots import BAR, CLOSE, EPISODE, PLAYED, STEP
from numba_rl.kernels.step import TERMINATED
from numba_rl.rules.actions import ACTIONS, EXPOSURES, LIMIT, exposure_index
from numba_rl.rules.diversity import WINDOW, count_of, entropy_term, push, weight_of
from numba_rl.rules.fills import Outcome, advance, drawdown_of
from numba_rl.rules.game import Slot, fresh_slot
from numba_rl.rules.philox import ACTION, uniform
from numba_rl.rules.portfolio import Portfolio, average_entry, equity_at, portfolio_features
from numba_rl.rules.reward import combine, default_base

COLUMNS = 48  # of the table of what comes of each action: the actions, then a new episode
FRESH = ACTIONS
# Rows of the table, float64. What an action cannot change is not in it, nor what the paymaster can work out.
CASH, POSITION, COSTS, EXPOSURE, PEAK, PRICE, FILLED_AT, POSITION_AFTER = range(8)
FEE, SPREAD_COST, FINANCING, EXIT_FEE, EXIT_SPREAD_COST, EXPOSURE_AFTER = range(8, 14)  # for a user's own reward
INITIAL, SPREAD, RESERVE = range(3)  # of the array of what an episode cannot change
LOGITS = 64
COUNTS = WINDOW + 1  # that an exposure can have in the window
NETWORK_BARRIER, LOGITS_BARRIER = 1, 2
MINUS_INFINITY = float32(-inf)
OTHER_REGISTERS = 56  # what a thread of the network needs beside its weights

# Bound anew for each network, pattern of settings and reward (see `block_names`).
FEATURES = HIDDEN1 = HIDDEN2 = NETWORK = SAMPLER = PLAYERS = PLAYER_ROUNDS = ROW_ROUNDS = ROWS = WHOLE = REDUX = 1
MARKET_PADDED = MARKET_PARTS = MARKET_REGISTERS = MARKET_ROUNDS = MARKET_STRIDE = OWN = 1
SECOND_PADDED = SECOND_PARTS = SECOND_REGISTERS = SECOND_ROUNDS = SECOND_STRIDE = 1
THIRD_PADDED = THIRD_PARTS = THIRD_REGISTERS = THIRD_ROUNDS = THIRD_STRIDE = 1
SLOPE = float32(0.0)
base = default_base
load_market = load_second = load_third = market_product = second_product = third_product = settled = None


class Block(NamedTuple):
    """The block form of one network: its layers and how many threads each role has."""

    features: int
    market: Layer
    second: Layer
    third: Layer
    network: int
    sampler: int
    players: int
    paymaster: int
    slope: float
    redux: int  # 1: maxima by one instruction (compute capability 8.0)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.network + self.sampler + self.players + self.paymaster


def block_of(features, hidden, actions=ACTIONS, slope=0.0, network=None, capability=(9, 0)) -> Block | None:
    """The block form of an actor features + 3 - hidden[0] - hidden[1] - actions, or None where it does not fit.

    network: threads of the network, by default 256, or more or fewer where only that fits. The limits: two hidden layers, the
    45 actions, and weights that fit the registers: 112 a thread with 256 threads, 199 with 128, 40 with 512.
    """
    if len(hidden) != 2 or actions != ACTIONS:
        return None
    widths = (4,) if SIMULATED else (256, 128, 512)
    for threads in (network,) if network else widths:
        layers = [layer_of(i, o, threads) for i, o in ((features, hidden[0]), (hidden[0], hidden[1]), (hidden[1], actions))]
        held = sum(layer.registers for layer in layers)
        shared = 4 * (sum(layer.padded for layer in layers) + LOGITS)
        others = (1, 2, 1) if SIMULATED else (32, 64, 32)
        if SIMULATED or (held + OTHER_REGISTERS <= most_registers(threads + sum(others)) and shared <= 16_384):
            return Block(features, *layers, threads, *others, slope, int(capability >= (8, 0)))
    return None


place_of = device(place)


@device
def player_action(player, players):
    """The action of a player, or -1. Limit orders, whose rules take another way, have a warp to themselves."""
    if players != 64:
        return player if player < ACTIONS else -1
    if player < 32:
        return player // 3 * 9 + LIMIT * 3 + player % 3 if player < 15 else -1
    player -= 32
    order = player // 3 % 2 * 2  # market, IOC
    return player // 6 * 9 + order * 3 + player % 3 if player < 30 else -1


@device
def account_at(table, turn, column, fixed, last, entry):
    """The account of a column."""
    return Portfolio(
        table[turn, CASH, column],
        table[turn, POSITION, column],
        entry,
        fixed[INITIAL],
        fixed[SPREAD],
        last,
        fixed[RESERVE],
        table[turn, COSTS, column],
        table[turn, EXPOSURE, column],
        table[turn, PEAK, column],
    )


@device
def write_account(table, turn, column, account):
    """Put an account into a column."""
    table[turn, CASH, column] = account.cash
    table[turn, POSITION, column] = account.position
    table[turn, COSTS, column] = account.costs
    table[turn, EXPOSURE, column] = account.exposure
    table[turn, PEAK, column] = account.peak


@device
def write_outcome(table, ruined, turn, column, outcome):
    """Put what a step did into a column."""
    table[turn, PRICE, column] = outcome.price
    table[turn, FILLED_AT, column] = outcome.filled_at
    table[turn, POSITION_AFTER, column] = outcome.position_after
    ruined[turn, column] = outcome.terminated


@device
def write_costs(table, turn, column, outcome):
    """Put what only a user's reward reads into a column."""
    table[turn, FEE, column] = outcome.fee
    table[turn, SPREAD_COST, column] = outcome.spread_cost
    table[turn, FINANCING, column] = outcome.financing
    table[turn, EXIT_FEE, column] = outcome.exit_fee
    table[turn, EXIT_SPREAD_COST, column] = outcome.exit_spread_cost
    table[turn, EXPOSURE_AFTER, column] = outcome.exposure_after


@device
def outcome_at(table, ruined, turn, column, held, then, close, close_next, whole, rules):
    """What the step of a column did to the account `held`; money that no reward reads is 0."""
    equity_after = equity_at(then, close_next, rules)
    return Outcome(
        equity_at(held, close, rules),
        equity_after,
        table[turn, PRICE, column],
        0.0,
        table[turn, FEE, column] if whole else 0.0,
        table[turn, SPREAD_COST, column] if whole else 0.0,
        table[turn, FINANCING, column] if whole else 0.0,
        0.0,
        0.0,
        table[turn, EXIT_FEE, column] if whole else 0.0,
        table[turn, EXIT_SPREAD_COST, column] if whole else 0.0,
        held.exposure,
        table[turn, EXPOSURE_AFTER, column] if whole else 0.0,
        held.position,
        table[turn, POSITION_AFTER, column],
        drawdown_of(then, equity_after),
        int64(ruined[turn, column]),
        table[turn, FILLED_AT, column],
    )


@device
def diversity_of(window, weights):
    """`diversity_term`, with the logarithms of all counts at hand."""
    weighted = float32(0.0)
    for exposure in range(EXPOSURES):
        weighted += weights[count_of(window, exposure)]
    return entropy_term(weighted, window.size)


@device
def rectified(value, slope):
    """ReLU, or leaky ReLU where slope is not 0; NaN stays NaN."""
    return value if value > float32(0.0) else value * slope


def rollout_block(
    w1, b1, w2, b2, w3, b3, portfolio, barrier, window, shaping, clock, prices, features, account, bars, final_account,
    final_bars, finals, actions, log_probs, rewards, ends, status, launch, settings,
):  # fmt: skip
    row = cuda.shared.array(MARKET_PADDED, float32, alignment=16)  # market features of the next bar
    first = cuda.shared.array(SECOND_PADDED, float32, alignment=16)
    second = cuda.shared.array(THIRD_PADDED, float32, alignment=16)
    logits = cuda.shared.array((1, LOGITS), float32, alignment=16)
    table = cuda.shared.array((2, ROWS, COLUMNS), float64)
    ruined = cuda.shared.array((2, COLUMNS), int32)
    fixed = cuda.shared.array(3, float64)
    chosen = cuda.shared.array(2, int32)
    fresh_bar = cuda.shared.array(1, int64)
    weights = cuda.shared.array(COUNTS, float32)  # `weight_of` of each

    rules = settled(settings)
    e = uint32(cuda.blockIdx.x)
    thread = uint32(cuda.threadIdx.x)
    steps = actions.shape[0]
    last_bar = prices.shape[0] - 1
    bar = clock[e, BAR]
    step = clock[e, STEP]
    length = rules.episode_length

    # Turn 1 holds "the step before the launch": its new episode is the slot as it stands.
    index = thread
    while index < MARKET_PADDED:
        row[index] = features[uint32(bar), index] if index < FEATURES else float32(0.0)
        index += uint32(cuda.blockDim.x)
    index = thread
    while index < max(SECOND_PADDED, THIRD_PADDED, LOGITS):
        if index < SECOND_PADDED:
            first[index] = float32(0.0)
        if index < THIRD_PADDED:
            second[index] = float32(0.0)
        if index < LOGITS:
            logits[0, index] = MINUS_INFINITY
        index += uint32(cuda.blockDim.x)
    if thread == 0:
        opened = load_slot_here(portfolio, barrier, window, shaping, e).portfolio
        write_account(table, uint32(1), uint32(FRESH), opened)
        fixed[INITIAL] = opened.initial
        fixed[SPREAD] = opened.spread
        fixed[RESERVE] = opened.reserve
    index = thread
    while rules.diversity > 0.0 and index < COUNTS:
        weights[index] = weight_of(int64(index))
        index += uint32(cuda.blockDim.x)
    cuda.syncthreads()
    source = uint32(FRESH)

    if thread < NETWORK:
        u1 = cuda.local.array(MARKET_REGISTERS, float32)
        u2 = cuda.local.array(SECOND_REGISTERS, float32)
        u3 = cuda.local.array(THIRD_REGISTERS, float32)
        own = cuda.local.array(OWN, float32)  # of each first-layer output: market share, weights of equity, share, spread, bias
        bias2 = cuda.local.array(SECOND_ROUNDS, float32)
        bias3 = cuda.local.array(THIRD_ROUNDS, float32)
        coming = cuda.local.array(ROW_ROUNDS, float32)  # the next bar's features on their way
        o1, p1 = place_of(thread, MARKET_PARTS)
        o2, p2 = place_of(thread, SECOND_PARTS)
        o3, p3 = place_of(thread, THIRD_PARTS)
        load_market(w1, o1, p1, u1)
        load_second(w2, o2, p2, u2)
        load_third(w3, o3, p3, u3)
        for k in range(MARKET_ROUNDS):
            output = uint32(o1 + k * MARKET_STRIDE)
            for i in range(5):
                own[5 * k + i] = float32(0.0)
            if output < HIDDEN1:
                own[5 * k + 4] = b1[output]
                for i in range(3):
                    own[5 * k + 1 + i] = w1[output, uint32(FEATURES + i)]
            own[5 * k] = own[5 * k + 4] + market_product(u1, k, row, p1)
        for k in range(SECOND_ROUNDS):
            output = uint32(o2 + k * SECOND_STRIDE)
            bias2[k] = b2[output] if output < HIDDEN2 else float32(0.0)
        for k in range(THIRD_ROUNDS):
            output = uint32(o3 + k * THIRD_STRIDE)
            bias3[k] = b3[output] if output < ACTIONS else float32(0.0)
        ahead = uint32(min(bar + 1, last_bar))
        for k in range(ROW_ROUNDS):
            index = uint32(thread + k * NETWORK)
            coming[k] = features[ahead, index] if index < FEATURES else float32(0.0)
        close = prices[uint32(bar), CLOSE]
        for t in range(steps):
            turn = uint32(t & 1)
            seen = portfolio_features(account_at(table, uint32(1 - turn), source, fixed, close, 0.0), rules)
            equity, share, spread = float32(seen[0]), float32(seen[1]), float32(seen[2])
            if thread == 0:
                write_state(bars, account, uint32(t), e, bar, equity, share, spread)
            close = prices[uint32(bar + 1), CLOSE]
            for k in range(MARKET_ROUNDS):
                output = uint32(o1 + k * MARKET_STRIDE)
                value = own[5 * k] + own[5 * k + 3] * spread + own[5 * k + 1] * equity + own[5 * k + 2] * share
                if p1 == 0 and output < HIDDEN1:
                    first[output] = rectified(value, SLOPE)
            some_sync(NETWORK_BARRIER, NETWORK)
            ahead = uint32(min(bar + 2, last_bar))
            for k in range(ROW_ROUNDS):
                index = uint32(thread + k * NETWORK)
                if index < FEATURES:
                    row[index] = coming[k]
                    coming[k] = features[ahead, index]
            for k in range(SECOND_ROUNDS):
                output = uint32(o2 + k * SECOND_STRIDE)
                value = second_product(u2, k, first, p2) + bias2[k]
                if p2 == 0 and output < HIDDEN2:
                    second[output] = rectified(value, SLOPE)
            some_sync(NETWORK_BARRIER, NETWORK)
            for k in range(THIRD_ROUNDS):
                output = uint32(o3 + k * THIRD_STRIDE)
                value = third_product(u3, k, second, p3) + bias3[k]
                if p3 == 0 and output < ACTIONS:
                    logits[0, output] = value
            some_arrive(LOGITS_BARRIER, NETWORK + SAMPLER)
            for k in range(MARKET_ROUNDS):
                own[5 * k] = own[5 * k + 4] + market_product(u1, k, row, p1)
            cuda.syncthreads()
            source = uint32(chosen[turn])
            step += 1
            bar += 1
            if ruined[turn, source] != 0 or step >= length or bar + 1 >= launch.stop:
                cuda.syncthreads()
                source = uint32(FRESH)
                step = 0
                bar = fresh_bar[0]
                close = prices[uint32(bar), CLOSE]
                ahead = uint32(min(bar + 1, last_bar))
                for k in range(ROW_ROUNDS):
                    index = uint32(thread + k * NETWORK)
                    if index < FEATURES:
                        row[index] = features[uint32(bar), index]
                        coming[k] = features[ahead, index]
                some_sync(NETWORK_BARRIER, NETWORK)
                for k in range(MARKET_ROUNDS):
                    own[5 * k] = own[5 * k + 4] + market_product(u1, k, row, p1)

    elif thread < NETWORK + SAMPLER:
        lane = uint32(thread - NETWORK)
        played = clock[e, PLAYED]
        broken = 0
        for t in range(steps):
            turn = uint32(t & 1)
            u = float32(0.0)
            if launch.given == 0:
                u = float32(uniform(launch.seed, ACTION, e, 0, played + t, 0))
            others_sync()
            others_sync()
            some_sync(LOGITS_BARRIER, NETWORK + SAMPLER)
            winner = uint32(0)
            logit = float32(0.0)
            top = float32(0.0)
            total = float32(1.0)
            if launch.given == 1:
                action = int32(actions[uint32(t), e])
            else:
                action, winner, logit, top, total = draw_by_warp(logits, ACTIONS, u, lane, REDUX)
            drawn = action
            if action < 0:
                action = int32(NO_CHOICE)
            if lane == winner:
                chosen[turn] = action
            cuda.syncthreads()
            if lane == winner:
                actions[uint32(t), e] = action
                log_probs[uint32(t), e] = log_prob_of(logit, top, total)
            if drawn < 0 and broken == 0:  # then in every lane
                broken = t + 1
                if lane == 0:
                    status[e] = broken
            source = uint32(chosen[turn])
            step += 1
            bar += 1
            if ruined[turn, source] != 0 or step >= length or bar + 1 >= launch.stop:
                cuda.syncthreads()
                step = 0
                bar = fresh_bar[0]
                others_sync()

    elif thread < NETWORK + SAMPLER + PLAYERS:
        player = int64(thread) - NETWORK - SAMPLER
        close = prices[uint32(bar), CLOSE]
        open_next = prices[uint32(bar + 1), 0]
        high_next = prices[uint32(bar + 1), 1]
        low_next = prices[uint32(bar + 1), 2]
        close_next = prices[uint32(bar + 1), CLOSE]
        for t in range(steps):
            turn = uint32(t & 1)
            now = account_at(table, uint32(1 - turn), source, fixed, close, 0.0)
            ahead = uint32(min(bar + 2, last_bar))
            open_later = prices[ahead, 0]
            high_later = prices[ahead, 1]
            low_later = prices[ahead, 2]
            close_later = prices[ahead, CLOSE]
            for k in range(PLAYER_ROUNDS):
                action = player_action(player + k * PLAYERS, PLAYERS)
                if action >= 0:
                    then, outcome = advance(now, int64(action), close, open_next, high_next, low_next, close_next, rules)
                    write_outcome(table, ruined, turn, uint32(action), outcome)
                    if WHOLE:
                        write_costs(table, turn, uint32(action), outcome)
                    write_account(table, turn, uint32(action), then)
            others_sync()
            others_sync()
            others_sync()
            cuda.syncthreads()
            source = uint32(chosen[turn])
            step += 1
            bar += 1
            close = close_next
            open_next = open_later
            high_next = high_later
            low_next = low_later
            close_next = close_later
            if ruined[turn, source] != 0 or step >= length or bar + 1 >= launch.stop:
                cuda.syncthreads()
                source = uint32(FRESH)
                step = 0
                bar = fresh_bar[0]
                close = prices[uint32(bar), CLOSE]
                open_next = prices[uint32(bar + 1), 0]
                high_next = prices[uint32(bar + 1), 1]
                low_next = prices[uint32(bar + 1), 2]
                close_next = prices[uint32(bar + 1), CLOSE]
                others_sync()

    else:
        writes = thread == NETWORK + SAMPLER + PLAYERS
        slot = load_slot_here(portfolio, barrier, window, shaping, e)
        held = slot.portfolio
        running_barrier = slot.barrier
        running_window = slot.window
        running_shaping = slot.shaping
        episode = clock[e, EPISODE]
        truncations = 0
        close = prices[uint32(bar), CLOSE]
        for t in range(steps):
            turn = uint32(t & 1)
            close_next = prices[uint32(bar + 1), CLOSE]
            others_sync()
            others_sync()
            others_sync()
            cuda.syncthreads()
            source = uint32(chosen[turn])
            entry = average_entry(held.position, held.entry, table[turn, POSITION, source], table[turn, FILLED_AT, source])
            then = account_at(table, turn, source, fixed, close_next, entry)
            outcome = outcome_at(table, ruined, turn, source, held, then, close, close_next, WHOLE, rules)
            running_window = push(running_window, exposure_index(int64(source)))
            paid = base(outcome, close, close_next, step, rules)
            diversity = float32(0.0)
            if rules.diversity > 0.0:
                diversity = diversity_of(running_window, weights)
            reward, running_barrier, running_shaping = combine(
                paid, running_barrier, diversity, running_shaping, outcome, close_next, rules
            )
            step += 1
            bar += 1
            close = close_next
            held = then
            end = 0
            if outcome.terminated != 0:
                end = TERMINATED
            elif step >= length or bar + 1 >= launch.stop:
                truncations += 1
                end = truncations
                if writes:
                    equity, share, spread = portfolio_features(held, rules)
                    write_state(final_bars, final_account, uint32(end - 1), e, bar, equity, share, spread)
            if writes:
                rewards[uint32(t), e] = float32(reward)
                ends[uint32(t), e] = end
            if end != 0:
                episode += 1
                step = 0
                bar = first_bar_here(launch, episode, e, length)
                close = prices[uint32(bar), CLOSE]
                slot = fresh_slot(close, running_shaping, rules)
                held = slot.portfolio
                running_barrier = slot.barrier
                running_window = slot.window
                running_shaping = slot.shaping
                if writes:
                    fresh_bar[0] = bar
                    fixed[INITIAL] = held.initial
                    fixed[SPREAD] = held.spread
                    fixed[RESERVE] = held.reserve
                    write_account(table, turn, uint32(FRESH), held)
                cuda.syncthreads()
                others_sync()
        if writes:
            equity, share, spread = portfolio_features(held, rules)
            write_state(bars, account, uint32(steps), e, bar, equity, share, spread)
            finals[e] = truncations
            store_slot_here(Slot(held, running_barrier, running_window, running_shaping), portfolio, barrier, window, shaping, e)
            clock[e, BAR] = bar
            clock[e, STEP] = step
            clock[e, PLAYED] += steps
            clock[e, EPISODE] = episode


def block_names(block: Block, pattern, base_reward=default_base) -> dict:
    """What the names of `rollout_block` mean for one network, one pattern of settings and one base reward."""
    market, second, third = block.market, block.second, block.third
    whole = base_reward is not default_base
    names = {
        "FEATURES": block.features,
        "HIDDEN1": market.outputs,
        "HIDDEN2": second.outputs,
        "NETWORK": block.network,
        "SAMPLER": block.sampler,
        "PLAYERS": block.players,
        "PLAYER_ROUNDS": 1 if block.players == 64 else -(-ACTIONS // block.players),
        "OWN": 5 * market.rounds,
        "ROW_ROUNDS": -(-market.padded // block.network),
        "ROWS": EXPOSURE_AFTER + 1 if whole else FEE,
        "WHOLE": int(whole),
        "REDUX": block.redux,
        "SLOPE": float32(block.slope),
        "base": base_reward,
        "settled": settled_for(pattern),
    }
    for name, layer in (("market", market), ("second", second), ("third", third)):
        names[f"load_{name}"], names[f"{name}_product"] = layer_functions(layer)
        names |= {f"{name}_{key}".upper(): getattr(layer, key) for key in ("padded", "parts", "registers", "rounds", "stride")}
    return names


def block_function(block: Block, pattern, base_reward=default_base):
    """The plain kernel function, under a name of its own (the disk cache tells kernels apart by name)."""
    sizes = (block.features, block.market.outputs, block.second.outputs, block.network, block.redux)
    return specialised(rollout_block, block_names(block, pattern, base_reward), sizes, block.slope, pattern)


@lru_cache
def block_kernel(block: Block, pattern, base_reward=None):
    """The compiled kernel; with a reward of the settings it is kept on disk."""
    kernel = jit(block_function(block, pattern, base_reward or default_base), max_registers=most_registers(block.threads))
    return kernel if base_reward is not None else cached(kernel)
