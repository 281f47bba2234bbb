"""What the float64 ledger makes of given actions in one window: fills and round trips, to hold backtests against one by one.

A round trip's profit is counted from its money alone (what was paid for units less what they brought), not from average prices.
"""

from typing import NamedTuple

import numpy as np

from numba_rl.evaluate.backtest import decision_range, play_actions
from numba_rl.evaluate.ledger import Ledger
from numba_rl.kernels.backtest_policy import FEES, FILLS, FINANCING, MAX_DRAWDOWN, SPREAD_COST, TOTALS, TRADED
from numba_rl.rules.parameters import rules_of

# What the backtest kernel is tried on: every kind of cost and fill, ruin, episodes shorter than a window, and drawn actions.
GAMES = {
    "default": {},
    "dear": {"market.spread_bps": 5.0, "market.financing_rate": 0.3, "market.min_fee": 1.0, "market.tick": 0.01, "market.lot": 0.5},
    "close": {"market.fill_at": "close", "market.leverage": 3.0, "market.drift_tolerance": 0.05, "market.multiplier": 50.0},
    "units": {"market.sizing": "units", "market.max_position": 3000.0, "market.fill_simulation": False, "market.taker_bps": -1.0},
    "ruin": {"market.leverage": 30.0, "market.fill_at": "close", "market.equity_floor": 970_000.0},
    "gap": {"market.leverage": 60.0, "market.equity_floor": 970_000.0},  # ruined between two bars too
    "softmax": {"evaluate.policy": "softmax"},
    "episodes": {"market.leverage": 20.0, "episodes.length": 3},
}  # fmt: skip


class Fill(NamedTuple):
    step: int
    units: float  # signed
    price: float  # before the spread
    fee: float
    spread_cost: float


class Account(NamedTuple):
    equity: list[float]  # after each step
    fills: list[Fill]
    financing: list[float]  # of each step
    trades: list[dict[str, float]]
    terminated: bool
    orders: int  # that filled; an exit is none


def account(config, bars_per_year, prices, start, stop, actions) -> Account:
    """Decisions at bars start .. stop - 2 of prices [T, 4], actions int [>= stop - 1 - start]; what is open at the end is closed at cost."""
    ledger = Ledger(config.market, rules_of(config, bars_per_year).financing)
    equity, fills, financing, terminated, orders = [], [], [], False, 0
    for step, bar in enumerate(range(start, stop - 1)):
        done = ledger.step(int(actions[step]), prices[bar, 3], prices[bar + 1])
        if done.units:
            orders += 1
            fills.append(Fill(step, done.units, done.price, done.fee, done.spread_cost))
        if done.exit_units:
            fills.append(Fill(step, done.exit_units, done.exit_price, done.exit_fee, done.exit_spread_cost))
        close, terminated = prices[bar + 1, 3], done.terminated
        if bar == stop - 2 and not terminated and (units := -ledger.position):
            _, fee, spread_cost = ledger.leave(close)
            fills.append(Fill(step, units, close, fee, spread_cost))
        equity.append(ledger.equity(close))
        financing.append(done.financing)
        if terminated:
            break
    return Account(equity, fills, financing, _round_trips(fills, financing, config.market.multiplier), terminated, orders)


def _round_trips(fills, financing, multiplier):
    """Cut where the position is nothing or changes its sign; a fill that flips belongs to both trips, by its units."""
    trips, trip, position = [], [], 0.0
    for fill in fills:
        after = position + fill.units
        after = 0.0 if abs(after) < 1e-9 * abs(fill.units) else after
        closes = -position if position * after < 0 else fill.units
        trip.append((fill, closes))
        if after == 0.0 or position * after < 0:
            trips.append(trip)
            trip = [(fill, fill.units - closes)] if after else []
        position = after
    assert not trip and position == 0.0
    return [_trade(trip, financing, multiplier) for trip in trips]


def _trade(trip, financing, multiplier):
    first, last = trip[0][0].step, trip[-1][0].step
    side = np.sign(trip[0][1])
    held = np.cumsum([units for _, units in trip])
    into = [(fill, units) for fill, units in trip if units * side > 0]
    out = [(fill, units) for fill, units in trip if units * side < 0]
    average = [sum(abs(units) * fill.price for fill, units in part) / sum(abs(units) for _, units in part) for part in (into, out)]
    gross = -sum(units * fill.price for fill, units in trip) * multiplier
    costs = sum((fill.fee + fill.spread_cost) * units / fill.units for fill, units in trip) + sum(financing[first : last + 1])
    return {
        "entry_index": first, "exit_index": last, "side": side, "units": np.abs(held).max(), "entry_price": average[0], "exit_price": average[1],
        "gross": gross, "costs": costs, "net": gross - costs, "is_open": False,
    }  # fmt: skip


def assert_same_trades(backtest, expected: Account, scale: float) -> int:
    """Each round trip of a Backtest is the ledger's: bars, side, units, prices, profit and costs; how many there are. scale: money of the account."""
    trades = backtest.trades
    assert len(trades.net) == len(expected.trades)
    for k, trade in enumerate(expected.trades):
        for field, value in trade.items():
            found = getattr(trades, field)[k]
            absolute = scale * 1e-9 if field in ("gross", "costs", "net") else 0.0
            np.testing.assert_allclose(found, value, rtol=1e-9, atol=absolute, err_msg=f"{field} of trade {k} of {backtest.name}")
    return len(trades.net)


def assert_fills(equity, totals, expected: Account, market) -> None:
    """A window of the backtest kernel did what the ledger did: equity [n] after each step, and totals (TOTALS) of all fills.

    market: the MarketConfig.
    """
    capital = market.initial_capital
    np.testing.assert_allclose(equity, expected.equity, rtol=1e-12, atol=1e-12 * capital)
    fills, marks = expected.fills, np.array([capital, *expected.equity])
    peaks = np.maximum.accumulate(marks)
    found = {
        FEES: sum(fill.fee for fill in fills), SPREAD_COST: sum(fill.spread_cost for fill in fills), FINANCING: sum(expected.financing),
        TRADED: sum(abs(fill.units * fill.price) for fill in fills) * market.multiplier, FILLS: expected.orders,
        MAX_DRAWDOWN: ((peaks - marks) / peaks).max(),
    }  # fmt: skip
    for column, value in found.items():
        absolute = 1e-12 if column == MAX_DRAWDOWN else 1e-9
        np.testing.assert_allclose(totals[column], value, rtol=1e-9, atol=absolute, err_msg=TOTALS[column])


def assert_windows(outputs, market, ranges, config, some) -> tuple[list, int]:
    """Windows `some` of a GpuWindows' outputs are the ledger's: every mark, all totals, and each round trip of their replay.

    Returns (the Backtests of the replay, the number of round trips).
    """
    equity, actions, totals, steps, status = (tensor.cpu().numpy() for tensor in outputs)
    assert not status.any()
    chosen = np.ascontiguousarray(actions[:, some], np.int32)
    replay = play_actions(market, [ranges[w] for w in some], chosen, config, names=[f"window {w}" for w in some])
    trips = 0
    for k, w in enumerate(some):
        start, stop = decision_range(ranges[w])
        expected = account(config, market.bars_per_year, market.prices, start, stop, chosen[:, k])
        n = len(expected.equity)
        assert steps[w] == n and replay[k].terminated == expected.terminated
        assert not equity[n:, w].any() and not actions[n:, w].any()  # zeros before the launch: left alone
        assert_fills(equity[:n, w], totals[w], expected, config.market)
        trips += assert_same_trades(replay[k], expected, config.market.initial_capital)
    return replay, trips
