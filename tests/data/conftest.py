"""Bars made for tests of features, scaling, windows and markets."""

import numpy as np
import pytest

from numba_rl.data.bars import Bars

MINUTE = 60_000_000_000


@pytest.fixture(scope="session")
def make_bars():
    """Factory: bars of a random walk of log prices, or of given closes, float64, one a minute from Wednesday 7 January 2026."""

    def make(n=1000, seed=0, level=100.0, step=1e-3, volume=True, close=None, interval_ns=MINUTE, source="made") -> Bars:
        rng = np.random.default_rng(seed)
        if close is None:
            close = level * np.exp(np.cumsum(rng.standard_normal(n) * step))
        else:
            close = np.array(close, np.float64)
            n = len(close)
        width = np.abs(rng.standard_normal((3, n))) * step * np.abs(close).clip(1e-300)
        open_ = np.concatenate([close[:1], close[:-1]]) + 0.2 * width[2]
        start = np.datetime64("2026-01-07T09:17", "ns").astype(np.int64)
        return Bars(
            timestamp=start + np.arange(n, dtype=np.int64) * interval_ns,
            open=open_,
            high=np.maximum(open_, close) + width[0],
            low=np.minimum(open_, close) - width[1],
            close=close,
            volume=rng.integers(0, 2000, n).astype(np.float64) if volume else None,
            interval_ns=interval_ns,
            bars_per_year=525_600.0,
            source=source,
        )

    return make
