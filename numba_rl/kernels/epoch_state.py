"""What lasts from epoch to epoch, in 8 float32 that no host looks at, with one-shot resets.

    0 EMA (0.99 a step) of |log close return|, the mean of it over the slots at each step; starts at 0.01
    1 running median of the same: a hundredth of the EMA towards each step's value; starts at 0.01
    2, 3 the shaping statistics (mean or A, variance or B): means over the slots
    4, 5 equity / initial: mean over the slots, and the highest peak so far; start at 1
    6 episodes finished, 7 steps played; both also exact, in int64

`begin` carries out what `reset` (int32 [1]) asks for and clears it: bit 1 volatility (0, 1), bit 2 portfolio (4, 5 and the
account of every slot: opened anew at its last price), bit 4 shaping (2, 3 and every slot's). `update` brings the state up to
date after a rollout, slots combined in a fixed order, so that reruns are bit-identical.

state float32 [8], exact int64 [2] (episodes, steps), returns float32 [T] (log close return of each bar), bars int32 [L, N],
ends int16 [L, N], slots as in kernels.slots; per_step float32 [L] and ended int32 [L] are scratch, ticket int32 [1] starts at 0.
"""

from functools import cache

from numba import njit

from numba_rl.gpu import blocks_for, both, cuda, float32, int32, jit, rebound, uint32
from numba_rl.kernel_cache import cached
from numba_rl.kernels.slots import load_slot, store_slot
from numba_rl.rules.barrier import no_barrier
from numba_rl.rules.game import Slot
from numba_rl.rules.portfolio import open_portfolio
from numba_rl.rules.shaping import no_shaping

EMA, MEDIAN, SHAPING_FIRST, SHAPING_SECOND, EQUITY_MEAN, EQUITY_BEST, EPISODES, STEPS = range(8)
RESET_VOLATILITY, RESET_PORTFOLIO, RESET_SHAPING = 1, 2, 4
KEEP, START, MEDIAN_STEP = 0.99, 0.01, 0.01
THREADS = 256
AHEAD = 4  # slots that a thread reads at once
CASH, POSITION, INITIAL, LAST, PEAK = 0, 1, 3, 5, 9  # columns of a slot's portfolio


@both(load_slot, store_slot)
def reset_slot(e, mask, portfolio, barrier, window, shaping, rules):
    """What a reset does to slot e."""
    slot = load_slot(portfolio, barrier, window, shaping, e)
    if mask & RESET_PORTFOLIO:
        slot = Slot(open_portfolio(slot.portfolio.last, rules), no_barrier(), slot.window, slot.shaping)
    if mask & RESET_SHAPING:
        slot = Slot(slot.portfolio, slot.barrier, slot.window, no_shaping())
    store_slot(slot, portfolio, barrier, window, shaping, e)


@both()
def reset_state(mask, state):
    """What a reset does to the state."""
    if mask & RESET_VOLATILITY:
        state[EMA] = float32(START)
        state[MEDIAN] = float32(START)
    if mask & RESET_PORTFOLIO:
        state[EQUITY_MEAN] = float32(1.0)
        state[EQUITY_BEST] = float32(1.0)
    if mask & RESET_SHAPING:
        state[SHAPING_FIRST] = float32(0.0)
        state[SHAPING_SECOND] = float32(0.0)


@both()
def follow(ema, median, value):
    """(EMA, running median) after one more step."""
    ema = float32(KEEP) * ema + float32(1.0 - KEEP) * value
    above = median + float32(MEDIAN_STEP) * ema
    below = median - float32(MEDIAN_STEP) * ema
    return ema, above if value > median else below if value < median else median


@both()
def conclude(state, exact, ema, median, episodes, steps, slots, sums, best):
    """The state after a rollout of so many episodes and steps: sums float32 [3] over the slots of equity / initial and the shaping pair."""
    state[EMA] = ema
    state[MEDIAN] = median
    episodes += exact[0]
    steps += exact[1]
    exact[0] = episodes
    exact[1] = steps
    state[EQUITY_MEAN] = sums[0] / float32(slots)
    state[SHAPING_FIRST] = sums[1] / float32(slots)
    state[SHAPING_SECOND] = sums[2] / float32(slots)
    state[EQUITY_BEST] = max(state[EQUITY_BEST], best)
    state[EPISODES] = float32(episodes)
    state[STEPS] = float32(steps)


