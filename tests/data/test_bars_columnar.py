"""Parquet, Feather and Arrow IPC: column types, zones, where the time stands, and what is refused."""

import gzip
from datetime import date, time
from decimal import Decimal

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest

from numba_rl.config import DataConfig
from numba_rl.data.bars import read_bars
from numba_rl.errors import DataError

STAMPS = np.datetime64("2026-02-02T10:00", "s") + np.arange(4) * np.timedelta64(900, "s")
SECONDS = STAMPS.astype(np.int64)
PRICES = {"open": [1.0, 2, 3, 4], "high": [2.0, 3, 4, 5], "low": [0.5, 1, 2, 3], "close": [1.5, 2.5, 3.5, 4.5]}


@pytest.fixture
def read(tmp_path):
    def run(columns, **settings):
        path = tmp_path / "bars.parquet"
        pa.parquet.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), path)
        return read_bars(path, DataConfig(**settings))

    return run


def starts_at_ten(bars):
    return bars.timestamp.tolist() == (SECONDS * 1_000_000_000).tolist()


@pytest.mark.parametrize(
    "stamps",
    [
        pa.array(SECONDS, pa.timestamp("s")),
        pa.array(SECONDS * 1000, pa.timestamp("ms", "America/New_York")),
        pa.array(SECONDS * 1_000_000, pa.timestamp("us", "+02:00")),
        pa.array(SECONDS * 1_000_000_000, pa.timestamp("ns", "UTC")),
        pa.array(SECONDS),
        pa.array(SECONDS.astype(np.uint64) * 1000),
        pa.array(SECONDS.astype(float)),
        pa.array([str(stamp) for stamp in STAMPS]),
        pa.array([f"{stamp}Z" for stamp in STAMPS], pa.large_string()).dictionary_encode(),
    ],
    ids=lambda array: str(array.type),
)
def test_types_of_time(read, stamps):
    assert starts_at_ten(read({"timestamp": stamps, **PRICES}))


def test_dates_and_separate_clocks(read):
    days = [date(2026, 2, 2 + i) for i in range(4)]
    for kind in (pa.date32(), pa.date64()):
        assert read({"date": pa.array(days, kind), **PRICES}).timestamp[1] == np.datetime64("2026-02-03", "ns").astype(np.int64)
    clocks = pa.array([time(10, 15 * i) for i in range(4)])
    assert starts_at_ten(read({"date": pa.array(days[:1] * 4), "time": clocks, **PRICES}))


def test_stamps_without_a_zone_follow_the_setting(read):
    local = pa.array(SECONDS * 1_000_000 - 5 * 3600 * 1_000_000, pa.timestamp("us"))
    assert starts_at_ten(read({"timestamp": local, **PRICES}, timezone="America/New_York"))
    night = pa.array([np.datetime64("2026-11-01T01:30", "us")] * 4, pa.timestamp("us"))
    with pytest.raises(DataError, match="row 1: .*twice"):
        read({"timestamp": night, **PRICES}, timezone="America/New_York")


def test_nanoseconds_are_kept(read):
    stamps = pa.array(SECONDS * 1_000_000_000 + 7, pa.timestamp("ns"))
    assert read({"timestamp": stamps, **PRICES}).timestamp[0] == SECONDS[0] * 1_000_000_000 + 7


@pytest.mark.parametrize(
    "column",
    [
        pa.array([Decimal("1.5"), Decimal("2.5"), Decimal("3.5"), Decimal("4.5")], pa.decimal128(38, 10)),
        pa.array([1.5, 2.5, 3.5, 4.5], pa.float32()),
        pa.array(["1,5", "2,5", "3,5", "4,5"]),
    ],
    ids=lambda array: str(array.type),
)
def test_types_of_prices(read, column):
    assert read({"timestamp": STAMPS, **PRICES, "close": column}).close.tolist() == [1.5, 2.5, 3.5, 4.5]


