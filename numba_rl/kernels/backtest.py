"""One evaluation step of every window: choose, play by the same rules as training, record what happened.

Windows are independent accounts side by side. Shapes (W windows, S steps of the longest): logits float32 [W, A]; prices
float64 [T, 4]; slots as in kernels.slots, clock[w, BAR] being the decision bar; stops int64 [W]: one past each window's
last bar; states float32 [1, W, F + 3], rewritten for the next step; actions int32 [S, W]; rewards float32 [S, W];
record float64 [S, W, 13] with the columns named below; steps int32 [W]: steps really played, status int32 [W] as in
kernels.step. Rewards and record may have fewer rows: the last one is then written anew by each further step.

On a GPU a window is a thread and plays its next step, so that nothing is counted outside of it and a captured launch goes on where the
last one ended; rewards and record have one row. Beside the above: equities float64 [S, W], net at each mark; regime float32 [T, 3];
held float64 [W] and volatility float32 [W], what kernels.route needs for the next step: the exposure held, and the bar's feature 41.
"""

from numba import njit, prange
from numpy import float32

from numba_rl.gpu import blocks_for, both, cuda, device, jit, rebound
from numba_rl.kernel_cache import cached
from numba_rl.kernels.sampling import draw, greedy
from numba_rl.kernels.select import HELD, VOLATILITY
from numba_rl.kernels.slots import BAR, CLOSE, PLAYED, STEP, load_slot, store_slot
from numba_rl.kernels.step import write_state
from numba_rl.rules.actions import FLAT, NORMAL, compose, target_exposure
from numba_rl.rules.game import Slot, fresh_slot, play
from numba_rl.rules.philox import EVALUATE, uniform
from numba_rl.rules.portfolio import begin_episode, close_out, equity_at, portfolio_features
from numba_rl.rules.shaping import no_shaping

COLUMNS = (
    "equity",  # net, at the mark, after any exit
    "target",  # exposure asked for
    "exposure",  # held after the fill
    "position",  # units after the fill
    "price",  # of the fill before the spread
    "units",  # filled
    "fee",
    "spread_cost",
    "financing",
    "exit_units",  # forced exit of a ruined account, or the exit at the window's end
    "exit_price",
    "exit_fee",
    "exit_spread_cost",
)
(EQUITY, TARGET, EXPOSURE, POSITION, PRICE, UNITS, FEE, SPREAD_COST, FINANCING, EXIT_UNITS, EXIT_PRICE, EXIT_FEE, EXIT_SPREAD_COST) = (
    range(len(COLUMNS))
)
THREADS = 32  # a block, at most


@both(load_slot, store_slot, write_state)
def open_window(w, portfolio, barrier, window, shaping, clock, prices, features, states, rules):
    """A flat account at the close of the window's decision bar, and the first state."""
    bar = clock[w, BAR]
    slot = fresh_slot(prices[bar, CLOSE], no_shaping(), rules)
    store_slot(slot, portfolio, barrier, window, shaping, w)
    equity, share, spread = portfolio_features(slot.portfolio, rules)
    write_state(states, 0, w, features, bar, equity, share, spread)


@both(draw, greedy, load_slot, store_slot, write_state)
def play_window(
    w, t, logits, portfolio, barrier, window, shaping, clock, prices, features, states, actions, rewards, record, stops, steps,
    status, launch, rules,
):  # fmt: skip
    """Step t of window w; nothing happens in a window that is over."""
    bar = clock[w, BAR]
    if bar + 1 >= stops[w] or steps[w] != t:
        return
    if launch.given == 1:
        action = actions[t, w]
    elif launch.greedy == 1:
        action = greedy(logits, w, logits.shape[1])
    else:
        u = uniform(launch.seed, EVALUATE, w, 0, clock[w, PLAYED], 0)
        action, _ = draw(logits, w, logits.shape[1], float32(u), float32(launch.inverse_temperature))
    if action < 0:
        if status[w] == 0:
            status[w] = t + 1
        action = compose(FLAT, 0, NORMAL)
    slot, outcome, reward = play(
        load_slot(portfolio, barrier, window, shaping, w),
        action,
        prices[bar, CLOSE],
        prices[bar + 1, 0],
        prices[bar + 1, 1],
        prices[bar + 1, 2],
        prices[bar + 1, CLOSE],
        clock[w, STEP],
        rules,
    )
    close = prices[bar + 1, CLOSE]
    exit_units = outcome.exit_units
    exit_price = outcome.exit_price
    exit_fee = outcome.exit_fee
    exit_spread_cost = outcome.exit_spread_cost
    if bar + 2 >= stops[w] and outcome.terminated == 0:
        # The window's end: what is open is closed at the last close, at cost, and the last point of the equity shows it.
        exit_units = -slot.portfolio.position
        exit_price = close
        account, exit_fee, exit_spread_cost = close_out(slot.portfolio, close, rules)
        slot = Slot(account, slot.barrier, slot.window, slot.shaping)
    equity = equity_at(slot.portfolio, close, rules)
    if (clock[w, STEP] + 1) % rules.episode_length == 0 and equity > 0.0:
        slot = Slot(begin_episode(slot.portfolio, equity), slot.barrier, slot.window, slot.shaping)
    store_slot(slot, portfolio, barrier, window, shaping, w)
    clock[w, BAR] = bar + 1
    clock[w, STEP] += 1
    clock[w, PLAYED] += 1
    actions[t, w] = action
    rewards[min(t, rewards.shape[0] - 1), w] = float32(reward)
    row = min(t, record.shape[0] - 1)
    record[row, w, EQUITY] = equity
    record[row, w, TARGET] = target_exposure(action)
    record[row, w, EXPOSURE] = outcome.exposure_after
    record[row, w, POSITION] = outcome.position_after
    record[row, w, PRICE] = outcome.price
    record[row, w, UNITS] = outcome.units
    record[row, w, FEE] = outcome.fee
    record[row, w, SPREAD_COST] = outcome.spread_cost
    record[row, w, FINANCING] = outcome.financing
    record[row, w, EXIT_UNITS] = exit_units
    record[row, w, EXIT_PRICE] = exit_price
    record[row, w, EXIT_FEE] = exit_fee
    record[row, w, EXIT_SPREAD_COST] = exit_spread_cost
    steps[w] = t + 1
    if outcome.terminated == 1:
        clock[w, BAR] = stops[w]
    else:
        growth, share, spread = portfolio_features(slot.portfolio, rules)
        write_state(states, 0, w, features, bar + 1, growth, share, spread)


