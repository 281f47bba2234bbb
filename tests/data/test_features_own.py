"""A user's own feature columns: matched by stamp, in any of the formats, refused with the row and the reason."""

import gzip

import numpy as np
import polars as pl
import pytest

from numba_rl.config import DataConfig
from numba_rl.data.feature_table import read_features
from numba_rl.errors import DataError


@pytest.fixture
def bars(make_bars):
    return make_bars(50)


@pytest.fixture
def frame(bars):
    rng = np.random.default_rng(0)
    stamps = pl.Series("timestamp", bars.timestamp).cast(pl.Datetime("ns", "UTC"))
    return pl.DataFrame({"timestamp": stamps, "alpha": rng.standard_normal(50), "open": rng.standard_normal(50), "n": np.arange(50)})


def written(frame, path):
    """Writes the frame the way the suffix says."""
    if path.suffix == ".parquet":
        frame.write_parquet(path)
    elif path.suffix == ".feather":
        frame.write_ipc(path, compression="uncompressed")
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(frame.write_csv().encode()))
    else:
        frame.write_csv(path)
    return path


@pytest.mark.parametrize("name", ["f.csv", "f.csv.gz", "f.parquet", "f.feather"])
def test_formats_give_the_same_table(tmp_path, bars, frame, name):
    table = read_features(written(frame, tmp_path / name), bars)
    assert table.names == ("alpha", "open", "n") and table.warmup == 0
    assert table.values.dtype == np.float32 and table.values.flags.c_contiguous
    np.testing.assert_array_equal(table.values, frame.drop("timestamp").to_numpy().astype(np.float32))


def test_rows_are_matched_by_stamp_in_any_order(tmp_path, bars, frame):
    more = frame.with_columns(pl.col("timestamp").dt.offset_by("300d"), pl.lit(9.0).alias("alpha"))
    shuffled = pl.concat([more, frame]).sample(fraction=1.0, shuffle=True, seed=1)
    table = read_features(written(shuffled, tmp_path / "f.parquet"), bars)
    np.testing.assert_array_equal(table.values[:, 0], frame["alpha"].to_numpy().astype(np.float32))


@pytest.mark.parametrize("unit", [1, 1_000_000, 1_000_000_000])
def test_epoch_stamps(tmp_path, bars, frame, unit):
    epoch = frame.with_columns(pl.Series("timestamp", bars.timestamp // unit))
    for name in ("f.csv", "f.parquet"):
        assert len(read_features(written(epoch, tmp_path / name), bars).values) == 50


def test_stamps_without_a_zone_follow_the_setting(tmp_path, bars, frame):
    local = frame.with_columns(pl.col("timestamp").dt.convert_time_zone("America/New_York").dt.replace_time_zone(None))
    path = written(local, tmp_path / "f.csv")
    assert len(read_features(path, bars, DataConfig(timezone="America/New_York")).values) == 50
    with pytest.raises(DataError, match="50 bars of 50 without a row"):
        read_features(path, bars)


def test_one_column_is_enough(tmp_path, bars, frame):
    assert read_features(written(frame.select("timestamp", "alpha"), tmp_path / "f.csv"), bars).values.shape == (50, 1)


def test_leading_gaps_are_the_warm_up(tmp_path, bars, frame):
    alpha, n = frame["alpha"].to_list(), frame["n"].to_list()
    gaps = frame.with_columns(pl.Series("alpha", [None] * 7 + alpha[7:]), pl.Series("n", [None] * 3 + n[3:]))
    for name in ("f.csv", "f.parquet"):
        table = read_features(written(gaps, tmp_path / name), bars)
        assert table.warmup == 7 and np.isfinite(table.values[7:]).all() and np.isnan(table.values[6, 0])


@pytest.mark.parametrize("bad", [None, float("inf"), 1e300])
def test_later_gaps_are_refused(tmp_path, bars, frame, bad):
    alpha = frame["alpha"].to_list()
    alpha[20] = bad
    with pytest.raises(DataError, match=r"f.parquet: feature alpha is (nan|inf) at row 20 \(1 of 50 rows"):
        read_features(written(frame.with_columns(pl.Series("alpha", alpha)), tmp_path / "f.parquet"), bars)


def test_a_column_that_is_never_there_is_refused(tmp_path, bars, frame):
    with pytest.raises(DataError, match="feature n is nan at row 0"):
        read_features(written(frame.with_columns(pl.lit(None, pl.Float64).alias("n")), tmp_path / "f.parquet"), bars)


def test_missing_stamps_are_counted_and_the_first_is_named(tmp_path, bars, frame):
    with pytest.raises(DataError, match=r"2 bars of 50 without a row of features, the first at 2026-01-07 09:27 UTC"):
        read_features(written(pl.concat([frame[:10], frame[12:]]), tmp_path / "f.csv"), bars)
    with pytest.raises(DataError, match=r"1 bar of 50 without a row of features, the first at 2026-01-07 10:06 UTC"):
        read_features(written(frame[:-1], tmp_path / "f.csv"), bars)


def test_a_second_row_for_a_stamp_is_refused(tmp_path, bars, frame):
    with pytest.raises(DataError, match="row 51: a second row for 2026-01-07 09:22"):
        read_features(written(pl.concat([frame, frame[5:6]]), tmp_path / "f.csv"), bars)


def test_text_is_no_feature(tmp_path, bars, frame):
    with pytest.raises(DataError, match="row 1: column side: 'buy' is no number"):
        read_features(written(frame.with_columns(pl.lit("buy").alias("side")), tmp_path / "f.csv"), bars)


@pytest.mark.parametrize("columns", [["alpha", "n"], ["timestamp"]])
def test_files_without_stamps_or_features_are_refused(tmp_path, bars, frame, columns):
    with pytest.raises(DataError, match="name one timestamp, and have one feature column or more"):
        read_features(written(frame.select(columns), tmp_path / "f.csv"), bars)


def test_no_stamp_in_a_row(tmp_path, bars, frame):
    stamps = frame["timestamp"].to_list()
    stamps[3] = None
    with pytest.raises(DataError, match="row 4: no stamp"):
        read_features(written(frame.with_columns(pl.Series("timestamp", stamps)), tmp_path / "f.csv"), bars)


def test_files_that_cannot_be_read(tmp_path, bars):
    (tmp_path / "empty.csv").write_bytes(b"")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    for name in ("empty.csv", "cut.parquet", "missing.csv", "."):
        with pytest.raises(DataError, match="features cannot be read"):
            read_features(tmp_path / name, bars)
