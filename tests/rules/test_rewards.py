"""The reward: base, barrier, diversity, risk and shaping, each against its formula."""

import math
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rules.driver import bars, costless, play_rules, random_bars, rules

from numba_rl.rules.actions import compose
from numba_rl.rules.barrier import no_barrier, touch
from numba_rl.rules.diversity import diversity_term, empty_window, push
from numba_rl.rules.shaping import Shaping, differential_sharpe, no_shaping, scaled_by_deviation

LONG, SHORT, FLAT = compose(4, 0, 1), compose(0, 0, 1), compose(2, 0, 1)


def game(seed=0, steps=400, **market):
    random = np.random.default_rng(seed)
    return random.integers(0, 45, steps), random_bars(random, steps + 1), market


def test_net_return_is_the_log_of_the_equity_ratio():
    actions, prices, market = game(spread_bps=5.0)
    p = play_rules(actions, prices, rules(**market))
    np.testing.assert_allclose(p.reward, 1000 * np.log(p.equity_after / p.equity_before), rtol=3e-7, atol=1e-7)
    assert p.reward.sum() == pytest.approx(1000 * math.log(p.equity_after[-1] / 1e6), rel=1e-5)
    scaled = play_rules(actions, prices, rules(reward={"scale": 1.0}, **market))
    np.testing.assert_allclose(scaled.reward, p.reward / 1000, atol=1e-8)


def test_small_returns_keep_their_digits():
    p = play_rules([LONG], bars([100.0, 100.0 * (1 + 1e-7)]), rules(**costless(fill_at="close")))
    assert p.reward == pytest.approx([1e-4], rel=1e-6)


def test_ruin_is_floored():
    p = play_rules([SHORT], bars([100, 250]), rules(**costless(fill_at="close")))
    assert p.terminated == [1.0] and p.reward == pytest.approx([1000 * math.log(1e-3)], rel=1e-5)


def test_sign_log_return_counts_each_position_on_its_side_of_the_fill():
    prices = bars([100, 100, 110, 121], opens=[100, 100, 105, 110])
    p = play_rules([LONG, SHORT, SHORT], prices, rules(reward={"mode": "sign_log_return"}, **costless()))
    expected = [0.0, math.log(105 / 100) - math.log(110 / 105), -math.log(121 / 110)]
    assert p.reward == pytest.approx(np.multiply(1000, expected), rel=1e-6)
    at_close = play_rules([LONG, SHORT], prices[[0, 2, 3]], rules(reward={"mode": "sign_log_return"}, **costless(fill_at="close")))
    assert at_close.reward == pytest.approx([1000 * math.log(1.1), -1000 * math.log(1.1)], rel=1e-6)


def labels(reward, actions, closes):
    """What the barrier added to each step's reward."""
    prices = bars(closes)
    market = costless(fill_at="close", leverage=0.1)
    with_barrier = play_rules(actions, prices, rules(reward=reward, **market))
    without = play_rules(actions, prices, rules(**market))
    return np.round((with_barrier.reward - without.reward) / reward["barrier"], 3).tolist()


def test_barrier_pays_once_in_the_step_that_touches():
    weight = {"barrier": 2.0}
    assert labels(weight, [LONG] * 5, [100, 101, 102, 103, 110, 90]) == [0, 1, 0, 0, 0]  # at x1.02 exactly; then never again
    assert labels(weight, [LONG] * 3, [100, 99, 98, 103]) == [0, -1, 0]
    assert labels(weight, [SHORT] * 3, [100, 99, 98, 103]) == [0, 1, 0]
    assert labels(weight, [SHORT] * 3, [100, 101, 102, 90]) == [0, -1, 0]


def test_barrier_arms_again_when_flat_or_flipped():
    weight = {"barrier": 1.0}
    assert labels(weight, [LONG, LONG, FLAT, LONG, LONG], [100, 103, 103, 103, 104, 106]) == [1, 0, 0, 0, 1]
    assert labels(weight, [LONG, LONG, SHORT, SHORT], [100, 103, 103, 100, 99]) == [1, 0, 1, 0]
    # a change of size is no new position
    assert labels(weight, [LONG, compose(3, 0, 1), LONG], [100, 101, 101.5, 102.5]) == [0, 0, 1]


def test_barrier_expires():
    short = {"barrier": 1.0, "barrier_bars": 3}
    assert labels(short, [LONG] * 4, [100, 101, 101, 101, 110]) == [0, 0, 0, 0]
    assert labels(short, [LONG] * 3, [100, 101, 101, 110]) == [0, 0, 1]  # the third bar is still within
    barrier, r = no_barrier(), rules(reward={"barrier": 1.0, "barrier_bars": 3})
    for bar in (1.0, 2.0, -1.0, -1.0):
        barrier, label = touch(barrier, 1.0, 100.0, 100.5, r)
        assert (barrier.bars, label) == (bar, 0.0)


def test_barrier_multiplied():
    prices, actions = bars([100, 105]), [LONG]
    plain = play_rules(actions, prices, rules(**costless(fill_at="close")))
    doubled = play_rules(actions, prices, rules(reward={"barrier": 0.5, "barrier_mode": "multiply"}, **costless(fill_at="close")))
    assert doubled.reward == pytest.approx(1.5 * plain.reward, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=260), st.integers(1, 40))
