"""Orders, one at a time: what each type and urgency pays, and when it fills."""

import math

import numpy as np
import pytest
from rules.driver import bars, costless, play_rules, rules

from numba_rl.rules.actions import ACTIONS, compose, exposure_index, order_type, target_exposure, urgency
from numba_rl.rules.fills import target_units, would_buy
from numba_rl.rules.portfolio import open_portfolio
from numba_rl.rules.routing import route

LONG, SHORT, FLAT = 4, 0, 2
MARKET, LIMIT, IOC = range(3)
COSTS = {"taker_bps": 4.0, "maker_bps": 2.0, "spread_bps": 10.0, "reserve": 0.0, "initial_capital": 10_000.0}


def bar(open_, high, low, close):
    """Two bars: a decision at 100, then the bar in which the order may fill."""
    return np.array([[100.0, 100.0, 100.0, 100.0], [open_, high, low, close]])


def fill(exposure, order, haste, prices, **market):
    return play_rules([compose(exposure, order, haste)], prices, rules(**(COSTS | market)))


def test_actions_are_composed_and_taken_apart():
    parts = [(exposure_index(a), order_type(a), urgency(a)) for a in range(ACTIONS)]
    assert len(set(parts)) == ACTIONS and [compose(*part) for part in parts] == list(range(ACTIONS))
    assert [target_exposure(a) for a in range(4, ACTIONS, 9)] == [-1.0, -0.5, 0.0, 0.5, 1.0]


@pytest.mark.parametrize(("haste", "share"), [(0, 0.00025), (1, 0.0005), (2, 0.00075)])
@pytest.mark.parametrize(("exposure", "sign"), [(LONG, 1), (SHORT, -1)])
def test_a_market_order_fills_at_the_open_worse_by_its_share_of_the_spread(haste, share, exposure, sign):
    p = fill(exposure, MARKET, haste, bar(101, 102, 99, 100))
    units = sign * 10_000 / 101  # sized before its cost
    paid = 101 * (1 + sign * share)
    assert p.units == pytest.approx([units]) and p.price == [101.0] and p.account_entry == pytest.approx([paid])
    assert p.fee == pytest.approx([abs(units) * paid * 4e-4]) and p.spread_cost == pytest.approx([10_000 * share])
    assert p.equity_after == pytest.approx([10_000 + units * (100 - 101) - p.fee[0] - p.spread_cost[0]])


def test_fills_at_the_close_of_the_decision():
    p = fill(LONG, MARKET, 1, bar(101, 102, 99, 100), fill_at="close")
    assert p.price == [100.0] and p.units == pytest.approx([100.0])


@pytest.mark.parametrize(("haste", "fraction"), [(0, 0.5), (1, 0.75), (2, 1.0)])
def test_an_ioc_order_fills_a_part_and_the_rest_can_be_sent_again(haste, fraction):
    prices = bars([100, 100, 100, 100])
    p = play_rules([compose(LONG, IOC, haste)] * 3, prices, rules(**costless(initial_capital=10_000.0)))
    left = (1 - fraction) ** np.arange(1, 4)
    assert p.position_after == pytest.approx(100 * (1 - left)) and p.exposure_after == pytest.approx(1 - left)
    if haste == 2:
        assert p.units[1:].tolist() == [0.0, 0.0]


def test_an_ioc_order_pays_as_a_market_order():
    market, ioc = (fill(SHORT, order, 2, bar(101, 102, 99, 100)) for order in (MARKET, IOC))
    assert market.equity_after == ioc.equity_after and ioc.fee[0] > 0 and ioc.spread_cost[0] > 0


@pytest.mark.parametrize(("haste", "limit"), [(0, 99.8), (1, 99.9), (2, 100.0)])
def test_a_limit_order_fills_only_if_the_bar_trades_through_it(haste, limit):
    touched = fill(LONG, LIMIT, haste, bar(100.5, 101, limit, 100.5))
    assert touched.units == [0.0] and touched.price == [100.0] and touched.exposure_after == [0.0]
    through = fill(LONG, LIMIT, haste, bar(100.5, 101, limit - 1e-6, 100.5))
    assert through.price == pytest.approx([limit]) and through.spread_cost == [0.0]
    assert through.units == pytest.approx([10_000 / limit]) and through.fee == pytest.approx([10_000 * 2e-4])