def test_decimals_are_rounded_as_text_is(read):
    cells = [f"{i}.{i:06d}" for i in (10001, 20003, 30007, 90001)]
    column = pa.array([Decimal(cell) for cell in cells], pa.decimal128(18, 6))
    assert read({"timestamp": STAMPS, **dict.fromkeys(PRICES, column)}).close.tolist() == [float(cell) for cell in cells]


def test_nulls_and_nans_are_missing(read):
    bars = read({"timestamp": STAMPS, **PRICES, "close": [1.5, None, np.nan, 4.5]})
    assert bars.close.tolist() == [1.5, 4.5]
    assert any("rows 2, 3" in text for text in bars.notices)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"timestamp": STAMPS, **PRICES, "close": [True] * 4}, "column close has type bool"),
        ({"timestamp": [True] * 4, **PRICES}, "the time column has type bool"),
        ({"timestamp": pa.array(SECONDS * 1_000_000, pa.timestamp("s")), **PRICES}, "row 1: .*outside the years"),
        ({"timestamp": pa.array(SECONDS * 1_000_000, pa.timestamp("ms")), **PRICES}, "row 1: .*outside the years"),
        ({"timestamp": pa.array([None, *SECONDS[1:].tolist()], pa.timestamp("s")), **PRICES}, "row 1: no stamp"),
        ({"timestamp": np.arange(4), **PRICES}, "row 1: stamp 0 is neither"),
        ({"timestamp": STAMPS, **PRICES, "high": [2.0, 0.1, 4, 5]}, "row 2: high 0.1 is below low 1"),
        ({"timestamp": STAMPS, **PRICES, "high": [2.0, np.inf, 4, 5]}, "row 2: high is inf"),
        ({"timestamp": STAMPS, "open": PRICES["open"]}, "no column for high, low, close"),
        ({"timestamp": STAMPS, **PRICES, "symbol": ["A", "B", None, "A"]}, r"holds 3 instruments \(A, B, \(empty\)\)"),
    ],
)
def test_refused(read, columns, says):
    with pytest.raises(DataError, match=rf"bars.parquet: {says}"):
        read(columns)


def test_two_levels_of_columns_as_pandas_writes_them(read):
    names = {f"('{name.title()}', 'AAA')": column for name, column in PRICES.items()}
    other = {f"('{name.title()}', 'BBB')": [2 * x for x in column] for name, column in PRICES.items()}
    time = {"__index_level_0__": STAMPS}
    assert read({**names, **time}).close.tolist() == PRICES["close"]
    with pytest.raises(DataError, match=r"2 instruments \(AAA, BBB\)"):
        read({**names, **other, **time})
    assert read({**names, **other, **time}, symbol="BBB").close[0] == 3


@pytest.mark.parametrize("suffix", ["feather", "arrow", "arrows", "gz"])
def test_arrow_files_are_known_by_content(tmp_path, suffix):
    table = pa.table({"timestamp": STAMPS, **PRICES, "symbol": pa.array(["A", "B", "A", "B"]).dictionary_encode()})
    path = tmp_path / f"bars.{suffix}"
    if suffix == "arrow":
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    elif suffix == "arrows":
        with pa.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table)
    else:
        pa.feather.write_feather(table, path)
    if suffix == "gz":
        path.write_bytes(gzip.compress(path.read_bytes()))
    path = path.rename(tmp_path / "bars.dat")
    assert read_bars(path, DataConfig(symbol="A")).close.tolist() == [1.5, 3.5]


def test_polars_files(tmp_path):
    frame = pl.DataFrame({"timestamp": STAMPS.astype("datetime64[us]"), **PRICES, "symbol": ["A"] * 4})
    for name, write in (("bars.parquet", frame.write_parquet), ("bars.feather", frame.write_ipc)):
        write(tmp_path / name)
        assert starts_at_ten(read_bars(tmp_path / name))