@both()
def equity_ratio(portfolio, e, multiplier):
    """Equity / initial capital of slot e."""
    return float32((portfolio[e, CASH] + portfolio[e, POSITION] * portfolio[e, LAST] * multiplier) / portfolio[e, INITIAL])


def begin_on_gpu(reset, ticket, state, portfolio, barrier, window, shaping, rules):
    mask = reset[0]
    e = cuda.grid(1)
    if e < portfolio.shape[0]:
        reset_slot(e, mask, portfolio, barrier, window, shaping, rules)
    if e == 0:
        reset_state(mask, state)
    cuda.syncthreads()  # all of the block have read the mask
    if cuda.threadIdx.x == 0:
        cuda.threadfence()
        if cuda.atomic.add(ticket, 0, 1) == cuda.gridDim.x - 1:
            ticket[0] = 0
            reset[0] = 0


def begin_on_cpu(reset, state, portfolio, barrier, window, shaping, rules):
    for e in range(portfolio.shape[0]):
        reset_slot(e, reset[0], portfolio, barrier, window, shaping, rules)
    reset_state(reset[0], state)
    reset[0] = 0


def update_on_cpu(state, exact, returns, bars, ends, portfolio, shaping, multiplier, per_step, ended):
    slots = bars.shape[1]
    ema = state[EMA]
    median = state[MEDIAN]
    episodes = 0
    for t in range(bars.shape[0]):
        total = float32(0.0)
        count = 0
        for e in range(slots):
            total += abs(returns[bars[t, e]])
            count += ends[t, e] != 0
        per_step[t] = total / float32(slots)
        ended[t] = count
        ema, median = follow(ema, median, per_step[t])
        episodes += count
    sums = [float32(0.0), float32(0.0), float32(0.0)]
    best = float32(0.0)
    for e in range(slots):
        sums[0] += equity_ratio(portfolio, e, multiplier)
        sums[1] += float32(shaping[e, 0])
        sums[2] += float32(shaping[e, 1])
        best = max(best, float32(portfolio[e, PEAK] / portfolio[e, INITIAL]))
    conclude(state, exact, ema, median, episodes, bars.shape[0] * slots, slots, sums, best)


begin_kernel = cached(jit(rebound(begin_on_gpu, {"reset_slot": reset_slot.device, "reset_state": reset_state.device})))
begin_cpu = cached(njit(error_model="numpy")(rebound(begin_on_cpu, {"reset_slot": reset_slot.cpu, "reset_state": reset_state.cpu})))
update_cpu = cached(
    njit(error_model="numpy")(rebound(update_on_cpu, {"conclude": conclude.cpu, "equity_ratio": equity_ratio.cpu, "follow": follow.cpu}))
)


conclude_here, equity_here, follow_here = conclude.device, equity_ratio.device, follow.device


