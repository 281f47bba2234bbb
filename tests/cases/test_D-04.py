"""D-04: annualisation follows the bars per year of the data, and half a day is not compounded to a year."""

import math
from pathlib import Path

import numpy as np
import pytest

from numba_rl.evaluate.metrics import metrics_table, sharpe

RETURNS = np.loadtxt(Path(__file__).parent / "D-04" / "returns_30min.csv", delimiter=",", skiprows=1, usecols=1)


@pytest.mark.parametrize(("bars_per_year", "expected"), [(1.0, 0.121359), (365 * 48, 16.0635), (365.25 * 48, 16.0690), (252 * 13, 6.9462)])
def test_sharpe(bars_per_year, expected):
    digits = 5e-7 if bars_per_year == 1 else 5e-5
    assert sharpe(RETURNS, bars_per_year) == pytest.approx(expected, abs=digits)
    equity = 1e6 * np.cumprod(np.concatenate([[1.0], 1.0 + RETURNS]))
    assert metrics_table(equity[None], bars_per_year)["sharpe"][0] == pytest.approx(expected, abs=digits)


def test_yearly_return_of_half_a_day_is_not_available():
    equity = 1e6 * np.cumprod(np.concatenate([[1.0], 1.0 + RETURNS]))
    table = metrics_table(equity[None], 365.25 * 48)
    assert math.isnan(table["annual_return"][0]) and math.isnan(table["calmar"][0])
    assert table["total_return"][0] == pytest.approx(np.prod(1 + RETURNS) - 1)


def test_daily_bars_of_the_same_strategy_give_the_same_order_of_value():
    half_hours = np.random.default_rng(1).normal(0.00005, 0.002, (2000, 48))
    days = np.prod(1 + half_hours, axis=1) - 1
    assert sharpe(days, 365.0) == pytest.approx(float(sharpe(half_hours.ravel(), 365.0 * 48)), rel=0.05)
