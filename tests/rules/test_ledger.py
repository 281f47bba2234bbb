"""The product's ledger against the float64 reference, step by step, and the laws that every step obeys."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba_rl.evaluate.ledger import Ledger
from rules.driver import arithmetic_bars, bars, costless, play_rules, random_bars, rules

from numba_rl.config import MarketConfig

BARS_PER_YEAR = 252.0
MONEY = 1e-9  # relative to the capital at work

BUY, SELL, FLATTEN = 4 * 9 + 1, 1, 2 * 9 + 1  # market orders of normal urgency


@st.composite
def games(draw):
    """(market settings, prices, actions): everything that can be set, on bars that gap, trend and ruin."""
    sizing = draw(st.sampled_from(["equity", "units"]))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    steps = draw(st.integers(1, 60))
    capital = 10_000.0
    market = {
        "initial_capital": capital,
        "sizing": sizing,
        "fill_at": draw(st.sampled_from(["next_open", "close"])),
        "fill_simulation": draw(st.booleans()),
        "taker_bps": draw(st.sampled_from([0.0, 4.0, 30.0, -1.0])),
        "maker_bps": draw(st.sampled_from([0.0, 2.0, -2.0])),
        "spread_bps": draw(st.sampled_from([0.0, 1.0, 40.0])),
        "min_fee": draw(st.sampled_from([0.0, 0.0, 3.0])),
        "financing_rate": draw(st.sampled_from([0.0, 0.2])),
        "multiplier": draw(st.sampled_from([1.0, 0.5, 20.0])),
        "tick": draw(st.sampled_from([0.0, 0.0, 0.01, 0.25])),
        "lot": draw(st.sampled_from([0.0, 0.0, 0.1, 1.0])),
        "equity_floor": draw(st.sampled_from([0.0, 0.0, 5_000.0])),
        "drift_tolerance": draw(st.sampled_from([0.0, 0.0, 0.05])),
    }
    if sizing == "equity":
        market |= {"leverage": draw(st.sampled_from([0.5, 1.0, 8.0])), "reserve": draw(st.sampled_from([0.0, 0.2]))}
        prices = random_bars(random, steps + 1, draw(st.sampled_from([0.002, 0.02, 0.08])))
    else:
        market |= {"max_position": draw(st.sampled_from([3.0, 40.0, 1000.0]))}
        prices = arithmetic_bars(random, steps + 1) if draw(st.booleans()) else random_bars(random, steps + 1, 0.02)
    # actions that repeat themselves, so that partial and missed fills are sent again
    actions = random.integers(0, 45, steps)
    for t in range(1, steps):
        if random.random() < 0.4:
            actions[t] = actions[t - 1]
    return market, prices, actions


@settings(max_examples=300, deadline=None)
@given(games())
def test_every_step_equals_the_reference(game):
    market, prices, actions = game
    played = play_rules(actions, prices, rules(bars_per_year=BARS_PER_YEAR, **market))
    ledger = Ledger(MarketConfig(**market), market["financing_rate"] / BARS_PER_YEAR)
    worth = market["initial_capital"]
    for t, action in enumerate(actions):
        step = ledger.step(int(action), prices[t, 3], prices[t + 1])
        worth = max(worth, abs(step.equity_after), abs(step.position * prices[t + 1, 3] * market["multiplier"]))
        assert played.terminated[t] == step.terminated, t
        money = {
            "equity_before": step.equity_before, "equity_after": step.equity_after, "fee": step.fee, "spread_cost": step.spread_cost,
            "financing": step.financing, "exit_fee": step.exit_fee, "exit_spread_cost": step.exit_spread_cost,
        }  # fmt: skip
        for name, value in money.items():
            assert getattr(played, name)[t] == pytest.approx(value, rel=MONEY, abs=MONEY * worth), (t, name)
        assert played.units[t] == pytest.approx(step.units, rel=MONEY, abs=MONEY), t
        assert (played.units[t] == 0.0) == (step.units == 0.0), t
        assert played.position_after[t] == pytest.approx(step.position, rel=MONEY, abs=MONEY), t
        assert (played.position_after[t] == 0.0) == (step.position == 0.0), t
        assert played.exposure_after[t] == pytest.approx(step.exposure, abs=1e-9), t
        assert played.exit_units[t] == pytest.approx(step.exit_units, rel=MONEY, abs=MONEY), t
        assert played.drawdown[t] == pytest.approx(step.drawdown, abs=1e-8 * max(1.0, abs(step.drawdown))), t
        assert played.account_entry[t] == pytest.approx(ledger.entry, rel=MONEY, abs=MONEY * np.abs(prices).max()), t
        if step.price is not None:
            assert played.price[t] == pytest.approx(step.price, rel=MONEY), t
        if step.terminated:
            assert played.exit_price[t] == step.exit_price
            break
    assert played.steps == t + 1


@settings(max_examples=300, deadline=None)
@given(games())
def test_money_is_conserved(game):
    """Each step's change of equity is the price move through the positions held, less what was paid; nothing else."""
    market, prices, actions = game
    p = play_rules(actions, prices, rules(bars_per_year=BARS_PER_YEAR, **market))
    close, close_next = prices[: p.steps, 3], prices[1 : p.steps + 1, 3]
    gained = market["multiplier"] * (p.position_before * (p.price - close) + p.position_after * (close_next - p.price))
    paid = p.fee + p.spread_cost + p.financing + p.exit_fee + p.exit_spread_cost
    worth = np.maximum(market["initial_capital"], np.abs(p.position_before) * np.abs(prices).max() * market["multiplier"])
    np.testing.assert_allclose(p.equity_after - p.equity_before, gained - paid, rtol=0, atol=float(1e-11 * worth.max()))
    assert np.array_equal(p.equity_before[1:], p.equity_after[:-1])
    assert np.array_equal(p.position_before[1:], p.position_after[:-1])
    # the account says the same as the step: equity is cash plus position, at all times
    identity = p.account_cash + p.account_position * p.account_last * market["multiplier"]
    np.testing.assert_allclose(p.equity_after, identity, rtol=1e-12)
    np.testing.assert_allclose(p.account_costs, np.cumsum(paid), rtol=1e-9, atol=1e-9)
    assert np.all(p.account_peak >= np.maximum.accumulate(p.equity_after) - 1e-9)
    assert np.all(p.account_position[p.terminated == 1] == 0.0)
    assert np.all(p.equity_after[p.terminated == 0] > market["equity_floor"])
    assert np.all(np.isfinite(p.feature_equity)) and np.all(np.isfinite(p.feature_share)) and np.all(np.isfinite(p.reward))


