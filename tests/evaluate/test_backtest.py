"""A policy played over a long range sees what it has learned from: equity as a share of that at its episode's start."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rules.driver import random_bars

from numba_rl import settings
from numba_rl.config import Config
from numba_rl.data.windows import Range
from numba_rl.evaluate.backtest import play_policy


@pytest.mark.parametrize("length", [5, 500])
def test_equity_is_counted_from_the_start_of_an_episode(length):
    prices = random_bars(np.random.default_rng(1), 40, 0.02)
    market = SimpleNamespace(
        prices=prices, features=np.zeros((len(prices), 2), np.float32), timestamp=60_000_000_000 * np.arange(len(prices)), bars_per_year=525_600.0,
        interval_ns=60_000_000_000, source="test",
    )  # fmt: skip
    seen = []

    def policy(states):
        seen.append(states[:, 2].clone())
        return torch.nn.functional.one_hot(torch.full((len(states),), 36 + len(seen) % 2), 45).float()

    played = play_policy(market, [Range(1, 38), Range(3, 20)], policy, settings.replace(Config(), {"episodes.length": length}))
    for w, account in enumerate(played):
        begins = np.arange(len(account)) // length * length
        wanted = account.equity[:-1] / account.equity[begins]
        np.testing.assert_allclose([float(row[w]) for row in seen[: len(account)]], wanted, rtol=1e-6)
        assert np.ptp(wanted) > 0.005