@pytest.mark.parametrize(("haste", "limit"), [(0, 100.2), (1, 100.1), (2, 100.0)])
def test_a_sell_limit_mirrors_it(haste, limit):
    assert fill(SHORT, LIMIT, haste, bar(99.5, limit, 99, 99.5)).units == [0.0]
    through = fill(SHORT, LIMIT, haste, bar(99.5, limit + 1e-6, 99, 99.5))
    assert through.price == pytest.approx([limit]) and through.units == pytest.approx([-10_000 / limit])


def test_a_limit_order_takes_a_better_open():
    assert fill(LONG, LIMIT, 2, bar(97, 98, 96, 97)).price == [97.0]
    assert fill(SHORT, LIMIT, 2, bar(103, 104, 102, 103)).price == [103.0]
    assert fill(SHORT, LIMIT, 2, bar(103, 104, 102, 103), fill_at="close").price == [103.0]  # its fill is always in the next bar


def test_a_missed_limit_order_can_be_sent_again():
    prices = np.array([[100.0] * 4, [101, 102, 100.5, 101], [101, 102, 100.5, 102]])
    p = play_rules([compose(LONG, LIMIT, 2)] * 2, prices, rules(**COSTS))
    assert p.units[0] == 0.0 and p.price[1] == 101.0 and p.exposure_after.tolist() == [0.0, 1.0]


def test_limit_prices_lie_on_a_tick_away_from_the_market():
    assert fill(LONG, LIMIT, 1, bar(100.5, 101, 99, 100), tick=0.25).price == [99.75]
    assert fill(SHORT, LIMIT, 1, bar(99.5, 101, 99, 100), tick=0.25).price == [100.25]
    assert fill(LONG, LIMIT, 2, bar(100.5, 101, 99, 100), tick=0.25).price == [100.0]  # on a tick already
    assert fill(LONG, LIMIT, 0, bar(100.5, 101, 99, 100), tick=0.1).price == pytest.approx([99.8])  # 99.8 / 0.1 is 997.999...


def test_units_are_whole_lots():
    p = fill(LONG, MARKET, 1, bar(101, 102, 99, 100), lot=0.1)
    assert p.units == pytest.approx([99.0]) and p.exposure_after == [1.0]  # 10,000 / 101 is 99.0099
    assert fill(LONG, MARKET, 1, bar(101, 102, 99, 100), lot=0.3).units == pytest.approx([99.0])  # 330 lots of 0.3
    none = fill(LONG, MARKET, 1, bar(101, 102, 99, 100), lot=500.0)
    assert none.units == [0.0] and none.fee == [0.0] and none.exposure_after == [1.0]


def test_aggressive_ioc_orders_of_lots_reach_their_target():
    prices = bars([100.0] * 6)
    actions = [compose(3, IOC, 2), compose(4, IOC, 2), compose(4, IOC, 2), compose(4, MARKET, 1), compose(4, LIMIT, 2)]
    for size in (0.3, 0.7, 1.1, 2.3):
        p = play_rules(actions, prices, rules(**costless(sizing="units", max_position=size, lot=0.1)))
        assert p.exposure_after[1] == 1.0 and p.units[2:].tolist() == [0.0] * 3


def test_the_minimum_fee_is_for_fills_alone():
    p = play_rules([compose(3, MARKET, 1)] * 2, bars([100, 100, 100]), rules(**costless(min_fee=7.0)))
    assert p.fee.tolist() == [7.0, 0.0]


def test_without_fill_simulation_every_order_fills_whole_at_the_reference_price():
    prices = bar(101, 101, 101, 100)  # no limit order would fill here
    for order, rate in ((MARKET, 4e-4), (LIMIT, 2e-4), (IOC, 4e-4)):
        for haste in range(3):
            p = fill(LONG, order, haste, prices, fill_simulation=False)
            assert p.price == [101.0] and p.units == pytest.approx([10_000 / 101]) and p.spread_cost == [0.0]
            assert p.fee == pytest.approx([10_000 * rate])