def test_diversity_kept_incrementally_equals_a_recount(exposures, repeat):
    window, last = empty_window(), deque(maxlen=100)
    for exposure in [e for e in exposures for _ in range(1 + e * repeat // 40)]:
        window = push(window, exposure)
        last.append(exposure)
        counts = np.bincount(last, minlength=5)
        assert [(window.counts >> (7 * e)) & 127 for e in range(5)] == counts.tolist() and window.size == len(last)
        shares = counts[counts > 0] / len(last)
        expected = 0.0 if len(last) < 20 else -(shares * np.log(shares)).sum() / math.log(5) - 1
        assert diversity_term(window) == pytest.approx(expected, abs=1e-6)


def test_diversity_is_added_with_its_weight():
    actions, prices, market = game(1)
    plain, diverse = (play_rules(actions, prices, rules(reward=r, **market)) for r in ({}, {"diversity": 3.0}))
    added = (diverse.reward - plain.reward) / 3.0
    assert np.allclose(added[:19], 0, atol=1e-5)
    counts = np.bincount(actions[200:300] // 9, minlength=5) / 100
    assert added[299] == pytest.approx(-(counts * np.log(counts)).sum() / math.log(5) - 1, abs=1e-4)
    alone = play_rules(np.full(30, LONG), prices[:31], rules(reward={"diversity": 3.0}, **market)).reward
    assert alone[25] - play_rules(np.full(30, LONG), prices[:31], rules(**market)).reward[25] == pytest.approx(-3.0, abs=1e-4)


def test_risk_takes_the_drawdown_from_the_peak():
    actions, prices, market = game(2)
    plain, careful = (play_rules(actions, prices, rules(reward=r, **market)) for r in ({}, {"risk": 0.1}))
    peak = np.maximum.accumulate(np.concatenate([[1e6], plain.equity_after]))[1:]
    np.testing.assert_allclose(plain.reward - careful.reward, 0.1 * (peak - plain.equity_after) / peak, atol=2e-5)


def direct_dsr(returns, eta=0.01):
    """Moody and Saffell (2001), equation 13, with the first return that is not 0 as the seed of B."""
    a = b = 0.0
    out = []
    for r in returns:
        if b == 0.0:
            out.append(0.0)
            a, b = (eta * r, r * r) if r != 0 else (a, b)
            continue
        variance = b - a * a
        d = (b * (r - a) - 0.5 * a * (r * r - b)) / variance**1.5 if variance > 0 else 0.0
        out.append(min(10.0, max(-10.0, d)))
        a, b = a + eta * (r - a), b + eta * (r * r - b)
    return np.array(out), a, b


def test_differential_sharpe_ratio():
    actions, prices, market = game(3)
    prices[5:9] = prices[5, 3]  # bars without a move
    actions[:8] = FLAT
    p = play_rules(actions, prices, rules(reward={"shaping": "dsr"}, **market))
    expected, a, b = direct_dsr((p.equity_after - p.equity_before) / p.equity_before)
    np.testing.assert_allclose(p.reward, expected, rtol=1e-5, atol=1e-5)
    assert p.shaping_first[-1] == pytest.approx(a, rel=1e-9) and p.shaping_second[-1] == pytest.approx(b, rel=1e-9)
    assert np.all(p.reward[:8] == 0.0) and np.abs(p.reward).max() > 1


def test_differential_sharpe_ratio_at_its_edges():
    r = rules(reward={"shaping": "dsr"})
    assert differential_sharpe(no_shaping(), 0.0, r) == (Shaping(0.0, 0.0), 0.0)
    assert differential_sharpe(Shaping(0.01, 0.0001), 0.5, r)[1] == 0.0  # B = A^2: no variance
    assert differential_sharpe(Shaping(0.0, 1e-8), 1.0, r)[1] == 10.0 and differential_sharpe(Shaping(0.0, 1e-8), -1.0, r)[1] == -10.0
    frozen = r._replace(shaping_frozen=1)
    kept = Shaping(1e-4, 1e-6)
    assert differential_sharpe(kept, 0.01, frozen) == (kept, differential_sharpe(kept, 0.01, r)[1])


def test_other_terms_come_after_the_shaping():
    actions, prices, market = game(4)
    shaped, both = (play_rules(actions, prices, rules(reward=dict(shaping="dsr", **r), **market)) for r in ({}, {"risk": 5.0}))
    np.testing.assert_allclose(shaped.reward - both.reward, 5.0 * shaped.drawdown, atol=1e-5)


def test_ema_divides_by_the_running_deviation():
    actions, prices, market = game(5, steps=3000)
    plain = play_rules(actions, prices, rules(**market)).reward
    p = play_rules(actions, prices, rules(reward={"shaping": "ema", "shaping_rate": 0.02}, **market))
    mean, variance, expected = 0.0, 0.0, []
    for base in plain:
        if variance == 0.0:
            mean, variance = base, base * base
        else:
            delta = base - mean
            mean += 0.02 * delta
            variance = 0.98 * (variance + 0.02 * delta * delta)
        expected.append(min(10.0, max(-10.0, base / math.sqrt(variance))) if variance > 0 else 0.0)
    np.testing.assert_allclose(p.reward, expected, rtol=1e-4, atol=1e-5)
    assert np.std(p.reward[500:]) == pytest.approx(1.0, abs=0.2)
    assert scaled_by_deviation(no_shaping(), 0.0, rules(reward={"shaping": "ema"})) == (Shaping(0.0, 0.0), 0.0)


def test_nothing_is_added_by_default():
    actions, prices, market = game(6)
    p = play_rules(actions, prices, rules(**market))
    assert np.array_equal(p.shaping_second, np.zeros(p.steps)) and rules().barrier == rules().diversity == rules().risk == 0.0
