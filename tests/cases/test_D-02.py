"""D-02: the Sharpe ratio of a constant series has no value, and a series without one never ranks best."""

import math
from pathlib import Path

import numpy as np
import pytest

from numba_rl.evaluate.metrics import metrics_table, rank_value, sharpe

CASE = Path(__file__).parent / "D-02"


def column(name):
    return np.loadtxt(CASE / name, delimiter=",", skiprows=1, ndmin=2)[:, -1]


@pytest.mark.parametrize("name", ["returns_const_gain.csv", "returns_const_loss.csv", "returns_zero.csv"])
def test_constant_returns(name):
    r = column(name)
    assert math.isnan(sharpe(r)) and math.isnan(sharpe(r, 17520.0))
    equity = 1000.0 * np.cumprod(np.concatenate([[1.0], 1.0 + r]))
    assert math.isnan(metrics_table(equity[None], 252.0)["sharpe"][0])


def test_steady_equity():
    equity = column("equity_steady.csv")
    assert math.isnan(metrics_table(equity[None], 252.0)["sharpe"][0])
    assert math.isnan(sharpe(equity[1:] / equity[:-1] - 1))


def test_sure_loss_and_idle_agent_rank_below_a_losing_strategy():
    losing = np.array([0.01, -0.03, 0.005, -0.02])
    candidates = {"loss": column("returns_const_loss.csv"), "idle": column("returns_zero.csv"), "losing": losing}
    assert max(candidates, key=lambda name: rank_value(float(sharpe(candidates[name])))) == "losing"


def test_one_return():
    assert math.isnan(sharpe(np.array([0.01])))


def test_quiet_but_real_series_keeps_its_value():
    assert sharpe(np.tile([0.0001, 0.0003], 120)) == pytest.approx(1.995829, abs=5e-7)
