"""The 51 features: against the reference, causal bit for bit, finite and neutral in awkward markets, free of drift."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from numba_rl.data.features import FEATURES, NAMES, REGIME, REGIME_WARMUP, WARMUP, compute_features, compute_regime
from numba_rl.errors import DataError

_spec = importlib.util.spec_from_file_location("reference_features", Path(__file__).parents[1] / "reference" / "features.py")
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
reference = _module.reference

NEUTRAL = {"rsi_14": 50, "rsi_42": 50, "stochastic_k_14": 50, "williams_r_28": -50, "bollinger_b_20": 0.5, "range_position_64": 0.5}
NEUTRAL |= {"range_position_256": 0.5, "mfi_14": 50, "volatility_regime": 1}
CLOCK = ("time_of_day_sin", "time_of_day_cos", "day_of_week_sin", "day_of_week_cos")
VOLUME = ("relative_volume_1", "relative_volume_8", "mfi_14", "cmf_21", "vwap_distance_32")


def assert_matches_reference(bars, rows, price_mode="log", rtol=2e-6):
    values = compute_features(bars, price_mode).values
    for t in rows:
        expected = reference(bars, t, price_mode)
        for feature in FEATURES:
            # a difference of logs of size ln(price) carries its rounding: 1e-14 covers 10 roundings of a float64 near 11
            np.testing.assert_allclose(
                values[t, feature.index], expected[feature.name], rtol=rtol, atol=1e-14, err_msg=f"{feature.name} at {t}"
            )


def assert_flat_values(row, names=NAMES):
    for name, value in zip(names, row, strict=True):
        if name not in CLOCK:
            assert value == NEUTRAL.get(name, 0), name


def test_table_is_complete_and_in_order():
    assert len(FEATURES) == 51 and [f.index for f in FEATURES] == list(range(51))
    assert len(set(NAMES)) == 51 and all(f.formula and f.unit for f in FEATURES)
    assert [NAMES[i] for i in REGIME] == ["return_1", "trend_strength", "volatility_regime"]
    assert WARMUP == max(f.warmup for f in FEATURES) == 256


@pytest.mark.parametrize("volume", [True, False])
def test_log_mode_matches_reference(make_bars, volume):
    bars = make_bars(2101, seed=1, volume=volume)
    assert_matches_reference(bars, [256, 257, 271, 319, 383, 511, 512, 513, 640, 777, 1022, 1023, 1024, 2047, 2048, 2100])


def test_arithmetic_mode_matches_reference_through_zero(make_bars):
    close = np.random.default_rng(2).standard_normal(700).cumsum()  # crosses zero many times
    assert close.min() < 0 < close.max()
    assert_matches_reference(make_bars(close=close, step=0.3), [256, 300, 512, 699], "arithmetic")


def test_known_values(make_bars):
    bars = make_bars(close=100.0 * 1.01 ** np.arange(1500))
    row = dict(zip(NAMES, compute_features(bars).values[-1].tolist(), strict=True))
    growth = np.log(1.01)
    assert row["return_1"] == pytest.approx(growth) and row["return_64"] == pytest.approx(64 * growth)
    assert row["ma_distance_8"] == pytest.approx(3.5 * growth) and row["ma_distance_256"] == pytest.approx(127.5 * growth)
    assert row["ma_distance_1024"] == pytest.approx(511.5 * growth)
    assert row["rsi_14"] == 100 and row["trend_strength"] == pytest.approx(1) and row["volatility_regime"] == pytest.approx(1)
    assert row["autocorrelation_64"] == pytest.approx(1) and row["volatility_16"] == pytest.approx(growth)
    assert row["zscore_64"] == pytest.approx(31.5 / np.sqrt((64**2 - 1) / 12))


@pytest.mark.parametrize("mode", ["log", "arithmetic"])
def test_appending_bars_changes_no_earlier_bit(make_bars, mode):
    bars = make_bars(2100, seed=3)
    whole = compute_features(bars, mode).values
    for n in [0, 1, 2, 63, 64, 65, 255, 256, 257, 258, 300, 319, 320, 511, 512, 513, 769, 1023, 1024, 1025, 1500, 2048, 2099]:
        assert compute_features(bars.slice(0, n), mode).values.tobytes() == whole[:n].tobytes(), n


def test_later_bars_change_no_earlier_bit_whatever_they_are(make_bars):
    bars = make_bars(1200, seed=4)
    poisoned = {name: getattr(bars, name).copy() for name in ("open", "high", "low", "close", "volume")}
    for column in poisoned.values():
        column[900:] *= 1e30
    a, b = compute_features(bars).values, compute_features(replace(bars, **poisoned)).values
    assert a[:900].tobytes() == b[:900].tobytes()
    assert (a[900] != b[900]).any()


def test_look_backs_are_what_the_table_says(make_bars):
    """Bars before a feature's look-back do not reach it, and its first value comes as soon as the look-back, or `WARMUP` bars of it, is there."""
    bars = make_bars(1500, seed=5)
    values, t = compute_features(bars).values, 1450
    for feature in FEATURES:
        column = values[:, feature.index]
        assert np.isnan(column[: feature.warmup]).all() and np.isfinite(column[feature.warmup :]).all(), feature.name
        alone = compute_features(bars.slice(t - feature.lookback, t + 1)).values[-1, feature.index]
        np.testing.assert_allclose(alone, column[t], rtol=2e-6, atol=1e-14, err_msg=feature.name)


