"""Scaling: train-only statistics, bounded results, constant columns, refusal of what is not finite, storage."""

import json

import numpy as np
import pytest

from numba_rl.data.feature_table import nonfinite_rows
from numba_rl.data.scaling import Scaling
from numba_rl.errors import CheckpointError, DataError

NAMES = ("a", "b", "c")


@pytest.fixture
def values():
    rng = np.random.default_rng(0)
    return (rng.standard_normal((70_000, 3)) * [1e-5, 3.0, 40.0] + [50.0, 0.0, -1e4]).astype(np.float32)


def test_statistics_are_those_of_the_rows_given(values):
    scaling = Scaling.fit(values[:5000], 5.0, NAMES)
    expected = values[:5000].astype(np.float64)
    np.testing.assert_allclose(scaling.mean, expected.mean(axis=0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(scaling.std[1:], expected.std(axis=0)[1:], rtol=1e-10)


def test_apply_standardises_and_clips(values):
    scaling = Scaling.fit(values, 2.0, NAMES)
    scaled = scaling.apply(values)
    assert scaled.dtype == np.float32 and scaled.flags.c_contiguous and scaled.shape == values.shape
    expected = np.clip((values.astype(np.float64) - scaling.mean) / scaling.std, -2.0, 2.0)
    np.testing.assert_allclose(scaled, expected, atol=1e-6)  # over many chunks, the last one short
    assert scaled.min() == -2.0 and scaled.max() == 2.0
    assert abs(Scaling.fit(values, 50.0, NAMES).apply(values)[:, 1:].std(axis=0) - 1).max() < 1e-5


@pytest.mark.parametrize("constant", [0.0, 0.1, -1e30, 42.5])
def test_a_constant_column_is_centred_and_not_blown_up(constant):
    values = np.full((1001, 1), constant, np.float32)
    scaling = Scaling.fit(values, 5.0, ("flat",))
    assert scaling.std[0] == 1.0
    assert (scaling.apply(values) == 0).all()


def test_a_column_that_varies_only_by_float32_rounding_is_constant():
    values = np.array([[1000.0], [np.nextafter(np.float32(1000), np.float32(2000))]] * 50, np.float32)
    assert Scaling.fit(values, 5.0, ("x",)).std[0] == 1.0


def test_later_values_never_leave_the_clip_range(values):
    scaling = Scaling.fit(values, 5.0, NAMES)
    extreme = np.array([[3e38, -3e38, 0.0], [-3e38, 3e38, 1e-40]], np.float32)
    scaled = scaling.apply(extreme)
    assert np.isfinite(scaled).all() and np.abs(scaled).max() == 5.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_named_by_column_and_row(values, bad):
    scaling = Scaling.fit(values, 5.0, NAMES)
    values[[17, 30], 1] = bad
    message = rf"file.csv: feature b is {bad} at row 17 \(2 of 70000 rows are not finite\)"
    with pytest.raises(DataError, match=message):
        Scaling.fit(values, 5.0, NAMES, "file.csv")
    with pytest.raises(DataError, match=message):
        scaling.apply(values, "file.csv")


def test_rows_are_counted_once_however_many_values_are_bad():
    values = np.ones((4, 3), np.float32)
    values[1, :] = np.nan
    values[2, 2] = np.inf
    assert nonfinite_rows(values).tolist() == [1, 2]


def test_no_rows_is_an_error():
    with pytest.raises(DataError, match="no training rows"):
        Scaling.fit(np.empty((0, 3), np.float32), 5.0, NAMES)


def test_storage_through_json_is_exact(values):
    scaling = Scaling.fit(values, 5.0, NAMES)
    restored = Scaling.from_dict(json.loads(json.dumps(scaling.to_dict())))
    assert restored.names == NAMES and restored.clip == 5.0
    assert restored.mean.tobytes() == scaling.mean.tobytes() and restored.std.tobytes() == scaling.std.tobytes()
    assert restored.apply(values).tobytes() == scaling.apply(values).tobytes()


@pytest.mark.parametrize(
    "change",
    [
        {"mean": [1.0, 2.0]},
        {"std": [1.0, 0.0, 1.0]},
        {"mean": [float("nan")] * 3},
        {"clip": 0.0},
        {"std": "abc"},
        {"names": None},
        {"clip": None},
    ],
)
def test_damaged_storage_is_refused(values, change):
    with pytest.raises(CheckpointError, match="damaged"):
        Scaling.from_dict(Scaling.fit(values, 5.0, NAMES).to_dict() | change)