def _open_windows(portfolio, barrier, window, shaping, clock, prices, features, states, rules):
    for w in prange(clock.shape[0]):
        open_window(w, portfolio, barrier, window, shaping, clock, prices, features, states, rules)


def _play_windows(
    t, logits, portfolio, barrier, window, shaping, clock, prices, features, states, actions, rewards, record, stops, steps,
    status, launch, rules,
):  # fmt: skip
    for w in prange(clock.shape[0]):
        play_window(
            w, t, logits, portfolio, barrier, window, shaping, clock, prices, features, states, actions, rewards, record, stops,
            steps, status, launch, rules,
        )  # fmt: skip


def _play_given(
    t, logits, portfolio, barrier, window, shaping, clock, prices, features, states, actions, rewards, record, stops, steps,
    status, launch, rules,
):  # fmt: skip
    for w in prange(clock.shape[0]):
        for step in range(t, actions.shape[0]):
            play_window(
                w, step, logits, portfolio, barrier, window, shaping, clock, prices, features, states, actions, rewards, record,
                stops, steps, status, launch, rules,
            )  # fmt: skip


def _parallel(function, **names):
    return cached(njit(error_model="numpy", parallel=True)(rebound(function, names)))


open_windows = _parallel(_open_windows, open_window=open_window.cpu)
play_windows = _parallel(_play_windows, play_window=play_window.cpu)
play_given = _parallel(_play_given, play_window=play_window.cpu)  # actions are known: all steps from t on, no forward pass


@device
def note_routing(w, portfolio, clock, regime, held, volatility):
    """What window w holds, and the volatility regime of its decision bar."""
    held[w] = portfolio[w, HELD]
    volatility[w] = regime[min(clock[w, BAR], regime.shape[0] - 1), VOLATILITY]


def _open_on_gpu(portfolio, barrier, window, shaping, clock, prices, features, states, regime, held, volatility, rules):
    w = cuda.grid(1)
    if w < clock.shape[0]:
        open_window(w, portfolio, barrier, window, shaping, clock, prices, features, states, rules)
        note_routing(w, portfolio, clock, regime, held, volatility)


def _step_on_gpu(
    logits, portfolio, barrier, window, shaping, clock, prices, features, states, regime, held, volatility, equities, actions, rewards,
    record, stops, steps, status, launch, rules,
):  # fmt: skip
    w = cuda.grid(1)
    if w < clock.shape[0]:
        t = steps[w]
        play_window(
            w, t, logits, portfolio, barrier, window, shaping, clock, prices, features, states, actions, rewards, record, stops,
            steps, status, launch, rules,
        )  # fmt: skip
        if steps[w] != t:
            equities[t, w] = record[0, w, EQUITY]
            note_routing(w, portfolio, clock, regime, held, volatility)


open_kernel = cached(jit(rebound(_open_on_gpu, {"open_window": open_window.device})))
step_kernel = cached(jit(rebound(_step_on_gpu, {"play_window": play_window.device})))


def launch_open(*arguments, windows, stream=0):
    """Open all windows on a GPU or in the simulator; arguments of `_open_on_gpu`."""
    threads = min(THREADS, windows)
    open_kernel[blocks_for(windows, threads), threads, stream](*arguments)


def launch_step(*arguments, windows, stream=0):
    """Play the next step of every window that is not over; arguments of `_step_on_gpu`."""
    threads = min(THREADS, windows)
    step_kernel[blocks_for(windows, threads), threads, stream](*arguments)