def test_sizing_uses_the_equity_at_the_fill():
    # 100 units bought at 100; at the open of 120 the account holds 12,000 and asks for half of that short
    p = play_rules([compose(LONG, MARKET, 1), compose(1, MARKET, 1)], bars([100, 110, 120], opens=[100, 100, 120]), rules(**costless(initial_capital=10_000.0)))
    assert p.position_after == pytest.approx([100.0, -50.0])
    p = fill(LONG, MARKET, 1, bar(100, 100, 100, 100), leverage=3.0, reserve=0.2, multiplier=5.0)
    assert p.units == pytest.approx([3 * 0.8 * 10_000 / 500])


def test_drift_tolerance_rebalances():
    prices = bars([100, 100, 150, 150])
    market = costless(fill_at="close", leverage=0.5)
    actions = [compose(LONG, MARKET, 1)] * 3
    assert play_rules(actions, prices, rules(**market)).units[2] == 0.0  # none by default
    p = play_rules(actions, prices, rules(**market, drift_tolerance=0.05))
    assert p.units[1] == 0.0 and p.units[2] < 0 and p.feature_share[2] == pytest.approx(1.0)


def test_ruin_at_the_open_leaves_nothing_for_the_bar_to_bring_back():
    market = costless(initial_capital=1000.0, sizing="units", max_position=10.0, taker_bps=10.0)
    p = play_rules([compose(LONG, MARKET, 1)] * 2, bars([150, 150, 200], opens=[150, 150, 40]), rules(**market))
    assert p.terminated.tolist() == [0.0, 1.0] and p.exit_units[1] == -10.0 and p.exit_price[1] == 40.0
    assert p.equity_after[1] == pytest.approx(1000 - 1.5 - 10 * 110 - 0.4) and p.equity_after[1] < 0


def test_ruin_at_the_close_exits_there_at_cost():
    market = costless(initial_capital=1000.0, sizing="units", max_position=10.0, spread_bps=100.0)
    p = play_rules([compose(SHORT, MARKET, 1)], bars([100, 250], opens=[100, 100]), rules(**market))
    assert p.terminated == [1.0] and p.exit_price == [250.0] and p.exit_spread_cost == pytest.approx([10 * 250 * 0.005])
    assert p.equity_after == pytest.approx([1000 - 10 * 0.5 - 1500 - 12.5]) and p.position_after == [-10.0] and p.account_position == [0.0]


def test_equity_exactly_at_the_floor_is_ruin():
    market = costless(initial_capital=1000.0, fill_at="close", equity_floor=500.0)
    p = play_rules([compose(LONG, MARKET, 1)], bars([100, 50]), rules(**market))
    assert p.equity_after == [500.0] and p.terminated == [1.0]
    assert play_rules([compose(LONG, MARKET, 1)], bars([100, math.nextafter(50, 51)]), rules(**market)).terminated == [0.0]


def test_routing():
    low, usual, high = 0.5, 1.2, 2.0
    assert route(FLAT, 1.0, high) == compose(FLAT, MARKET, 2) and route(3, -1.0, high) == compose(3, MARKET, 2)
    assert route(LONG, 0.0, high) == compose(LONG, IOC, 1)  # more risk is no flight
    assert route(3, 0.0, low) == compose(3, LIMIT, 0) and route(LONG, -1.0, low) == compose(LONG, IOC, 1)
    assert all(route(e, 0.0, usual) == compose(e, IOC, 1) for e in range(5))


@pytest.mark.parametrize("market", [{}, {"lot": 3.0}, {"sizing": "units", "max_position": 50.0}, {"multiplier": 20.0, "leverage": 3.0}])
@pytest.mark.parametrize("level", [100.0, -100.0])
def test_the_side_of_a_limit_order_is_that_of_its_units(market, level):
    known, random = rules(**(COSTS | market)), np.random.default_rng(0)
    buys = 0
    for _ in range(300):
        price, exposure = level * random.uniform(0.5, 2.0), random.choice([-1.0, -0.5, 0.0, 0.5, 1.0])
        held = open_portfolio(price, known)._replace(position=float(random.integers(-60, 60)), cash=random.uniform(5_000.0, 20_000.0))
        wanted = target_units(held, exposure, price, known)
        assert would_buy(held, exposure, price, known) == (wanted > held.position)
        buys += wanted > held.position
    assert 50 < buys < 250
