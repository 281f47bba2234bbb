"""Metrics against empyrical, against plain loops, and against stated answers where others give infinities."""

import importlib.util
import math
from pathlib import Path
from types import SimpleNamespace

import empyrical
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_rl.evaluate.metrics import METRICS, compute_metrics, metrics_table, rank_of_equity, rank_value, sharpe, sortino, trade_totals

_spec = importlib.util.spec_from_file_location("reference_metrics", Path(__file__).parents[1] / "reference" / "metrics.py")
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)

BARS_PER_YEAR = 252.0


def equity_of(returns, initial=1000.0):
    return initial * np.cumprod(np.concatenate([[1.0], 1.0 + np.asarray(returns)]))


def empty_trades():
    whole = np.zeros(0, np.int64)
    money = np.zeros(0)
    return SimpleNamespace(
        entry_index=whole,
        exit_index=whole,
        side=whole,
        units=money,
        entry_price=money,
        exit_price=money,
        gross=money,
        costs=money,
        net=money,
        is_open=np.zeros(0, bool),
    )


def backtest(equity, bars_per_year=BARS_PER_YEAR, **fields):
    n = len(equity) - 1
    zero = np.zeros(n)
    base = {
        "equity": np.asarray(equity, float),
        "gross_equity": np.asarray(equity, float),
        "exposure": zero,
        "traded": zero,
        "price": zero + 1,
        "fee": zero,
        "spread_cost": zero,
        "financing": zero,
        "multiplier": 1.0,
        "closed_at_end": False,
        "terminated": False,
        "position": zero,
        "close": np.ones(n + 1),
        "bars_per_year": bars_per_year,
        "trades": empty_trades(),
    }
    return SimpleNamespace(**(base | fields))


@pytest.mark.parametrize("seed", range(6))
def test_agrees_with_empyrical_on_random_series(seed):
    rng = np.random.default_rng(seed)
    r = rng.standard_t(4, 40 + 300 * seed) * 0.01 + 0.0005 * (seed - 2)
    ours = compute_metrics(backtest(equity_of(r)))
    theirs = {
        "total_return": empyrical.cum_returns_final(r),
        "annual_return": empyrical.annual_return(r, annualization=BARS_PER_YEAR),
        "volatility": empyrical.annual_volatility(r, annualization=BARS_PER_YEAR),
        "sharpe": empyrical.sharpe_ratio(r, annualization=BARS_PER_YEAR),
        "sortino": empyrical.sortino_ratio(r, annualization=BARS_PER_YEAR),
        "calmar": empyrical.calmar_ratio(r, annualization=BARS_PER_YEAR),
        "max_drawdown": -empyrical.max_drawdown(r),
    }
    for key, value in theirs.items():
        assert ours[key] == pytest.approx(value, rel=1e-9), key


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.floats(-0.3, 0.4), min_size=1, max_size=40), min_size=1, max_size=6))
def test_table_of_ragged_windows_equals_plain_loops(series):
    longest = max(map(len, series))
    equity = np.full((len(series), longest + 1), 777.0)  # what lies behind a window's end must not matter
    notional = np.full((len(series), longest), 1e9)
    for row, r in enumerate(series):
        equity[row, : len(r) + 1] = equity_of(r)
        notional[row, : len(r)] = np.abs(r) * 5000
    table = metrics_table(equity, 100.0, steps=np.array([len(r) for r in series]), notional=notional)
    for row, r in enumerate(series):
        path = equity[row, : len(r) + 1].tolist()
        expected = {
            "sharpe": reference.sharpe(reference.returns(path), 100.0),
            "sortino": reference.sortino(reference.returns(path), 100.0),
            "max_drawdown": reference.max_drawdown(path),
            "drawdown_bars": reference.drawdown_bars(path),
            "annual_return": reference.annual_return(path, 100.0),
            "turnover": reference.turnover(path, notional[row, : len(r)]),
            "best_bar": max(reference.returns(path)),
            "worst_bar": min(reference.returns(path)),
            "bars": len(r),
        }
        for key, value in expected.items():
            got = table[key][row]
            assert math.isnan(got) if value is None else got == pytest.approx(value, rel=1e-7, abs=1e-12), (key, got, value)


def test_chunks_of_windows_give_the_same_as_each_window_alone(monkeypatch):
    monkeypatch.setattr("numba_rl.evaluate.metrics.CHUNK", 500)
    rng = np.random.default_rng(0)
    equity = np.array([equity_of(r) for r in rng.normal(0, 0.01, (37, 60))])
    fee = rng.random((37, 60))
    trades = trade_totals(rng.normal(size=200), rng.integers(1, 9, 200), rng.integers(0, 37, 200), 37)
    table = metrics_table(equity, 252.0, fee=fee, trades=trades)
    for row in range(37):
        alone = metrics_table(
            equity[row : row + 1], 252.0, fee=fee[row : row + 1], trades=type(trades)(*(v[row : row + 1] for v in trades))
        )
        for key in table:
            np.testing.assert_array_equal(table[key][row], alone[key][0], key)


