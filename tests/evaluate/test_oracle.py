"""The oracle: its value is what it earns, it beats what a trader would write by hand, and it does nothing where nothing is to be had."""

import math
from functools import cache

import numpy as np
import pytest
from rules.driver import play_rules

from numba_rl.config import Config, DataConfig, MarketConfig
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import Model, generate
from numba_rl.errors import UserError
from numba_rl.evaluate.oracle import EXPOSURE_GRID, Oracle, _play, net_log_profit, oracle_for
from numba_rl.rules.actions import compose
from numba_rl.rules.parameters import rules_of

BARS = 60_000
COSTS = [
    {},
    {"taker_bps": 1.0, "maker_bps": 6.0},  # market orders are cheapest
    {"spread_bps": 20.0, "leverage": 2.0},  # limits are missed
    {"fill_simulation": False},
    {"financing_rate": 500.0, "fill_at": "close"},  # a tenth of a basis point a bar on what is short
]


@pytest.fixture(scope="module")
def drawn():
    return {kind: generate(kind, BARS, seed=3) for kind in ("mean_reverting", "momentum", "random_walk")}


@cache
def solved(model, *market):
    """The oracle of a model under market settings, given as (name, value) pairs."""
    return Oracle(model, rules(dict(market)))


def rules(market):
    return rules_of(Config(market=MarketConfig(**market)), 525_600.0)


def play_table(oracle, made):
    """(log growth of each bar, actions, what the ledger says)."""
    rows = np.abs(oracle.hidden[None, :] - made.hidden[:, None]).argmin(axis=1)
    actions = _play(rows, oracle.actions, EXPOSURE_GRID, made.bars.prices, oracle.rules)
    played = play_rules(actions, made.bars.prices, oracle.rules)
    return np.log(played.equity_after / played.equity_before), actions, played


def by_hand(made, order, haste, enter, leave):
    """Against the deviation once it is `enter` stationary deviations large, flat again below `leave`; or with the regime."""
    if made.model.kind == "momentum":
        exposures = np.where(made.hidden > 0, 4, 0)
    else:
        exposures, held = np.empty(len(made.hidden), int), 2
        for t, z in enumerate((made.hidden / made.hidden.std()).tolist()):
            held = 0 if z > enter else 4 if z < -enter else 2 if abs(z) < leave else held
            exposures[t] = held
    return [compose(exposure, order, haste) for exposure in exposures[:-1].tolist()]


@pytest.mark.parametrize("market", COSTS, ids=str)
@pytest.mark.parametrize("kind", ["mean_reverting", "momentum"])
def test_it_beats_policies_made_by_hand(drawn, kind, market):
    made, r = drawn[kind], rules(market)
    oracle = solved(made.model, *market.items())
    growth, _, _ = play_table(oracle, made)
    hands = {}
    for enter, leave in ((0.0, 0.0), (0.2, 0.0), (0.4, 0.0), (0.6, 0.2), (1.0, 0.3)) if kind == "mean_reverting" else ((0.0, 0.0),):
        for order, haste in ((0, 0), (1, 0), (1, 2), (2, 0), (2, 2)):
            played = play_rules(by_hand(made, order, haste, enter, leave), made.bars.prices, r)
            hands[enter, leave, order, haste] = math.log(played.equity_after[-1] / 1e6) / played.steps
    # the drift of positions between rebalancings is left out of its values: a hair's breadth is allowed for it
    assert growth.mean() > max(hands.values()) - 0.004 * oracle.growth, max(hands, key=hands.get)


@pytest.mark.parametrize("market", COSTS, ids=str)
def test_its_value_is_what_it_earns(drawn, market):
    oracle = solved(drawn["mean_reverting"].model, *market.items())
    growth, _, _ = play_table(oracle, drawn["mean_reverting"])
    blocks = growth[: len(growth) // 500 * 500].reshape(-1, 500).mean(axis=1)
    error = blocks.std() / np.sqrt(len(blocks))
    assert error < 0.04 * oracle.growth and abs(growth.mean() - oracle.growth) < 3.5 * error + 0.01 * oracle.growth


def test_its_value_without_costs_is_the_closed_form():
    # always fully against the deviation x ~ N(0, s^2): E log(1 + w r) with r's mean (1 - phi)|x|, to second order
    model = Model("mean_reverting", sigma=0.004, phi=0.95)
    free = {"taker_bps": 0.0, "maker_bps": 0.0, "spread_bps": 0.0}
    s, w = 0.004 / math.sqrt(1 - 0.95**2), 0.8
    square = 0.004**2 + 0.05**2 * s**2  # of a bar's log return
    drift = w * 0.05 * s * math.sqrt(2 / math.pi)
    assert Oracle(model, rules(free)).growth == pytest.approx(drift - w**2 * square / 2, rel=0.01)
    assert solved(model).growth < 0.95 * drift


def test_dearer_trading_means_less_of_it(drawn):
    made, growths, trades = drawn["mean_reverting"], [], []
    for market in ({}, {"taker_bps": 16.0, "maker_bps": 8.0, "spread_bps": 4.0}, {"taker_bps": 64.0, "maker_bps": 32.0, "spread_bps": 16.0}):
        oracle = solved(made.model, *market.items())
        growth, _, played = play_table(oracle, made)
        growths.append(growth.mean())
        trades.append(np.abs(played.units).sum())
    assert growths[0] > growths[1] > growths[2] > 0 and trades[0] > 1.5 * trades[1] > 2 * trades[2]


def test_on_a_random_walk_it_stays_flat(drawn):
    oracle = Oracle(drawn["random_walk"].model, rules({}))
    growth, actions, _ = play_table(oracle, drawn["random_walk"])
    assert abs(oracle.growth) < 1e-9 and not growth.any() and set(actions // 9) == {2}


def test_momentum_follows_the_regime(drawn):
    oracle = solved(drawn["momentum"].model)
    growth, actions, _ = play_table(oracle, drawn["momentum"])
    assert np.all((actions // 9 - 2) * drawn["momentum"].hidden[:-1] > 0)
    # the values take a trend's position for rebalanced; held, a short shrinks with the price
    assert 0.92 * oracle.growth < growth.mean() < oracle.growth + 4 * growth.std() / np.sqrt(BARS)


def test_it_is_played_on_the_market_of_training():
    made = generate("mean_reverting", 6000, seed=8)
    config = Config(data=DataConfig(split=(0.6, 0.2, 0.2)))
    market = load_market(config, made.bars)
    backtest = oracle_for(made, config).play(market, made, market.test, config)
    bars, first = made.bars, market.test.start + market.warmup - 1  # the decision before the first test bar
    assert backtest.timestamp[0] == bars.timestamp[first] and backtest.timestamp[-1] == bars.timestamp[-1]
    assert backtest.equity[0] == 1e6 and len(backtest) == market.test.stop - market.test.start and backtest.closed_at_end
    growth, _, _ = play_table(oracle_for(made, config), type(made)(bars.slice(first, len(bars)), made.hidden[first:], made.model))
    assert net_log_profit(backtest) == pytest.approx(growth.sum(), abs=1e-3)  # but for the exit at the end
    assert 0.5 < net_log_profit(backtest) / (len(backtest) * 3.8e-4) < 1.5
    assert np.array_equal(backtest.equity, oracle_for(made, config).play(market, made, market.test, config).equity)


def test_sizing_by_units_is_refused():
    with pytest.raises(UserError, match='set market.sizing = "equity"'):
        Oracle(Model("momentum", 0.002), rules({"sizing": "units"}))
