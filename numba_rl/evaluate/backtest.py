"""Playing a policy, or given actions, over ranges of a market by the rules of training; a path a range."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np
import torch

from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.data.windows import Range
from numba_rl.errors import UserError
from numba_rl.evaluate.trades import Trades, round_trips
from numba_rl.kernels import backtest as kernel
from numba_rl.kernels.select import HELD, VOLATILITY
from numba_rl.kernels.slots import BAR, CLOCK_FIELDS, CLOSE
from numba_rl.kernels.step import Launch
from numba_rl.rules.barrier import BARRIER_FIELDS
from numba_rl.rules.diversity import WINDOW_FIELDS
from numba_rl.rules.parameters import Rules, rules_of
from numba_rl.rules.portfolio import PORTFOLIO_FIELDS
from numba_rl.rules.shaping import SHAPING_FIELDS

STEPPED_A_THREAD = 32  # windows that a thread has where all move by one step at a time


@dataclass(frozen=True)
class Backtest:
    """One account over one range: n steps, n + 1 points. Money and prices float64.

    timestamp int64 [n + 1] ns, close, equity (net) and gross_equity [n + 1]: at the decision bar before the first step,
    then at each mark; gross_equity gives fees, spread and financing back to the same trades. action int32 [n], -1 where
    there is none. target, exposure [n]: asked for, and held after the fill. position [n] units after the fill. price [n]
    of the fill before the spread, the close where nothing filled. traded [n] units. fee, spread_cost, financing [n]
    money, those of an exit included. reward float32 [n]. terminated: ruined, the arrays end there. closed_at_end: an open
    position was closed at the last close, at cost. exit_notional [n]: money of exits that were forced (a ruin, a window's end),
    None: none but the one at the end that the two flags tell of, at the last close.
    """

    timestamp: np.ndarray
    close: np.ndarray
    equity: np.ndarray
    gross_equity: np.ndarray
    action: np.ndarray
    target: np.ndarray
    exposure: np.ndarray
    position: np.ndarray
    price: np.ndarray
    traded: np.ndarray
    fee: np.ndarray
    spread_cost: np.ndarray
    financing: np.ndarray
    reward: np.ndarray
    terminated: bool
    closed_at_end: bool
    bars_per_year: float
    interval_ns: int
    name: str
    multiplier: float
    trades: Trades
    exit_notional: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.action)


def evaluation_rules(config: Config, market: Market) -> Rules:
    """The rules of training with the running shaping statistics frozen."""
    return rules_of(config, market.bars_per_year)._replace(shaping_frozen=1)


def decision_range(window: Range) -> Range:
    """The bars that a window is played on: from the bar before its start, so that its first bar's profit counts."""
    return Range(max(window.start - 1, 0), window.stop)


def bars_of(played: Sequence[Range]) -> Range:
    """All bars of ranges, with what lies between them."""
    return Range(min(window.start for window in played), max(window.stop for window in played))


def require_playable(market: Market, ranges: Sequence[Range]) -> None:
    """UserError where there is no window, or one that has no step."""
    for window in ranges:
        if not 0 <= window.start < window.stop <= len(market.prices) or window.stop - max(window.start - 1, 0) < 2:
            raise UserError(f"{market.source}: a window of bars [{window.start}, {window.stop}) cannot be played; 2 bars are needed")
    if not ranges:
        raise UserError(f"{market.source}: there are no windows to evaluate; give at least one")


def require_choices(status: np.ndarray) -> None:
    """UserError for the first of the windows whose policy had no valid choice; status int32 [W] as in kernels.step."""
    if status.any():
        w = int(np.argmax(status > 0))
        raise UserError(f"the policy gave NaN in window {w} at step {int(status[w]) - 1}; it is broken, evaluate an earlier checkpoint")


class AccountingError(RuntimeError):
    """An equity that its own fills do not explain: a defect of the rules, never something to carry on with."""


def require_accounting(equity, close, units, price, cost, financing, multiplier, name) -> None:
    """AccountingError unless equity = initial capital + realised + unrealised profit - costs after every step, within 1e-9 of it.

    equity, close float64 [n + 1]; two fills a step, its order's and its exit's: units signed, price before the spread and cost
    (fee and spread) float64 [2 n], units 0 where nothing filled; financing [n].
    """
    paid = np.where(units != 0.0, units * price, 0.0) * multiplier + cost
    cash = equity[0] - np.cumsum(paid)[1::2] - np.cumsum(financing)
    wanted = cash + np.cumsum(units)[1::2] * close[1:] * multiplier
    broken = ~(np.abs(equity[1:] - wanted) <= 1e-9 * np.maximum.accumulate(np.maximum(np.abs(cash), equity[0])))
    if broken.any():
        t = int(np.argmax(broken))
        raise AccountingError(f"{name}: after step {t} the equity is {equity[t + 1]!r}, but its fills make {wanted[t]!r}")


class _Windows:
    """The arrays of a batch of windows, and their results as Backtests."""

    def __init__(self, market: Market, config: Config, ranges, rules: Rules | None):
        require_playable(market, ranges)
        self.market, self.ranges = market, [decision_range(window) for window in ranges]
        self.rules = rules or evaluation_rules(config, market)
        count = len(ranges)
        self.longest = max(window.stop - 1 - window.start for window in self.ranges)
        self.slots = (
            np.zeros((count, PORTFOLIO_FIELDS)),
            np.zeros((count, BARRIER_FIELDS)),
            np.zeros((count, WINDOW_FIELDS), np.int64),
            np.zeros((count, SHAPING_FIELDS)),
            np.zeros((count, CLOCK_FIELDS), np.int64),
        )
        self.slots[4][:, BAR] = [window.start for window in self.ranges]
        self.stops = np.array([window.stop for window in self.ranges], np.int64)
        self.states = np.zeros((1, count, market.features.shape[1] + 3), np.float32)
        self.actions = np.zeros((self.longest, count), np.int32)
        self.rewards = np.zeros((self.longest, count), np.float32)
        self.record = np.zeros((self.longest, count, len(kernel.COLUMNS)))
        self.steps = np.zeros(count, np.int32)
        self.status = np.zeros(count, np.int32)
        kernel.open_windows(*self.slots, market.prices, market.features, self.states, self.rules)

    @contextlib.contextmanager
    def threads(self, each: int):
        """A thread for so many windows each, and no more: to wake one for a step of one account costs more than the step."""
        before = numba.get_num_threads()
        numba.set_num_threads(max(1, min(before, len(self.ranges) // each)))
        try:
            yield
        finally:
            numba.set_num_threads(before)

    def play(self, function, t, logits, launch):
        function(
            t, logits, *self.slots, self.market.prices, self.market.features, self.states, self.actions, self.rewards,
            self.record, self.stops, self.steps, self.status, launch, self.rules,
        )  # fmt: skip

    def routing(self):
        """(exposures held float64 [W], volatility regimes float32 [W]) at the decision bars."""
        bars = np.minimum(self.slots[4][:, BAR], len(self.market.regime) - 1)
        return self.slots[0][:, HELD].copy(), self.market.regime[bars, VOLATILITY]

    def results(self, names) -> list[Backtest]:
        require_choices(self.status)
        return [self._result(w, name) for w, name in enumerate(names)]

    def _result(self, w, name) -> Backtest:
        n = int(self.steps[w])
        window, market = self.ranges[w], self.market
        row = self.record[:n, w]
        close = np.ascontiguousarray(market.prices[window.start : window.start + n + 1, CLOSE])
        initial = self.rules.initial_capital
        fee = row[:, kernel.FEE] + row[:, kernel.EXIT_FEE]
        spread_cost = row[:, kernel.SPREAD_COST] + row[:, kernel.EXIT_SPREAD_COST]
        financing = row[:, kernel.FINANCING].copy()
        equity = np.concatenate([[initial], row[:, kernel.EQUITY]])
        index = np.repeat(np.arange(n), 2)
        units = np.stack([row[:, kernel.UNITS], row[:, kernel.EXIT_UNITS]], 1).ravel()
        price = np.stack([row[:, kernel.PRICE], row[:, kernel.EXIT_PRICE]], 1).ravel()
        cost = np.stack(
            [row[:, kernel.FEE] + row[:, kernel.SPREAD_COST], row[:, kernel.EXIT_FEE] + row[:, kernel.EXIT_SPREAD_COST]], 1
        ).ravel()
        exits = row[:, kernel.EXIT_UNITS] * np.where(row[:, kernel.EXIT_UNITS] != 0.0, row[:, kernel.EXIT_PRICE], 0.0)
        require_accounting(equity, close, units, price, cost, financing, self.rules.multiplier, name)
        finished = window.start + n == window.stop - 1
        ended_by_exit = row[-1, kernel.EXIT_UNITS] != 0.0
        return Backtest(
            timestamp=market.timestamp[window.start : window.start + n + 1].copy(),
            close=close,
            equity=equity,
            gross_equity=equity + np.concatenate([[0.0], np.cumsum(fee + spread_cost + financing)]),
            action=self.actions[:n, w].copy(),
            target=row[:, kernel.TARGET].copy(),
            exposure=row[:, kernel.EXPOSURE].copy(),
            position=row[:, kernel.POSITION].copy(),
            price=row[:, kernel.PRICE].copy(),
            traded=row[:, kernel.UNITS].copy(),
            fee=fee,
            spread_cost=spread_cost,
            financing=financing,
            reward=self.rewards[:n, w].copy(),
            terminated=bool(equity[-1] <= self.rules.equity_floor),
            closed_at_end=bool(finished and ended_by_exit and equity[-1] > self.rules.equity_floor),
            bars_per_year=market.bars_per_year,
            interval_ns=market.interval_ns,
            name=name,
            multiplier=self.rules.multiplier,
            trades=round_trips(index, units, price, cost, financing, close[-1], self.rules.multiplier),
            exit_notional=np.abs(exits) * self.rules.multiplier,
        )


@torch.no_grad()
def play_policy(
    market: Market, ranges: list[Range], policy, config: Config, *, names: list[str] | None = None, rules: Rules | None = None
) -> list[Backtest]:
    """Play a policy over every range at once, each on an account of its own.

    policy: states float32 [W, F + 3] (torch) -> logits float32 [W, 45]; greedy, or softmax at evaluate.temperature,
    by config.evaluate.policy. Raises UserError for windows that cannot be played and for a policy that gives NaN.
    """
    windows = _Windows(market, config, ranges, rules)
    softmax = config.evaluate.policy == "softmax"
    launch = Launch(config.train.seed, 0, 0, int(not softmax), 0, 1.0 / config.evaluate.temperature)
    states = torch.from_numpy(windows.states)[0]
    routed = getattr(policy, "routed", False)  # its order type depends on the exposure held and the bar's volatility regime
    with windows.threads(STEPPED_A_THREAD):
        for t in range(windows.longest):
            logits = policy.routed_logits(states, *windows.routing()) if routed else policy(states)
            windows.play(kernel.play_windows, t, logits.float().contiguous().cpu().numpy(), launch)
    return windows.results(names or [f"window {w}" for w in range(len(ranges))])


def play_actions(
    market: Market, ranges: list[Range], actions: np.ndarray, config: Config, *, names: list[str], rules: Rules | None = None
) -> list[Backtest]:
    """Play given actions int32 [steps, W] over the ranges, by the same rules."""
    windows = _Windows(market, config, ranges, rules)
    if actions.shape[0] < windows.longest or actions.shape[1] != len(ranges):
        raise UserError(f"actions of shape {actions.shape} do not cover {windows.longest} steps of {len(ranges)} windows")
    windows.actions[:] = actions[: windows.longest]
    with windows.threads(1):
        windows.play(kernel.play_given, 0, np.zeros((len(ranges), 1), np.float32), Launch(0, 0, 0, 0, 1, 1.0))
    return windows.results(names)
