"""D-13: flat bars, with volume and then without: every feature finite and neutral, and recovered soon after."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from numba_rl.config import Config, DataConfig
from numba_rl.data.bars import read_bars
from numba_rl.data.features import FEATURES, NAMES, WARMUP, compute_features
from numba_rl.data.market import load_market

CASE = Path(__file__).parent / "D-13"
EXPECTED = {"rsi_14": 50, "rsi_42": 50, "stochastic_k_14": 50, "williams_r_28": -50, "bollinger_b_20": 0.5, "atr_14": 0, "zscore_64": 0}
EXPECTED |= {
    "mfi_14": 50,
    "cmf_21": 0,
    "relative_volume_1": 0,
    "relative_volume_8": 0,
    "vwap_distance_32": 0,
    "adx_14": 0,
    "directional_14": 0,
}
EXPECTED |= {"return_1": 0, "return_64": 0, "return_256": 0, "gap": 0, "range": 0, "volatility_64": 0, "yang_zhang_64": 0}


@pytest.fixture(scope="module")
def flat():
    return read_bars(CASE / "flat.csv")


@pytest.fixture(scope="module")
def normal():
    """base.csv and its first 400 bars once more, beginning at 42.5 and going on where it ended: as many as the longest look-back, and more."""
    bars = read_bars(CASE / "base.csv")
    first = begun_at(bars, 42.5)
    return joined(first, begun_at(bars.slice(0, 400), first.close[-1]))


def begun_at(bars, level):
    factor = level / bars.close[0]
    return replace(bars, **{name: getattr(bars, name) * factor for name in ("open", "high", "low", "close")})


def joined(first, second):
    columns = {name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in ("open", "high", "low", "close", "volume")}
    stamps = first.timestamp[-1] + first.interval_ns * np.arange(1, len(second) + 1)
    return replace(first, timestamp=np.concatenate([first.timestamp, stamps]), **columns)


def test_flat_bars_are_finite_and_neutral_on_every_row(flat):
    assert len(flat) == 640
    values = compute_features(flat).values[WARMUP:]
    assert np.isfinite(values).all()
    for name, value in EXPECTED.items():
        column = values[:, NAMES.index(name)]
        transition = np.zeros(len(column), bool)
        if name.startswith("relative_volume"):  # volume stops at bar 300 and is then 0 beside a mean of more, until the mean forgets it
            transition[300 - WARMUP : 300 + 128 - WARMUP] = True
        assert (column[~transition] == value).all(), name


def test_features_recover_after_the_flat_part(flat, normal):
    """Once the look-backs hold normal bars only, the features are those of the normal bars alone."""
    together = compute_features(joined(flat, normal)).values
    assert np.isfinite(together[WARMUP:]).all()
    alone = compute_features(replace(normal, timestamp=joined(flat, normal).timestamp[640:])).values
    for feature in FEATURES:
        after, found = together[640 + feature.lookback :, feature.index], alone[feature.lookback :, feature.index]
        np.testing.assert_allclose(after, found, rtol=1e-5, atol=1e-12, err_msg=feature.name)
    moving = together[640:, NAMES.index("rsi_14")]
    assert (moving[2:] != 50).all()


def test_a_market_of_flat_bars_is_scaled_to_finite_features():
    market = load_market(Config(data=DataConfig(path=str(CASE / "flat.csv"))))
    assert np.isfinite(market.features).all()