@settings(max_examples=200, deadline=None)
@given(games())
def test_units_change_only_when_the_exposure_does(game):
    market, prices, actions = game
    market["drift_tolerance"] = 0.0
    p = play_rules(actions, prices, rules(bars_per_year=BARS_PER_YEAR, **market))
    target = (actions[: p.steps] // 9 - 2) * 0.5
    same = np.abs(target - p.exposure_before) < 1e-9
    assert np.all(p.units[same] == 0.0) and np.all(p.fee[same] == 0.0)
    kept = same & (p.terminated == 0)
    assert np.array_equal(p.exposure_after[kept], p.exposure_before[kept])
    if market["lot"] > 0:
        lots = p.position_after / market["lot"]
        np.testing.assert_allclose(lots, np.rint(lots), atol=1e-6)
    if market["min_fee"] > 0:
        assert np.all((p.fee == 0.0) | (p.fee >= market["min_fee"]))


def test_half_a_million_steps_lose_nothing():
    steps = 500_000
    random = np.random.default_rng(7)
    prices = random_bars(random, steps + 1, volatility=2e-4)
    prices = prices / np.exp(np.linspace(0, 1, steps + 1))[:, None]
    actions = random.integers(0, 45, steps)
    market = MarketConfig(taker_bps=0.02, maker_bps=0.01, spread_bps=0.01, financing_rate=0.01)
    played = play_rules(actions, prices, rules(bars_per_year=525_600.0, taker_bps=0.02, maker_bps=0.01, spread_bps=0.01, financing_rate=0.01))
    ledger = Ledger(market, 0.01 / 525_600.0)
    rows = [tuple(row) for row in prices.tolist()]
    for t, action in enumerate(actions.tolist()):
        step = ledger.step(action, rows[t][3], rows[t + 1])
        if t % 50_000 == 0 or t == steps - 1:
            assert played.equity_after[t] == pytest.approx(step.equity_after, rel=1e-6), t
    assert played.steps == steps and np.count_nonzero(played.units) > steps / 2
    assert played.account_costs[-1] == pytest.approx(ledger.fees + ledger.spread_paid + ledger.financing, rel=1e-6)


def test_average_entry_through_adding_reducing_and_flipping():
    market = costless(sizing="units", max_position=10.0, fill_at="close")
    # closes: 100 buy 5, 110 add 5, 120 reduce to 5, 130 flip to -10, 90 halve the short
    actions = [3 * 9 + 1, 4 * 9 + 1, 3 * 9 + 1, 1, 1 * 9 + 1]
    p = play_rules(actions, bars([100, 110, 120, 130, 90, 95]), rules(**market))
    assert p.account_position.tolist() == [5, 10, 5, -10, -5]
    assert p.account_entry.tolist() == [100, 105, 105, 130, 130]
    assert p.equity_after[-1] == 1_000_000 + 5 * 10 + 10 * 10 + 5 * 10 - 10 * -40 - 5 * 5


def test_the_first_losing_bar_counts_in_the_drawdown():
    p = play_rules([BUY, BUY], bars([100, 90, 99]), rules(**costless(fill_at="close")))
    assert p.drawdown == pytest.approx([0.1, 0.01]) and p.account_peak.tolist() == [1e6, 1e6]


def test_financing_is_paid_on_the_short_or_levered_part():
    market = costless(fill_at="close", financing_rate=0.252, initial_capital=1000.0)
    long = play_rules([BUY], bars([100, 100]), rules(**market))
    short = play_rules([SELL], bars([100, 100]), rules(**market))
    levered = play_rules([BUY], bars([100, 100]), rules(**market, leverage=3.0))
    assert long.financing.tolist() == [0.0]
    assert short.financing == pytest.approx([1000 * 0.001])
    assert levered.financing == pytest.approx([2000 * 0.001]) and levered.equity_after == pytest.approx([998.0])


def test_portfolio_features():
    market = costless(fill_at="close", leverage=2.0, reserve=0.2, spread_bps=1.0, fill_simulation=False)
    p = play_rules([3 * 9 + 1, 3 * 9 + 1], bars([100, 100, 110]), rules(**market))
    assert p.feature_share[0] == pytest.approx(0.5) and p.feature_equity[0] == 1.0
    equity = 1 + 0.8 * 0.1  # half of 2 x 0.8
    assert p.feature_equity[1] == pytest.approx(equity)
    assert p.feature_share[1] == pytest.approx(0.8 * 1.1 / (1.6 * equity))
    units = play_rules([SELL], bars([100, 100]), rules(**costless(sizing="units", max_position=7.0)))
    assert units.feature_share.tolist() == [-1.0] and units.position_after.tolist() == [-7.0]


def test_bounded_settings_reach_the_rules():
    r = rules(taker_bps=4.0, maker_bps=-0.2, spread_bps=1.0, financing_rate=0.05, bars_per_year=250.0)
    assert (r.taker, r.maker, r.spread, r.financing) == pytest.approx((4e-4, -2e-5, 1e-4, 2e-4))
    assert math.isclose(rules(bars_per_year=math.nan).financing, 0.0)
