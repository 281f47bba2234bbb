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

from numba_rl.gpu import blocks_for, both, cuda, float32, int32, jit, rebound
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
def conclude(state, exact, per_step, ended, slots, sums, best):
    """The state after a rollout: sums float32 [3] over the slots of equity / initial and the shaping pair."""
    ema = state[EMA]
    median = state[MEDIAN]
    for t in range(per_step.shape[0]):
        value = per_step[t]
        ema = float32(KEEP) * ema + float32(1.0 - KEEP) * value
        move = float32(MEDIAN_STEP) * ema
        if value > median:
            median += move
        elif value < median:
            median -= move
        exact[0] += ended[t]
    state[EMA] = ema
    state[MEDIAN] = median
    exact[1] += per_step.shape[0] * slots
    state[EQUITY_MEAN] = sums[0] / float32(slots)
    state[SHAPING_FIRST] = sums[1] / float32(slots)
    state[SHAPING_SECOND] = sums[2] / float32(slots)
    state[EQUITY_BEST] = max(state[EQUITY_BEST], best)
    state[EPISODES] = float32(exact[0])
    state[STEPS] = float32(exact[1])


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
    for t in range(bars.shape[0]):
        total = float32(0.0)
        count = 0
        for e in range(slots):
            total += abs(returns[bars[t, e]])
            count += ends[t, e] != 0
        per_step[t] = total / float32(slots)
        ended[t] = count
    sums = [float32(0.0), float32(0.0), float32(0.0)]
    best = float32(0.0)
    for e in range(slots):
        sums[0] += equity_ratio(portfolio, e, multiplier)
        sums[1] += float32(shaping[e, 0])
        sums[2] += float32(shaping[e, 1])
        best = max(best, float32(portfolio[e, PEAK] / portfolio[e, INITIAL]))
    conclude(state, exact, per_step, ended, slots, sums, best)


begin_kernel = cached(jit(rebound(begin_on_gpu, {"reset_slot": reset_slot.device, "reset_state": reset_state.device})))
begin_cpu = cached(njit(error_model="numpy")(rebound(begin_on_cpu, {"reset_slot": reset_slot.cpu, "reset_state": reset_state.cpu})))
update_cpu = cached(njit(error_model="numpy")(rebound(update_on_cpu, {"conclude": conclude.cpu, "equity_ratio": equity_ratio.cpu})))


conclude_here, equity_here = conclude.device, equity_ratio.device


@cache
def update_kernels(threads):
    """(steps, combine) kernels for blocks of `threads`, a power of two: a block a step, then one block."""

    def steps(returns, bars, ends, per_step, ended):
        total = cuda.shared.array(threads, float32)
        count = cuda.shared.array(threads, int32)
        t = cuda.blockIdx.x
        thread = cuda.threadIdx.x
        total[thread] = float32(0.0)
        count[thread] = 0
        for e in range(thread, bars.shape[1], threads):
            total[thread] += abs(returns[bars[t, e]])
            if ends[t, e] != 0:
                count[thread] += 1
        width = threads
        while width > 1:
            width //= 2
            cuda.syncthreads()
            if thread < width:
                total[thread] += total[thread + width]
                count[thread] += count[thread + width]
        if thread == 0:
            per_step[t] = total[0] / float32(bars.shape[1])
            ended[t] = count[0]

    def combine(state, exact, portfolio, shaping, multiplier, per_step, ended):
        sums = cuda.shared.array((3, threads), float32)
        best = cuda.shared.array(threads, float32)
        result = cuda.shared.array(3, float32)
        thread = cuda.threadIdx.x
        for k in range(3):
            sums[k, thread] = float32(0.0)
        best[thread] = float32(0.0)
        for e in range(thread, portfolio.shape[0], threads):
            sums[0, thread] += equity_here(portfolio, e, multiplier)
            sums[1, thread] += float32(shaping[e, 0])
            sums[2, thread] += float32(shaping[e, 1])
            best[thread] = max(best[thread], float32(portfolio[e, PEAK] / portfolio[e, INITIAL]))
        width = threads
        while width > 1:
            width //= 2
            cuda.syncthreads()
            if thread < width:
                for k in range(3):
                    sums[k, thread] += sums[k, thread + width]
                best[thread] = max(best[thread], best[thread + width])
        if thread == 0:
            for k in range(3):
                result[k] = sums[k, 0]
            conclude_here(state, exact, per_step, ended, portfolio.shape[0], result, best[0])

    return cached(jit(steps)), cached(jit(combine))


def launch_begin(reset, ticket, state, portfolio, barrier, window, shaping, rules, stream=0, threads=THREADS):
    """Carry out and clear the resets asked for, before a rollout."""
    begin_kernel[blocks_for(portfolio.shape[0], threads), threads, stream](reset, ticket, state, portfolio, barrier, window, shaping, rules)


def launch_update(state, exact, returns, bars, ends, portfolio, shaping, multiplier, per_step, ended, stream=0, threads=THREADS):
    """Bring the state up to date after a rollout."""
    steps, combine = update_kernels(threads)
    steps[bars.shape[0], threads, stream](returns, bars, ends, per_step, ended)
    combine[1, threads, stream](state, exact, portfolio, shaping, multiplier, per_step, ended)
