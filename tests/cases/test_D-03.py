"""D-03: the downside deviation runs over all bars, in any order."""

import math
from pathlib import Path

import numpy as np
import pytest

from numba_rl.evaluate.metrics import rank_value, sortino
from numba_rl.evaluate.paths import moments

RETURNS = np.loadtxt(Path(__file__).parent / "D-03" / "returns.csv", skiprows=1)


def test_stated_numbers():
    assert moments(RETURNS).mean == pytest.approx(-0.001666667, abs=5e-10)
    assert moments(RETURNS).downside == pytest.approx(0.034880749, abs=5e-10)
    assert sortino(RETURNS) == pytest.approx(-0.047782, abs=5e-7)


@pytest.mark.parametrize("seed", range(5))
def test_order_does_not_matter(seed):
    assert sortino(np.random.default_rng(seed).permutation(RETURNS)) == pytest.approx(-0.047782, abs=5e-7)


def test_equal_losses():
    assert sortino(np.full(5, -0.004)) == pytest.approx(-1.0, abs=1e-12)


def test_no_losing_bar_is_not_available_and_not_ranked_best():
    value = float(sortino(np.array([0.01, 0.02, 0.0])))
    assert math.isnan(value) and rank_value(value) < rank_value(-5.0)
