"""Backtest of one policy over many windows in one launch: network, choice, fills, ledger, exit at the end, all together.

A warp plays 16 or 32 windows, the network on tensor cores in fp16 (kernels.mma), the account a lane a window: the fills and
the ledger of numba_rl.rules in float64, as in the other paths. Rewards are no part of a backtest and are left out.

Shapes (W windows, S steps of the longest, T bars):
starts, stops int32 [W]: the decision bar of the first step, and one past the last bar; table uint32 [T, width / 2]: features as
kernels.mma packs them; prices float64 [T, 4]. Outputs: equity float64 [S, W] net at each mark, after any exit; actions int8
[S, W]; totals float64 [W, 6]: see TOTALS; steps int32 [W] played; status int32 [W]: 0, or 1 + the first step without a valid
choice (a flat market order is played there). Rows past a window's steps are left alone.

A choice differs from that of a float32 network where two logits lie within the network's fp16 error (about 1e-3). Given the
actions, equity is that of kernels.backtest but for the rounding of fused multiply-adds (4e-15). On an H200 10,000 windows of
1,000 bars take 4.4 ms greedy and 4.6 ms drawn; 99.9% of the choices are those of a float32 network.
"""

from numba import uint64

from numba_rl.gpu import FULL_MASK, SIMULATED, blocks_for, cuda, device, float32, int32, jit, uint32
from numba_rl.kernel_cache import cached
from numba_rl.kernels.mma import Tiles, launch_pack, make_act
from numba_rl.kernels.ptx import converge, half_pair, prices_of
from numba_rl.kernels.rollout_warp import LANES, NO_CHOICE, ROWS
from numba_rl.kernels.settled import settled_for, specialised
from numba_rl.kernels.slots import CLOSE
from numba_rl.rules.fills import advance
from numba_rl.rules.philox import EVALUATE, uniform
from numba_rl.rules.portfolio import begin_episode, close_out, equity_at, open_portfolio, portfolio_features

TOTALS = ("fees", "spread_cost", "financing", "traded", "fills", "max_drawdown")  # money, money, money, money, count, share
(FEES, SPREAD_COST, FINANCING, TRADED, FILLS, MAX_DRAWDOWN) = range(len(TOTALS))
WIDE_FROM = 96  # windows a multiprocessor from which a warp plays 32

# Bound anew for each network, pattern of settings and way to choose (see `backtest_function`).
WORDS = BIASES = GREEDY = 1
choose = settled = None


