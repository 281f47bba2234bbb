"""The backtest kernel in the simulator against the CPU path: the same choices but for near ties, the same money given them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from reference.rollout import actor
from reference.trades import account, assert_fills, assert_same_trades
from rules.driver import random_bars

from numba_rl import settings
from numba_rl.config import Config
from numba_rl.data.windows import Range
from numba_rl.evaluate.backtest import evaluation_rules, play_actions, play_policy
from numba_rl.evaluate.metrics import drawdowns, notional
from numba_rl.gpu import SIMULATED
from numba_rl.kernels.backtest_policy import FEES, FILLS, FINANCING, MAX_DRAWDOWN, SPREAD_COST, TRADED, backtest_kernel, launch_backtest
from numba_rl.kernels.mma import tiles_of
from numba_rl.kernels.settled import pattern_of
from numba_rl.kernels.step import Launch

pytestmark = pytest.mark.skipif(not SIMULATED, reason="tiny shapes of the simulator; test_backtest_gpu has the real ones")

FEATURES, HIDDEN = 5, (8, 6)
WINDOWS = [Range(3, 9), Range(9, 15), Range(4, 5), Range(20, 28), Range(1, 4), Range(30, 38), Range(31, 33), Range(10, 18), Range(2, 10)]
GAMES = {
    "default": {},
    "dear": {"market.spread_bps": 5.0, "market.financing_rate": 0.3, "market.min_fee": 1.0, "market.tick": 0.01, "market.lot": 0.5},
    "ruin": {"market.leverage": 30.0, "market.fill_at": "close"},
    "softmax": {"evaluate.policy": "softmax"},
    "episodes": {"market.leverage": 20.0, "episodes.length": 3},
}


def market_of(wild=False):
    prices = random_bars(np.random.default_rng(4), 40, 0.08 if wild else 0.01)
    features = np.random.default_rng(9).standard_normal((len(prices), FEATURES)).astype(np.float16).astype(np.float32)
    stamps = 60_000_000_000 * np.arange(len(prices))
    return SimpleNamespace(
        prices=prices, features=features, timestamp=stamps, bars_per_year=525_600.0, interval_ns=60_000_000_000, source="test"
    )


def network(layers):
    weights = [torch.from_numpy(layer) for layer in layers]

    def policy(states):
        x = torch.relu(states @ weights[0].T + weights[1])
        return torch.relu(x @ weights[2].T + weights[3]) @ weights[4].T + weights[5]

    return policy


def play(config, market, layers, groups=1, windows=WINDOWS):
    """(equity, actions, totals, steps, status) of the kernel over the windows."""
    tiles, rules = tiles_of(FEATURES, HIDDEN), evaluation_rules(config, market)
    greedy = config.evaluate.policy == "greedy"
    layers = [np.ascontiguousarray(layer, np.float32) for layer in layers]
    if not greedy:
        layers[4:] = [layer / np.float32(config.evaluate.temperature) for layer in layers[4:]]
    table = np.zeros((len(market.features), tiles.width), np.float16)
    table[:, :FEATURES] = market.features
    starts, stops = (np.array(ends, np.int32) for ends in ([r.start - 1 for r in windows], [r.stop for r in windows]))
    steps = int((stops - 1 - starts).max())
    count = len(windows)
    outputs = (np.zeros((steps, count)), np.full((steps, count), -1, np.int8), np.zeros((count, 6)), np.zeros(count, np.int32), np.zeros(count, np.int32))
    packed = np.zeros(tiles.words, np.uint64), np.zeros(tiles.biases, np.float32)
    launch = Launch(config.train.seed, 0, 0, int(greedy), 0, 1.0)
    kernel = backtest_kernel(tiles, pattern_of(rules), greedy)
    launch_backtest(kernel, tiles, layers, packed, table.view(np.uint32), market.prices, starts, stops, outputs, launch, rules, groups=groups)
    return outputs


@pytest.mark.parametrize("name", GAMES)
def test_choices_are_the_policys_and_money_is_the_ledgers(name):
    config = settings.replace(Config(), GAMES[name])
    market, layers = market_of(name == "ruin"), actor(FEATURES, HIDDEN, scale=3.0)
    equity, actions, totals, steps, status = play(config, market, layers, groups=2 if name == "dear" else 1)
    assert not status.any()
    own = play_policy(market, WINDOWS, network(layers), config)
    same = np.concatenate([actions[: len(b), w] == b.action for w, b in enumerate(own) if len(b) == steps[w]])
    assert same.mean() > 0.9 and len(np.unique(actions[actions >= 0])) > 2
    # given the actions it chose, every figure is that of the float64 ledger
    given = play_actions(market, WINDOWS, actions.astype(np.int32), config, names=[""] * len(WINDOWS))
    assert any(b.terminated for b in given) == (name == "ruin")
    for w, b in enumerate(given):
        n = len(b)
        assert steps[w] == n
        np.testing.assert_allclose(equity[:n, w], b.equity[1:], rtol=1e-12)
        assert (actions[n:, w] == -1).all() and not equity[n:, w].any()
        expected = {
            FEES: b.fee.sum(), SPREAD_COST: b.spread_cost.sum(), FINANCING: b.financing.sum(), TRADED: notional(b).sum(),
            FILLS: np.count_nonzero(b.traded),
        }  # fmt: skip
        for column, value in expected.items():
            assert totals[w, column] == pytest.approx(value, rel=1e-9, abs=1e-9), (w, column)
        assert totals[w, MAX_DRAWDOWN] == pytest.approx(drawdowns(b.equity).max(), rel=1e-9, abs=1e-12)
        expected = account(config, market.bars_per_year, market.prices, WINDOWS[w].start - 1, WINDOWS[w].stop, actions[:, w])
        assert_same_trades(b, expected, config.market.initial_capital)


@pytest.mark.parametrize("name", ["default", "dear"])
def test_every_fill_is_the_ledgers(name):
    """Windows that begin together and end one bar later each: what the totals grow by is one bar's fills, bar by bar."""
    config = settings.replace(Config(), GAMES[name])
    market, layers = market_of(), actor(FEATURES, HIDDEN, scale=3.0)
    windows = [Range(12, stop) for stop in range(13, 21)]
    equity, actions, totals, steps, _ = play(config, market, layers, windows=windows)
    fills = 0
    for w, window in enumerate(windows):
        n = window.bars
        assert steps[w] == n and (actions[:n, w] == actions[:n, -1]).all()
        expected = account(config, market.bars_per_year, market.prices, window.start - 1, window.stop, actions[:, w])
        assert_fills(equity[:n, w], totals[w], expected)
        fills = len(expected.fills)
    assert fills > 4


def test_a_window_does_not_depend_on_its_neighbours():
    market, layers, config = market_of(), actor(FEATURES, HIDDEN, scale=3.0), Config()
    one, two = play(config, market, layers, groups=1), play(config, market, layers, groups=2)
    for first, second in zip(one, two, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("policy", ["greedy", "softmax"])
def test_broken_networks_are_told(policy):
    layers = actor(FEATURES, HIDDEN, scale=3.0)
    layers[5] = np.full_like(layers[5], np.nan)
    *_, status = play(settings.replace(Config(), {"evaluate.policy": policy}), market_of(), layers)
    assert (status == 1).all()