def test_no_window_and_no_step():
    assert metrics_table(np.ones((0, 5)), 252.0)["sharpe"].shape == (0,)
    nothing = compute_metrics(backtest([1000.0]))
    assert nothing["total_return"] == 0.0 and nothing["bars"] == 0
    assert (
        nothing["sharpe"] is None
        and nothing["best_bar"] is None
        and nothing["average_exposure"] is None
        and nothing["annual_return"] is None
    )


def test_costs_exposure_and_trades_by_hand():
    trades = empty_trades()
    trades.entry_index, trades.exit_index = np.array([0, 2, 3]), np.array([2, 3, 3])
    trades.net, trades.is_open = np.array([30.0, -10.0, 500.0]), np.array([False, False, True])
    m = compute_metrics(
        backtest(
            [1000.0, 1100.0, 1100.0, 990.0, 1000.0],
            gross_equity=np.array([1000.0, 1101, 1102, 995, 1006]),
            exposure=np.array([0.5, 0.5, -1.0, 0.0]),
            traded=np.array([2.0, 0, -3, 1]),
            price=np.array([10.0, 11, 12, 11]),
            multiplier=5.0,
            fee=np.array([1.0, 0, 2, -0.5]),
            spread_cost=np.array([0.25, 0, 0.5, 0]),
            financing=np.array([0.0, 0.125, 0, 0]),
            trades=trades,
        )
    )
    assert m["gross_return"] == pytest.approx(0.006) and m["final_gross_equity"] == 1006.0 and m["final_equity"] == 1000.0
    assert (m["fees"], m["spread_cost"], m["financing"], m["costs"]) == (2.5, 0.75, 0.125, 3.375)
    assert (m["average_exposure"], m["absolute_exposure"], m["time_in_market"]) == (0.0, 0.5, 0.75)
    assert m["turnover"] == pytest.approx(100 / 1000 + 180 / 1100 + 55 / 990)
    assert m["turnover_per_year"] == pytest.approx(m["turnover"] * 252 / 4)
    assert (m["trades"], m["hit_rate"], m["profit_factor"], m["average_trade"], m["average_bars_held"]) == (2, 0.5, 3.0, 10.0, 1.5)


@pytest.mark.parametrize("ending", ["closed_at_end", "terminated"])
def test_the_exit_at_the_end_is_turnover(ending):
    m = compute_metrics(
        backtest(
            [1000.0, 1000.0, 1000.0],
            position=np.array([3.0, 0.0]),
            traded=np.array([3.0, -5.0]),
            price=np.array([10.0, 10.0]),
            multiplier=2.0,
            close=np.array([9.0, 10.0, 20.0]),
            **{ending: True},
        )
    )
    assert m["turnover"] == pytest.approx((60 + 100 + 2 * 20 * 2) / 1000)


def test_unknown_bars_per_year_leaves_only_yearly_figures_without_value():
    m = compute_metrics(backtest(equity_of([0.01, -0.02, 0.03]), bars_per_year=math.nan))
    assert m["sharpe"] is None and m["volatility"] is None and m["annual_return"] is None and m["turnover_per_year"] is None
    assert m["sharpe_per_bar"] is not None and m["max_drawdown"] == pytest.approx(0.02)


def test_equity_that_is_no_number_is_not_available():
    m = compute_metrics(backtest([1000.0, math.nan, 1010.0, 1020.0]))
    assert m["sharpe"] is None and m["max_drawdown"] is None and m["worst_bar"] is None
    m = compute_metrics(backtest([1000.0, math.inf, 1010.0]))
    assert all(value is None or math.isfinite(value) for value in m.values())


def test_not_available_never_ranks_first():
    assert max([None, -3.0, math.nan], key=rank_value) == -3.0
    assert max([None, -3.0, -2.0, math.nan], key=rank_value) == -2.0


@pytest.mark.parametrize(
    "equity",
    [
        [1000.0, math.nan, 1010.0, 1020.0],
        [1000.0, 1000.0, math.nan],
        [1000.0, math.inf, 1010.0],
        [1000.0, -5.0],
        [1000.0, 1000.0, 1000.0, 1000.0],
        [1000.0, 1010.0],
        [1000.0],
    ],
    ids=["nan", "flat, then nan", "inf", "ruined at once", "flat", "one bar", "no bar"],
)
def test_a_policy_without_a_figure_ranks_last(equity):
    assert rank_value(compute_metrics(backtest(equity))["sharpe_per_bar"]) == rank_of_equity(np.array(equity), "sharpe") == -math.inf


def test_every_metric_says_what_it_is():
    assert len({metric.key for metric in METRICS}) == len(METRICS)
    assert all(metric.formula and metric.unit in {"percent", "ratio", "fine", "money", "count", "bars", "times"} for metric in METRICS)


@settings(max_examples=100, deadline=None)
@given(st.floats(-0.5, 0.5), st.integers(2, 400))
def test_constant_returns_never_have_a_sharpe_ratio(value, n):
    assert math.isnan(sharpe(np.full(n, value)))
    assert math.isnan(sharpe(equity_of(np.full(n, value))[1:] / equity_of(np.full(n, value))[:-1] - 1))
    ratio = float(sortino(np.full(n, value)))
    assert math.isnan(ratio) if value >= -1e-14 else ratio == pytest.approx(-1.0)