def backtest_policy(
    packed, packed_biases, table, prices, starts, stops, equities, actions, totals, steps, status, launch, settings, groups
):
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
    episode = int32(rules.episode_length)
    lane = uint32(thread % LANES)
    warp = uint32(cuda.blockIdx.x * ((cuda.blockDim.x + LANES - 1) // LANES) + thread // LANES)
    windows = starts.shape[0]
    if warp * ROWS * groups >= windows:
        return
    mine = uint32(warp * ROWS * groups + (lane if groups == 2 else lane % ROWS))
    writes = mine < windows and lane < ROWS * groups
    w = uint32(min(mine, windows - 1))  # lanes past the end repeat the last window

    bar = int32(starts[w])
    stop = int32(stops[w])
    close = prices[uint32(bar), CLOSE]
    account = open_portfolio(close, rules)
    equity, share, spread = portfolio_features(account, rules)
    fees = 0.0
    spread_cost = 0.0
    financing = 0.0
    traded = 0.0
    fills = 0.0
    deepest = 0.0
    peak = rules.initial_capital  # of the marks that are written, exits paid
    played = int32(0)
    broken = int32(0)
    for t in range(equities.shape[0]):
        converge()
        u = float32(0.0)
        if GREEDY == 0:
            u = float32(uniform(launch.seed, EVALUATE, w, 0, t, 0))
        action = choose(words, biases, table, groups, lane, bar, float32(equity), float32(share), float32(spread), u)
        if bar + int32(1) < stop:
            open_next, high_next, low_next, close_next = prices_of(prices, uint32(bar + int32(1)))
            if action < 0:
                action = int32(NO_CHOICE)
                if broken == 0:
                    broken = int32(t + 1)
            account, outcome = advance(account, action & 63, close, open_next, high_next, low_next, close_next, rules)
            fees += outcome.fee + outcome.exit_fee
            spread_cost += outcome.spread_cost + outcome.exit_spread_cost
            financing += outcome.financing
            traded += (abs(outcome.units * outcome.price) + abs(outcome.exit_units * outcome.exit_price)) * rules.multiplier
            if outcome.units != 0.0:
                fills += 1.0
            bar += int32(1)
            close = close_next
            if outcome.terminated != 0:
                stop = bar  # over
            elif bar + int32(1) >= stop:
                traded += abs(account.position * close) * rules.multiplier
                account, exit_fee, exit_spread_cost = close_out(account, close, rules)
                fees += exit_fee
                spread_cost += exit_spread_cost
            after = equity_at(account, close, rules)
            peak = max(peak, after)
            if peak > 0.0:
                deepest = max(deepest, (peak - after) / peak)
            played = int32(t + 1)
            if played % episode == 0 and after > 0.0:
                account = begin_episode(account, after)
            if writes:
                equities[uint32(t), w] = after
                actions[uint32(t), w] = action
            equity, share, spread = portfolio_features(account, rules)
    if writes:
        totals[w, FEES] = fees
        totals[w, SPREAD_COST] = spread_cost
        totals[w, FINANCING] = financing
        totals[w, TRADED] = traded
        totals[w, FILLS] = fills
        totals[w, MAX_DRAWDOWN] = deepest
        steps[w] = played
        status[w] = broken


def make_draw_choice(tiles: Tiles):
    """choose(...) -> action drawn from the softmax of the packed logits; scale the last layer by 1 / temperature before packing."""
    act = make_act(tiles)

    def choose(words, biases, table, groups, lane, bar, equity, share, spread, u):
        action, _ = act(words, biases, table, groups, lane, bar, equity, share, spread, u)
        return action

    return device(choose)


if SIMULATED:
    import numpy as np

    from numba_rl.kernels.mma import unpack
    from numba_rl.kernels.sampling import greedy as greedy_row

    best_of_row = greedy_row.device

    def make_greedy_choice(tiles: Tiles):
        """See below; every simulated thread evaluates its own state."""

        def choose(words, biases, table, groups, lane, bar, equity, share, spread, u):
            w1, w2, w3 = unpack(tiles, words)
            b1, b2, b3 = np.split(biases, np.cumsum([8 * outer for outer in tiles.outer])[:2])
            b3 = b3.reshape(-1, 4, 2).transpose(1, 0, 2).reshape(-1)
            x = np.asarray([table[bar, index] for index in range(tiles.width // 2)], np.uint32).view(np.float16).copy()
            x[-4:] = equity - np.float32(1.0), share, spread, 0.0
            for weight, bias in ((w1, b1), (w2, b2)):
                h = weight @ x.astype(np.float32) + bias
                x = np.where(h > 0, h, np.float32(tiles.slope) * h).astype(np.float16)
            return best_of_row((w3 @ x.astype(np.float32) + b3)[None].astype(np.float32), 0, tiles.actions)

        return choose

else:
    import math

    from numba_rl.kernels.mma import make_forward, quad_max

    def make_best(own):
        """Greatest of a row's logits, `own` neighbouring ones in each of four lanes."""

        def best(logits, offset, q):
            """The first action with the largest logit, in each of the row's lanes; -1 for NaN or no finite maximum."""
            top = float32(-math.inf)
            action = int32(-1)
            nan = float32(0.0)
            for i in range(own):
                logit = logits[offset + 4 * (i // 2) + i % 2]
                if math.isnan(logit):
                    nan = float32(1.0)
                if logit > top:
                    top = logit
                    action = int32(own * q + i)
            largest = quad_max(top)
            candidate = int32(-action) if top == largest else int32(-1024)  # the first of equals: the largest of the negatives
            candidate = max(candidate, cuda.shfl_xor_sync(FULL_MASK, candidate, 1))
            candidate = max(candidate, cuda.shfl_xor_sync(FULL_MASK, candidate, 2))
            finite = largest > float32(-math.inf) and largest < float32(math.inf)
            return int32(-candidate) if finite and quad_max(nan) == float32(0.0) else int32(-1)

        return device(best)

    def make_greedy_choice(tiles: Tiles):
        """choose(words, biases, table, groups, lane, bar, equity, share, spread, u) -> action with the largest logit, as make_act."""
        logit_count = 4 * tiles.outer[2]
        forward = make_forward(tiles)
        best = make_best(2 * tiles.outer[2])

        def choose(words, biases, table, groups, lane, bar, equity, share, spread, u):
            g = lane >> 2
            q = lane & 3
            own_row = lane & 15
            first = int32(half_pair(equity - float32(1.0), share))
            second = int32(half_pair(spread, float32(0.0)))
            action = int32(0)
            logits = cuda.local.array(logit_count, float32)
            for group in range(groups):
                low = uint32(16 * group + g)
                high = uint32(low + 8)
                bars = (cuda.shfl_sync(FULL_MASK, bar, low), cuda.shfl_sync(FULL_MASK, bar, high))
                account = (
                    uint32(cuda.shfl_sync(FULL_MASK, first, low)),
                    uint32(cuda.shfl_sync(FULL_MASK, first, high)),
                    uint32(cuda.shfl_sync(FULL_MASK, second, low)),
                    uint32(cuda.shfl_sync(FULL_MASK, second, high)),
                )
                forward(words, biases, table, uint32(lane), bars, account, logits)
                source = uint32(4 * (own_row & 7))
                found_low = cuda.shfl_sync(FULL_MASK, best(logits, 0, q), source)
                found_high = cuda.shfl_sync(FULL_MASK, best(logits, 2, q), source)
                if groups == 1 or group == lane >> 4:
                    action = found_low if own_row < 8 else found_high
            return action

        return device(choose)


def backtest_function(tiles: Tiles, pattern, greedy: bool, registers=None):
    """The plain kernel function of one network, one pattern of settings and one way to choose, under a name of its own."""
    names = {
        "WORDS": tiles.words,
        "BIASES": tiles.biases,
        "GREEDY": int(greedy),
        "choose": make_greedy_choice(tiles) if greedy else make_draw_choice(tiles),
        "settled": settled_for(pattern),
    }
    sizes = (tiles.features, tiles.hidden1, tiles.hidden2, tiles.actions, registers or 0)
    return specialised(backtest_policy, names, sizes, tiles.slope, int(greedy), pattern)


def backtest_kernel(tiles: Tiles, pattern, greedy: bool, registers=None):
    """The compiled kernel. registers: at most so many a thread, None: any."""
    kernel = jit(backtest_function(tiles, pattern, greedy, registers), **({"max_registers": registers} if registers else {}))
    return cached(kernel)


def launch_backtest(kernel, tiles: Tiles, layers, packed, table, prices, starts, stops, outputs, launch, rules, *, groups=1, warps=1, stream=0):
    """Pack the actor's six float32 arrays and play all windows. outputs: (equity, actions, totals, steps, status), as above."""
    launch_pack(tiles, layers, *packed, stream)
    blocks = blocks_for(starts.shape[0], ROWS * groups * warps)
    kernel[blocks, LANES * warps, stream](*packed, table, prices, starts, stops, *outputs, launch, rules, groups)