def test_flat_bars_are_neutral_and_forgotten(make_bars):
    """Flat after a wild start: exactly neutral, with volume, with zero volume and without; then the values recover."""
    wild = make_bars(300, seed=6, step=0.1)
    tail = make_bars(400, seed=7, level=42.5)
    for volume in (700.0, 0.0, None):
        columns = {
            name: np.concatenate([getattr(wild, name), np.full(1400, 42.5), getattr(tail, name)])
            for name in ("open", "high", "low", "close")
        }
        amounts = None if volume is None else np.concatenate([wild.volume, np.full(1400, volume), tail.volume])
        made = make_bars(2100)
        bars = replace(made, volume=amounts, **columns)
        values = compute_features(bars).values
        assert np.isfinite(values[WARMUP:]).all()
        for row in values[300 + max(f.lookback for f in FEATURES) + 1 : 1700]:
            assert_flat_values(row)
        assert_matches_reference(bars, [1701, 1800, 1950, 2099])


def test_without_volume_volume_features_are_neutral(make_bars):
    values = compute_features(make_bars(400, volume=False)).values[WARMUP:]
    for name in VOLUME:
        assert (values[:, NAMES.index(name)] == NEUTRAL.get(name, 0)).all(), name


def test_huge_jumps_stay_finite_and_leave_no_trace(make_bars):
    close = 100.0 * np.exp(np.random.default_rng(8).standard_normal(1500).cumsum() * 1e-4)
    close[400] *= 1e12
    close[700:] *= 1e-30
    volume = make_bars(1500).volume
    volume[400] = 1e15
    bars = replace(make_bars(close=close, step=1e-4), volume=volume)
    values = compute_features(bars).values
    assert np.isfinite(values[WARMUP:]).all()
    assert_matches_reference(bars, [400, 401, 500, 656, 657, 699, 700, 701, 957, 1423, 1424, 1499])


def test_a_million_bars_at_a_high_price_do_not_drift(make_bars):
    bars = make_bars(1_000_000, seed=9, level=50_000.0, step=1e-4)
    bars.close[1000] *= 1e3  # the worst that a running sum could carry along
    bars.high[1000] *= 1e3
    bars.volume[1000] = 1e16
    assert_matches_reference(bars, [999_999, 999_871, 500_000, 1300])


def test_a_single_bar_and_none(make_bars):
    for n in (0, 1):
        assert compute_features(make_bars(2).slice(0, n)).values.shape == (n, 51)


def test_values_are_contiguous_float32(make_bars):
    table = compute_features(make_bars(300))
    assert table.values.dtype == np.float32 and table.values.flags.c_contiguous and table.warmup == WARMUP and table.names == NAMES


def test_regime_alone_equals_the_columns(make_bars):
    bars = make_bars(600)
    regime = compute_regime(bars)
    assert regime.values.tobytes() == np.ascontiguousarray(compute_features(bars).values[:, REGIME]).tobytes()
    assert regime.names == ("return_1", "trend_strength", "volatility_regime") and regime.warmup == REGIME_WARMUP


def test_prices_at_or_below_zero_are_refused_in_log_mode(make_bars):
    bars = make_bars(close=[9.6, 3.1, 0.0, -7.6, 2.2], step=0.0)
    with pytest.raises(DataError, match=r'made: bar 3 has a price <= 0 \(low 0; 3 such bars\).*data.price_mode = "arithmetic"'):
        compute_features(bars)


def test_an_overflow_is_named(make_bars):
    bars = make_bars(400, source="file.csv")
    bars.volume[300] = 1e308
    bars.volume[301] = 1e308
    with pytest.raises(DataError, match=r"file.csv: feature relative_volume_\d overflows at bar 30\d of 400"):
        compute_features(bars)