@cache
def update_kernels(threads):
    """(steps, combine) kernels for blocks of `threads`, a power of two: a block a step, then one block.

    (Loops begin or step at blockDim, which is that number, so that the compiler unrolls none: small code starts sooner.)
    """

    def steps(returns, bars, ends, per_step, ended):
        totals = cuda.shared.array(threads, float32)
        counts = cuda.shared.array(threads, int32)
        bar = cuda.local.array(AHEAD, uint32)
        end = cuda.local.array(AHEAD, int32)
        move = cuda.local.array(AHEAD, float32)
        t = uint32(cuda.blockIdx.x)
        thread = uint32(cuda.threadIdx.x)
        slots = uint32(bars.shape[1])
        total = float32(0.0)
        count = int32(0)
        e = thread
        while e < slots:
            for k in range(AHEAD):
                place = uint32(min(uint32(e + k * threads), uint32(slots - 1)))
                bar[k] = uint32(bars[t, place])
                end[k] = int32(ends[t, place])
            for k in range(AHEAD):
                move[k] = returns[bar[k]]
            for k in range(AHEAD):
                if uint32(e + k * threads) < slots:
                    total += abs(move[k])
                    if end[k] != int32(0):
                        count = int32(count + 1)
            e = uint32(e + AHEAD * cuda.blockDim.x)
        totals[thread] = total
        counts[thread] = count
        width = uint32(uint32(cuda.blockDim.x) // uint32(2))
        while width > uint32(0):
            cuda.syncthreads()
            if thread < width:
                totals[thread] += totals[uint32(thread + width)]
                counts[thread] = int32(counts[thread] + counts[uint32(thread + width)])
            width = uint32(width // uint32(2))
        if thread == uint32(0):
            per_step[t] = totals[0] / float32(bars.shape[1])
            ended[t] = counts[0]

    def combine(state, exact, portfolio, shaping, multiplier, per_step, ended):
        sums = cuda.shared.array((3, threads), float32)
        best = cuda.shared.array(threads, float32)
        result = cuda.shared.array(3, float32)
        values = cuda.shared.array(threads, float32)
        finished = cuda.shared.array(threads, int32)
        thread = uint32(cuda.threadIdx.x)
        slots = uint32(portfolio.shape[0])
        steps = uint32(per_step.shape[0])
        one = uint32(uint32(cuda.blockDim.x) // uint32(threads))
        equity = float32(0.0)
        first = float32(0.0)
        second = float32(0.0)
        peak = float32(0.0)
        e = thread
        while e < slots:
            highest = portfolio[e, PEAK]
            first += float32(shaping[e, 0])
            second += float32(shaping[e, 1])
            equity += equity_here(portfolio, e, multiplier)
            peak = max(peak, float32(highest / portfolio[e, INITIAL]))
            e = uint32(e + cuda.blockDim.x)
        sums[0, thread] = equity
        sums[1, thread] = first
        sums[2, thread] = second
        best[thread] = peak
        count = int32(0)
        t = thread
        while t < steps:
            count = int32(count + ended[t])
            t = uint32(t + cuda.blockDim.x)
        finished[thread] = count
        width = uint32(uint32(cuda.blockDim.x) // uint32(2))
        while width > uint32(0):
            cuda.syncthreads()
            if thread < width:
                for k in range(3):
                    sums[k, thread] += sums[k, uint32(thread + width)]
                best[thread] = max(best[thread], best[uint32(thread + width)])
                finished[thread] = int32(finished[thread] + finished[uint32(thread + width)])
            width = uint32(width // uint32(2))
        # One thread goes through the steps, which the others hand to it.
        ema = state[EMA]
        median = state[MEDIAN]
        base = uint32(0)
        while base < steps:
            cuda.syncthreads()
            if uint32(base + thread) < steps:
                values[thread] = per_step[uint32(base + thread)]
            cuda.syncthreads()
            if thread == uint32(0):
                t = uint32(0)
                while t < uint32(min(uint32(steps - base), uint32(threads))):
                    ema, median = follow_here(ema, median, values[t])
                    t = uint32(t + one)
            base = uint32(base + cuda.blockDim.x)
        if thread == uint32(0):
            for k in range(3):
                result[k] = sums[k, 0]
            conclude_here(
                state, exact, ema, median, finished[0], per_step.shape[0] * portfolio.shape[0], portfolio.shape[0], result, best[0]
            )

    return cached(jit(steps)), cached(jit(combine))


def launch_begin(reset, ticket, state, portfolio, barrier, window, shaping, rules, stream=0, threads=THREADS):
    """Carry out and clear the resets asked for, before a rollout."""
    begin_kernel[blocks_for(portfolio.shape[0], threads), threads, stream](reset, ticket, state, portfolio, barrier, window, shaping, rules)


def launch_update(state, exact, returns, bars, ends, portfolio, shaping, multiplier, per_step, ended, stream=0, threads=THREADS):
    """Bring the state up to date after a rollout."""
    steps, combine = update_kernels(threads)
    steps[bars.shape[0], threads, stream](returns, bars, ends, per_step, ended)
    combine[1, threads, stream](state, exact, portfolio, shaping, multiplier, per_step, ended)
