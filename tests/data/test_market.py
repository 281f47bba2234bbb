"""load_market: alignment after the warm-up, train-only scaling, digests, own features, errors that name what is needed."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from numba_rl.config import Config, DataConfig
from numba_rl.data.features import REGIME, REGIME_WARMUP, WARMUP, compute_features
from numba_rl.data.market import load_market
from numba_rl.data.scaling import Scaling
from numba_rl.data.windows import Range, bars_needed
from numba_rl.errors import CheckpointError, ConfigError, DataError


def settings(**data):
    return Config(data=DataConfig(**data))


@pytest.fixture
def bars(make_bars):
    return make_bars(1000)


def test_everything_is_aligned_after_the_warm_up(bars):
    market = load_market(settings(), bars)
    assert len(market) == 1000 - WARMUP == len(market.prices) == len(market.features) == len(market.regime) == len(market.volume)
    assert market.warmup == WARMUP and market.interval_ns == bars.interval_ns and market.bars_per_year == bars.bars_per_year
    np.testing.assert_array_equal(market.timestamp, bars.timestamp[WARMUP:])
    np.testing.assert_array_equal(market.prices, bars.prices[WARMUP:])
    raw = compute_features(bars).values[WARMUP:]
    np.testing.assert_array_equal(market.raw_features, raw)
    np.testing.assert_array_equal(market.regime, raw[:, REGIME])
    np.testing.assert_allclose(market.regime[1:, 0], np.diff(np.log(market.prices[:, 3])), rtol=1e-6)
    for array in (market.timestamp, market.prices, market.features, market.raw_features, market.regime, market.volume):
        assert array.flags.c_contiguous
    assert market.features.dtype == market.raw_features.dtype == market.regime.dtype == np.float32
    assert (market.train, market.validation, market.test) == (Range(0, 344), Range(344, 544), Range(544, 744))


def test_scaling_is_fitted_on_the_training_rows(bars):
    market = load_market(settings(feature_clip=3.0), bars)
    part = market.raw_features[market.train.start : market.train.stop]
    expected = Scaling.fit(part, 3.0, market.names)
    assert market.scaling.mean.tobytes() == expected.mean.tobytes() and market.scaling.std.tobytes() == expected.std.tobytes()
    assert market.features.tobytes() == expected.apply(market.raw_features).tobytes()
    assert np.abs(market.features).max() == 3.0


def test_nothing_before_the_test_range_depends_on_it(bars):
    market = load_market(settings(), bars)
    cut = WARMUP + market.test.start
    poisoned = {name: getattr(bars, name).copy() for name in ("open", "high", "low", "close", "volume")}
    for column in poisoned.values():
        column[cut:] *= 7.0
    other = load_market(settings(), replace(bars, **poisoned))
    assert other.scaling.to_dict() == market.scaling.to_dict()
    for name in ("features", "raw_features", "regime", "prices"):
        assert getattr(other, name)[: market.test.start].tobytes() == getattr(market, name)[: market.test.start].tobytes()
        assert getattr(other, name).tobytes() != getattr(market, name).tobytes()
    assert other.features_digest != market.features_digest and other.bars_digest != market.bars_digest


def test_digests_are_those_of_content(bars):
    a, b = load_market(settings(), bars), load_market(settings(feature_clip=2.0), replace(bars, source="other name"))
    assert (a.bars_digest, a.features_digest) == (b.bars_digest, b.features_digest)
    assert len(a.features_digest) == 64


def test_a_fold_has_a_scaling_of_its_own(bars):
    market = load_market(settings(), bars)
    rows = Range(100, 300)
    scaling = market.fit_scaling(rows)
    np.testing.assert_allclose(scaling.mean, market.raw_features[100:300].astype(np.float64).mean(axis=0), rtol=1e-9, atol=1e-12)
    fold = market.with_scaling(scaling)
    assert fold.scaling is scaling and fold.raw_features is market.raw_features
    inside = np.abs(fold.features[100:300]) < scaling.clip
    assert inside.mean() > 0.99 and abs(fold.features[100:300][:, 3].mean()) < 1e-2


def test_a_trained_policys_scaling_is_used_instead_of_a_fit(bars, make_bars):
    trained = load_market(settings(), bars).scaling
    market = load_market(settings(split=(0.0, 0.0, 1.0)), make_bars(400, seed=3), trained)
    assert market.scaling is trained and market.train.bars == market.validation.bars == 0 and market.test == Range(0, 400 - WARMUP)
    with pytest.raises(ConfigError, match="leaves no bars to train on"):
        load_market(settings(split=(0.0, 0.0, 1.0)), bars)


def own_features(tmp_path, bars, **columns):
    path = tmp_path / "own.parquet"
    pl.DataFrame({"timestamp": bars.timestamp, **columns}).write_parquet(path)
    return str(path)


def test_own_features_replace_the_set_and_keep_the_regime_and_the_test_bars(tmp_path, bars):
    ramp = np.where(np.arange(1000) < 20, np.nan, np.arange(1000.0))
    market = load_market(settings(features=own_features(tmp_path, bars, ramp=ramp)), bars)
    default = load_market(settings(), bars)
    assert market.names == ("ramp",) and market.features.shape == (len(market), 1) and market.warmup == REGIME_WARMUP
    assert market.raw_features[0, 0] == market.warmup
    np.testing.assert_array_equal(market.regime, default.regime)
    assert market.timestamp[market.test.start] == default.timestamp[default.test.start]


def test_own_features_with_a_longer_warm_up(tmp_path, bars):
    ramp = np.where(np.arange(1000) < 300, np.nan, np.arange(1000.0))
    market = load_market(settings(features=own_features(tmp_path, bars, ramp=ramp)), bars)
    assert market.warmup == 300 and len(market) == 700 and market.raw_features[0, 0] == 300
    assert market.timestamp[market.test.start] == bars.timestamp[800]


def test_scaling_of_other_features_is_refused(tmp_path, bars):
    default = load_market(settings(), bars)
    config = settings(features=own_features(tmp_path, bars, ramp=np.arange(1000.0)))
    with pytest.raises(CheckpointError, match="trained on 51 features, these are 1 .*first difference: ramp"):
        load_market(config, bars, default.scaling)
    with pytest.raises(CheckpointError, match="trained on 1 features, these are 51"):
        default.with_scaling(load_market(config, bars).scaling)


def test_prices_through_zero_in_arithmetic_mode(make_bars):
    close = np.random.default_rng(0).standard_normal(900).cumsum()
    bars = make_bars(close=close, step=0.2)
    market = load_market(settings(price_mode="arithmetic"), bars)
    assert np.isfinite(market.features).all() and np.isfinite(market.regime).all()
    with pytest.raises(DataError, match="price <= 0"):
        load_market(settings(), bars)


def test_exactly_enough_bars_work_and_one_fewer_is_named(bars, tmp_path):
    needed = bars_needed((0.6, 0.2, 0.2), WARMUP)
    market = load_market(settings(), bars.slice(0, needed))
    assert min(market.train.bars, market.validation.bars, market.test.bars) >= 2
    message = rf"{needed - 1:,} bars found, {needed:,} needed \({WARMUP} to warm up the features"
    with pytest.raises(DataError, match="made: " + message):
        load_market(settings(), bars.slice(0, needed - 1))
    path = tmp_path / "short.csv"
    part = bars.slice(0, needed - 1)
    pl.DataFrame({name: getattr(part, name) for name in ("timestamp", "open", "high", "low", "close", "volume")}).write_csv(path)
    with pytest.raises(DataError, match="short.csv: " + message):
        load_market(settings(path=str(path)))


def test_a_file_is_read_and_its_name_kept(bars, tmp_path):
    path = tmp_path / "market.csv"
    pl.DataFrame({name: getattr(bars, name) for name in ("timestamp", "open", "high", "low", "close", "volume")}).write_csv(path)
    market = load_market(settings(path=str(path)))
    assert market.source == "market.csv"
    assert market.raw_features.tobytes() == load_market(settings(), bars).raw_features.tobytes()


def test_no_path_is_a_setting_error():
    with pytest.raises(ConfigError, match="data.path is not set"):
        load_market(settings())
