"""D-05: metrics of a ruined account are finite or n/a, and a debt is shown as a debt."""

import math
from pathlib import Path

import numpy as np
import pytest

from numba_rl.evaluate.metrics import metrics_table

EQUITY = np.loadtxt(Path(__file__).parent / "D-05" / "equity.csv", delimiter=",", skiprows=1)[:, 1]


def figures(equity, bars_per_year=252.0):
    n = len(equity) - 1
    arrays = {
        "gross_equity": np.asarray(equity)[None],
        "exposure": np.ones((1, n)),
        "notional": np.full((1, n), 10.0),
        "fee": np.zeros((1, n)),
    }
    return {key: values[0] for key, values in metrics_table(np.asarray(equity)[None], bars_per_year, **arrays).items()}


def test_ruin():
    m = figures(EQUITY)
    assert m["total_return"] == -1.0 and m["max_drawdown"] == 1.0 and m["worst_bar"] == -1.0
    assert m["sharpe_per_bar"] == pytest.approx(-0.8 / math.sqrt(0.08))  # of -0.6 and -1.0: nothing is counted after the ruin
    assert not any(math.isinf(value) for value in m.values())


def test_ruin_over_a_long_span_has_lost_everything_a_year():
    assert figures(EQUITY, bars_per_year=3.0)["annual_return"] == -1.0
    assert figures(EQUITY, bars_per_year=3.0)["calmar"] == -1.0


def test_debt_is_shown():
    m = figures([1000.0, 400.0, -50.0])
    assert m["total_return"] == pytest.approx(-1.05) and m["max_drawdown"] == pytest.approx(1.05)
    assert math.isfinite(m["sharpe"]) and math.isfinite(m["sortino"])


def test_bars_after_the_ruin_change_no_ratio():
    for key in ("sharpe", "sortino", "total_return", "max_drawdown", "turnover"):
        assert figures(EQUITY)[key] == figures(EQUITY[:3])[key], key
