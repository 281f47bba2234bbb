"""Real market files, where they lie beside the repository: read sensibly, and the same from every format."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from numba_rl.config import DataConfig
from numba_rl.data.bars import read_bars
from numba_rl.errors import DataError

DATA = Path(__file__).resolve().parents[2] / "../shared/data"
MINUTE, DAY = 60_000_000_000, 86_400_000_000_000
MARKETS = ["6EH4_1min_2024-01.csv.gz", "usdjpy_m1_bid_2013.csv.gz", "btc_perp_1m_2022-01.csv.gz", "sp500_daily_1999-2018.csv.gz"]


def real(name):
    path = DATA / name
    if not path.exists():
        pytest.skip(f"the real market file {name} is not here")
    return path


def ns(text):
    return int(np.datetime64(text, "ns").astype(np.int64))


def ends(bars):
    return int(bars.timestamp[0]), int(bars.timestamp[-1])


def test_futures_with_session_breaks():
    bars = read_bars(real(MARKETS[0]))
    assert len(bars) == 29_996 and bars.interval_ns == MINUTE
    assert ends(bars) == (ns("2024-01-01T23:01"), ns("2024-01-31T23:59"))
    assert bars.bars_per_year == pytest.approx(252 * 23 * 60, rel=0.02)
    assert bars.calendar.sessions == 22 and bars.calendar.breaks == 22
    assert max(gap.missing for gap in bars.gaps) < 60  # session breaks are none
    assert len(bars.notices) == 1 and "gaps" in bars.notices[0]


def test_currency_without_volume():
    bars = read_bars(real(MARKETS[1]))
    assert len(bars) == 28_761 and bars.volume is None
    assert bars.bars_per_year == pytest.approx(252 * 1440, rel=0.01)
    assert max(gap.missing for gap in bars.gaps) == 1
    assert any("no volume" in text for text in bars.notices)


def test_perpetual_around_the_clock():
    bars = read_bars(real(MARKETS[2]))
    assert len(bars) == 45_031 and bars.bars_per_year == 525_600
    assert "365 days" in bars.calendar.rule
    assert bars.notices == () and bars.gaps == ()


def test_daily_index_month_first():
    bars = read_bars(real(MARKETS[3]))
    assert len(bars) == 5_031 and bars.interval_ns == DAY
    assert ends(bars) == (ns("1999-01-04"), ns("2018-12-31"))
    assert bars.bars_per_year == 252
    assert any("month first (decided by '1/13/1999' in line 9" in text for _, text in bars.read_as)
    assert [gap.start_ns for gap in bars.gaps] == [ns("2001-09-10")]
    with pytest.raises(DataError, match="line 9 .*data.day_first"):
        read_bars(real(MARKETS[3]), DataConfig(day_first=True))
    assert read_bars(real(MARKETS[3]), DataConfig(adjusted=True)).digest() == bars.digest()  # an index has no dividends


@pytest.mark.parametrize("name", MARKETS)
def test_the_same_bars_from_parquet_and_feather(tmp_path, name):
    bars = read_bars(real(name))
    columns = {"open": bars.open, "high": bars.high, "low": bars.low, "close": bars.close}
    table = pa.table({"timestamp": pa.array(bars.timestamp, pa.timestamp("ns", "UTC")), **columns})
    if bars.volume is not None:
        table = table.append_column("volume", pa.array(bars.volume))
    pa.parquet.write_table(table, tmp_path / "bars.parquet")
    pa.feather.write_feather(table, tmp_path / "bars.feather", compression="zstd")
    for copy in (read_bars(tmp_path / "bars.parquet"), read_bars(tmp_path / "bars.feather")):
        assert copy.digest() == bars.digest()
        assert (copy.interval_ns, copy.bars_per_year, copy.gaps) == (bars.interval_ns, bars.bars_per_year, bars.gaps)


@pytest.mark.parametrize("name", ["dbn_ohlcv-1m.dbn", "dbn_ohlcv-1m.v1.dbn.zst", "dbn_ohlcv-1m.v3.dbn.zst", "dbn_ohlcv-1h.v2.dbn.zst"])
def test_databento_versions(name):
    bars = read_bars(real(name))
    assert len(bars) == 2 and bars.notices == ()
    assert bars.timestamp[0] == ns("2020-12-28T13:00")
    assert bars.open[0] == 372_025.0
    assert bars.volume.tolist() == ([353, 152] if "1m" in name else [9385, 112698])
    assert bars.interval_ns == (MINUTE if "1m" in name else 60 * MINUTE)
    assert math.isnan(bars.bars_per_year)
    assert ("symbol", "ESH1 (id 5482)") in bars.read_as


def test_databento_file_without_records():
    with pytest.raises(DataError, match="no records: 0 bars found"):
        read_bars(real("dbn_ohlcv-1d.v3.dbn.zst"))
