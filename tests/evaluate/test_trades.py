"""Backtests trade by trade against the float64 ledger: every round trip's bars, units, prices, profit and costs."""

import numpy as np
import pytest
from reference.trades import account, assert_same_trades
from rules.driver import random_bars

from numba_rl import settings
from numba_rl.config import Config
from numba_rl.data.bars import Bars
from numba_rl.data.market import load_market
from numba_rl.data.windows import Range
from numba_rl.evaluate.backtest import decision_range, play_actions
from numba_rl.evaluate.metrics import compute_metrics, exit_notional, notional
from numba_rl.evaluate.trades import bars_held, fill_times

MINUTE = 60_000_000_000
WINDOWS = [Range(1, 120), Range(60, 61), Range(100, 300), Range(299, 360), Range(1, 700)]
GAMES = {
    "default": {},
    "dear": {"market.spread_bps": 5.0, "market.financing_rate": 0.3, "market.min_fee": 1.0, "market.tick": 0.01, "market.lot": 0.5},
    "close": {"market.fill_at": "close", "market.multiplier": 50.0, "market.taker_bps": -1.0},
    "units": {"market.sizing": "units", "market.max_position": 300.0, "market.fill_simulation": False},
    "drift": {"market.drift_tolerance": 0.02, "market.leverage": 3.0},
    "ruin": {"market.leverage": 60.0, "market.equity_floor": 200_000.0},
}


@pytest.fixture(scope="module")
def market():
    prices = random_bars(np.random.default_rng(3), 1100, 0.004)
    stamps = MINUTE * np.arange(len(prices))
    bars = Bars(stamps, *np.ascontiguousarray(prices.T), np.ones(len(prices)), MINUTE, 525_600.0, "random", (), ())
    return load_market(settings.replace(Config(), {"data.bars_per_year": 525_600.0}), bars)


@pytest.mark.parametrize("name", GAMES)
def test_every_trade_is_the_ledgers(market, name):
    config = settings.replace(Config(), GAMES[name])
    actions = np.random.default_rng(5).integers(0, 45, (700, len(WINDOWS))).astype(np.int32)
    actions[1:] = np.where(
        np.random.default_rng(6).random((699, len(WINDOWS))) < 0.5, actions[:-1], actions[1:]
    )  # some are held for a while
    found = 0
    for w, backtest in enumerate(play_actions(market, WINDOWS, actions, config, names=list(map(str, WINDOWS)))):
        start, stop = decision_range(WINDOWS[w])
        expected = account(config, market.bars_per_year, market.prices, start, stop, actions[:, w])
        assert backtest.terminated == expected.terminated
        np.testing.assert_allclose(backtest.equity[1:], expected.equity, rtol=1e-10)
        found += assert_same_trades(backtest, expected, config.market.initial_capital)
        traded = sum(abs(fill.units * fill.price) for fill in expected.fills) * config.market.multiplier  # exits at their own price
        assert notional(backtest).sum() == pytest.approx(traded, rel=1e-9)
        assert backtest.fee.sum() == pytest.approx(sum(fill.fee for fill in expected.fills), rel=1e-9)
    assert found > (5 if name == "ruin" else 200)


@pytest.mark.parametrize(
    ("orders", "next_open", "close", "held"),  # orders decided on the bars 9 to 13; bar 14 is the last
    [
        ("-bb--", [(11, 13)], [(10, 12)], [2]),
        ("-bbbb", [(11, 14)], [(10, 14)], [4]),  # closed at the close of the window's last bar either way
        ("-bbbs", [(11, 14), (14, 14)], [(10, 13), (13, 14)], [3, 1]),  # turned by an order, then closed at the end
    ],
)
def test_fills_are_stamped_with_the_bar_that_filled_them(market, orders, next_open, close, held):
    kinds = {"b": 38, "-": 20, "s": 2}  # long, flat and short by an aggressive market order
    actions = np.array([[kinds[order]] for order in orders], np.int32)
    for fill_at, wanted in (("next_open", next_open), ("close", close)):
        backtest = play_actions(market, [Range(10, 15)], actions, settings.replace(Config(), {"market.fill_at": fill_at}), names=[""])[0]
        entered, left = fill_times(backtest.trades, backtest.timestamp, fill_at, exit_notional(backtest))
        assert list(zip(entered, left, strict=True)) == [tuple(market.timestamp[list(pair)]) for pair in wanted]
        assert bars_held(backtest.trades, exit_notional(backtest)).tolist() == held
        assert compute_metrics(backtest)["average_bars_held"] == np.mean(held)
