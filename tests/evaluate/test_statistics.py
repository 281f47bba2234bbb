"""Bootstrap, deflation and verdict: against explicit resampling, published numbers, and the rule never to claim skill without value."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from numba_rl.config import EvaluateConfig
from numba_rl.evaluate import statistics
from numba_rl.evaluate.metrics import sharpe
from numba_rl.evaluate.statistics import (
    Deflated,
    HoldComparison,
    SharpeInterval,
    block_length,
    deflated_sharpe,
    expected_best_sharpe,
    hold_comparison,
    judge,
    probabilistic_sharpe,
    sharpe_interval,
    verdict,
)

YEAR = 252.0


def path(returns):
    equity = 1000.0 * np.cumprod(np.concatenate([[1.0], 1.0 + np.asarray(returns)]))
    return SimpleNamespace(equity=equity, bars_per_year=YEAR, terminated=bool((equity <= 0).any()))


def explicit_resamples(n, block, resamples, seed):
    """The same draws as index arrays [resamples, n]."""
    starts = np.random.default_rng(seed).integers(0, n, (resamples, math.ceil(n / block)))
    return ((starts[:, :, None] + np.arange(block)) % n).reshape(resamples, -1)[:, :n]


@pytest.mark.parametrize(("n", "block"), [(30, 1), (31, 7), (100, 10), (257, 30), (40, 40)])
def test_interval_equals_explicit_resampling(n, block):
    r = np.random.default_rng(n).normal(0.001, 0.01, n)
    interval = sharpe_interval(r, YEAR, resamples=300, confidence=0.9, seed=5, block=block)
    ratios = [
        float(sharpe(r[index], YEAR)) if block < n else np.mean(r) / np.std(r, ddof=1) * YEAR**0.5
        for index in explicit_resamples(n, block, 300, 5)
    ]
    low, high = np.quantile(ratios, [0.05, 0.95])
    assert interval.low == pytest.approx(low, abs=1e-8) and interval.high == pytest.approx(high, abs=1e-8)
    assert interval.estimate == pytest.approx(float(sharpe(r, YEAR)))


def test_interval_is_deterministic_and_does_not_depend_on_chunks(monkeypatch):
    r = np.random.default_rng(0).normal(0.001, 0.01, 500)
    first, again = sharpe_interval(r, YEAR, seed=3), sharpe_interval(r, YEAR, seed=3)
    assert first == again and first != sharpe_interval(r, YEAR, seed=4)
    monkeypatch.setattr("numba_rl.evaluate.bootstrap.CHUNK", 997)
    assert sharpe_interval(r, YEAR, seed=3) == first


def test_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(11)
    covered = [i.low <= 0 <= i.high for i in (sharpe_interval(rng.standard_t(5, 400), 1.0, resamples=400, seed=k) for k in range(300))]
    assert 0.90 <= np.mean(covered) <= 0.98


def test_resamples_without_any_profit_or_loss_count_as_zero():
    r = np.zeros(2000)
    r[1000:1030] = 0.01  # one lucky block, missing from a third of the resamples
    found = sharpe_interval(r, YEAR, block=60)
    assert found.low == 0.0 and found.high > found.estimate > 0


def test_dependence_widens_the_interval():
    rng = np.random.default_rng(2)
    noise = rng.normal(size=5000)
    slow = np.convolve(noise, np.ones(20), "valid")
    r = slow / slow.std() * 0.01
    blocks, single = sharpe_interval(r, YEAR), sharpe_interval(r, YEAR, block=1)
    assert blocks.high - blocks.low > 2.5 * (single.high - single.low)


def test_block_length_rule():
    rng = np.random.default_rng(1)
    assert block_length(rng.normal(size=8000)) == 20  # white: n^(1/3)
    r = np.zeros(20_000)
    for i, e in enumerate(rng.normal(size=len(r) - 1)):
        r[i + 1] = 0.8 * r[i] + e
    assert block_length(r) == pytest.approx((1.5 * (2 * 0.8 / (1 - 0.64)) ** 2 * len(r)) ** (1 / 3), rel=0.25)  # AR(1) in closed form
    assert block_length(np.tile([1.0, -1.0], 15)) <= 10  # never above n / 3
    assert block_length(np.zeros(100)) == 5


@pytest.mark.parametrize(
    "r",
    [np.zeros(100), np.full(100, 0.0013), np.full(100, -0.0013), np.random.default_rng(0).normal(size=29) * 0.01, np.zeros(0)],
    ids=["idle", "gain", "loss", "short", "empty"],
)
def test_no_value_no_interval_no_skill(r):
    interval = sharpe_interval(r, YEAR)
    assert interval.low is None and interval.high is None
    assert probabilistic_sharpe(r) is None and deflated_sharpe(r, 3).probability is None
    result = judge(path(r), path(r))
    assert result.level == "none" and result.verdict.startswith("No evidence of skill after costs: ")


@pytest.mark.parametrize("lucky", [1, 5, 29])
def test_a_few_lucky_bars_are_no_evidence(lucky):
    r = np.zeros(2000)
    r[700 : 700 + 3 * lucky : 3] = 0.5
    result = judge(path(r))
    assert result.level == "none", result.verdict


def test_published_deflated_sharpe_ratio():
    """The worked example of Bailey and Lopez de Prado (2014): SR 2.5 a year, 5 years of days, 100 trials, variance 1/2, skew -3, kurtosis 10."""
    threshold = expected_best_sharpe(100, math.sqrt(0.5 / 250))
    assert threshold == pytest.approx(0.1132, abs=5e-5)
    ratio = 2.5 / math.sqrt(250)
    deviation = statistics._estimator_deviation(ratio, -3.0, 10.0, 1250)
    assert statistics.ndtr((ratio - threshold) / deviation) == pytest.approx(0.9004, abs=5e-5)


def test_probabilistic_sharpe_by_hand():
    r = np.random.default_rng(4).standard_t(4, 500) * 0.01 + 0.001
    ratio = float(sharpe(r))
    z = (r - r.mean()) / r.std()
    expected = statistics.ndtr((ratio - 0.02) * math.sqrt(499) / math.sqrt(1 - np.mean(z**3) * ratio + (np.mean(z**4) - 1) / 4 * ratio**2))
    assert probabilistic_sharpe(r, 0.02) == pytest.approx(float(expected), rel=1e-12)


def test_more_trials_deflate_more():
    r = np.random.default_rng(6).normal(0.0008, 0.01, 1500)
    chances = [deflated_sharpe(r, trials).probability for trials in (1, 2, 10, 1000)]
    assert chances[0] == probabilistic_sharpe(r) and chances == sorted(chances, reverse=True) and len(set(chances)) == 4
    assert deflated_sharpe(r, 10, [0.0, 0.5, -0.5, None]).probability < deflated_sharpe(r, 10, [0.01, 0.0101]).probability


def test_best_of_trials_matches_simulation():
    best = np.random.default_rng(0).normal(size=(20_000, 50)).max(1).mean()
    assert expected_best_sharpe(50, 1.0) == pytest.approx(best, rel=0.02)


def test_hold_comparison_equals_explicit_resampling():
    rng = np.random.default_rng(8)
    agent, hold = rng.normal(0.0005, 0.01, 120), rng.normal(0.0006, 0.02, 120)
    result = hold_comparison(agent, hold, resamples=400, seed=9, block=8)
    index = explicit_resamples(120, 8, 400, 9)
    assert result.sharpe == pytest.approx(np.mean(sharpe(hold[index]) > sharpe(agent[index])))
    assert result.total_return == pytest.approx(np.mean(np.prod(1 + hold[index], 1) > np.prod(1 + agent[index], 1)))


def test_hold_comparison_at_its_ends():
    r = np.random.default_rng(3).normal(0.001, 0.01, 300)
    assert hold_comparison(r, r) == HoldComparison(0.5, 0.5, block_length(r))
    assert hold_comparison(r + 0.02, r).sharpe == 0.0 and hold_comparison(r - 0.02, r).total_return == 1.0
    idle = hold_comparison(r, np.zeros(300))
    assert idle.sharpe is None and 0 <= idle.total_return <= 1
    assert hold_comparison(np.array([0.1] * 40 + [-1.2]), r) == HoldComparison(1.0, 1.0, 0)
    assert hold_comparison(r[:10], r[:10]) == HoldComparison(None, None, 0)


def interval(low, high, estimate=1.0, annualised=True):
    return SharpeInterval(estimate, low, high, 0.95, annualised, 1000, 10, 2000, 0)


GOOD = Deflated(0.99, 0.0, 1)


@pytest.mark.parametrize(
    ("low", "high", "deflated", "hold", "more", "level", "says"),
    [
        (-0.5, 2.0, GOOD, None, {}, "none", "covers zero"),
        (0.0, 2.0, GOOD, None, {}, "none", "covers zero"),
        (-2.0, -0.1, Deflated(0.01, 0.0, 1), None, {}, "none", "lies below zero"),
        (0.5, 2.0, Deflated(0.6, 0.1, 40), None, {}, "none", "over 40 trials is 0.60, below 0.95"),
        (0.5, 2.0, Deflated(None, None, 40), None, {}, "none", "has no value"),
        (None, None, GOOD, None, {}, "none", "no interval"),
        (0.5, 2.0, GOOD, None, {"profit": -0.01}, "none", "did not grow"),
        (0.5, 2.0, GOOD, None, {"ruined": True}, "none", "ruined"),
        (0.5, 2.0, GOOD, HoldComparison(0.4, 0.1, 9), {}, "profit", "buy-and-hold had the better Sharpe ratio is 40.0%"),
        (0.5, 2.0, GOOD, HoldComparison(0.01, 0.1, 9), {}, "skill", "is 1.0%"),
        (0.5, 2.0, GOOD, HoldComparison(None, 0.1, 9), {}, "skill", "over 1 trial is 0.99"),
        (0.5, 2.0, GOOD, None, {"optimistic": True}, "skill", "not simulated"),
    ],
)
def test_verdict(low, high, deflated, hold, more, level, says):
    got, sentence = verdict(interval(low, high), deflated, hold, **({"profit": 0.1} | more))
    assert got == level and says in sentence
    assert sentence.startswith("Evidence of skill after costs") == (level == "skill")
    assert sentence.endswith(".") and "\n" not in sentence and ". " not in sentence


def test_verdict_without_bars_per_year_speaks_per_bar():
    assert "0.0321 per bar" in verdict(interval(0.01, 0.05, 0.0321, annualised=False), GOOD)[1]


def test_judge_finds_skill_where_there_is_some_and_none_where_there_is_none():
    rng = np.random.default_rng(5)
    hold = path(rng.normal(0, 0.01, 2000))
    skilled = judge(path(rng.normal(0.002, 0.01, 2000)), hold, config=EvaluateConfig(bootstrap=500), in_sample_sharpe=8.0)
    assert skilled.level == "skill" and skilled.verdict.startswith("Evidence of skill after costs: ")
    assert skilled.decay == pytest.approx(1 - skilled.interval.estimate / 8.0) and skilled.interval.resamples == 500
    assert judge(path(rng.normal(0.0, 0.01, 2000)), hold).level == "none"
    assert judge(path([*rng.normal(0.002, 0.01, 500), -1.5]), hold).verdict == "No evidence of skill after costs: the account was ruined."


def test_trials_are_counted_and_settings_win():
    r = np.random.default_rng(5).normal(0.0015, 0.01, 1000)
    assert judge(path(r), trials=7).deflated.trials == 7
    assert judge(path(r), trials=7, config=EvaluateConfig(trials=500)).deflated.trials == 500


def test_following_the_market_is_no_skill():
    market = np.random.default_rng(12).normal(0.002, 0.01, 2000)
    result = judge(path(0.8 * market), path(market))
    assert result.level == "profit" and result.verdict.startswith("Profit after costs, but no evidence of skill beyond buy-and-hold: ")
