"""E-01 to E-15: what market files look like in the wild, and what reading them must and must not do."""

import math
from pathlib import Path

import numpy as np
import pytest

from numba_rl.config import DataConfig
from numba_rl.data.bars import read_bars, require_bars
from numba_rl.errors import DataError

HERE = Path(__file__).parent
DAY, MINUTE, SECOND = 86_400_000_000_000, 60_000_000_000, 1_000_000_000


def read(name, **settings):
    return read_bars(HERE / name, DataConfig(**settings))


def refusal(name, **settings):
    with pytest.raises(DataError) as error:
        read(name, **settings)
    text = str(error.value)
    assert Path(name).name in text
    assert "\n" not in text
    return text


def ns(text):
    return int(np.datetime64(text, "ns").astype(np.int64))


def notice(bars, part):
    found = [text for text in bars.notices if part in text]
    assert len(found) == 1, bars.notices
    return found[0]


def same_as_ascending(bars):
    """The 8 bars of E-06/ascending.csv."""
    expected = read("E-06/ascending.csv")
    assert np.array_equal(bars.timestamp, expected.timestamp)
    assert np.array_equal(bars.prices, expected.prices)
    return np.array_equal(bars.volume, expected.volume)


# E-01


@pytest.mark.parametrize("name", ["multi_header.csv", "old_style_adj.csv", "lower_case_extra.csv"])
def test_E01_columns_by_name(name):
    bars = read(f"E-01/{name}")
    assert len(bars) == 6
    assert (bars.timestamp[0], bars.timestamp[-1]) == (ns("2026-03-02"), ns("2026-03-09"))
    assert bars.prices[2].tolist() == [30.95, 31.20, 30.31, 30.38]
    assert bars.volume[2] == 143200


def test_E01_adjusted_scales_all_four():
    bars = read("E-01/old_style_adj.csv", adjusted=True)
    assert bars.close[2] == 29.7724
    assert bars.prices[2] == pytest.approx(np.array([30.95, 31.20, 30.31, 30.38]) * 29.7724 / 30.38, rel=1e-12)
    assert "adjusted close" in refusal("E-01/lower_case_extra.csv", adjusted=True)


def test_E01_two_tickers():
    text = refusal("E-01/two_tickers.csv")
    assert "ZZQX" in text and "ZZQY" in text and "data.symbol" in text
    assert read("E-01/two_tickers.csv", symbol="ZZQX").digest() == read("E-01/multi_header.csv").digest()
    assert "ZZQX, ZZQY" in refusal("E-01/two_tickers.csv", symbol="AAPL")


# E-03


def test_E03_undefined_price_is_a_missing_bar():
    bars = read("E-03/undef.dbn")
    assert len(bars) == 4
    assert notice(bars, "without a price") == "1 row without a price dropped as missing bar (record 3)"
    assert bars.timestamp[0] == ns("2026-04-07T13:00")
    assert bars.prices[0].tolist() == [72.10, 72.55, 71.90, 72.40]
    assert bars.volume[0] == 510
    assert bars.high[-1] == 72.900000001
    assert bars.prices.max() < 100
    assert bars.interval_ns == 3600 * SECOND


def test_E03_mixed_intervals():
    bars = read("E-03/mixed_intervals.dbn")
    assert len(bars) == 4 and bars.interval_ns == 3600 * SECOND
    assert "3 records" in notice(bars, "another interval")
    assert len(read("E-03/mixed_intervals.dbn", interval_seconds=60)) == 3


def test_E03_two_instruments():
    text = refusal("E-03/two_instruments.dbn")
    assert "7002" in text and "data.symbol" in text
    for symbol in ("7001", "ZZQX"):
        assert read("E-03/two_instruments.dbn", symbol=symbol).close.tolist() == [72.2, 73.2, 74.2]
    assert read("E-03/two_instruments.dbn", symbol="7002").close.tolist() == [15.2, 16.2, 17.2]


def test_E03_no_records():
    assert "no records: 0 bars found" in refusal("E-03/empty.dbn")


def test_E03_negative_prices_keep_their_sign():
    assert read("E-03/negative.dbn", price_mode="arithmetic").open.tolist() == [1.2, -0.4, -3.75]
    assert "record 2" in refusal("E-03/negative.dbn")


# E-06


@pytest.mark.parametrize("name", ["descending.csv", "shuffled.csv"])
def test_E06_sorted_with_one_notice(name):
    bars = read(f"E-06/{name}")
    assert same_as_ascending(bars)
    assert len(bars.notices) == 1 and "8 rows sorted" in bars.notices[0]
    assert bars.close[-1] / bars.close[0] - 1 == pytest.approx(0.09950249, abs=5e-9)


def test_E06_ascending_needs_no_repair():
    assert read("E-06/ascending.csv").notices == ()


# E-07


def test_E07_duplicates():
    bars = read("E-07/exact_dup.csv")
    assert len(bars) == 4
    assert notice(bars, "duplicate") == "1 duplicate row removed (line 4)"
    text = refusal("E-07/conflict_dup.csv")
    assert "line 3" in text and "line 4" in text and "2026-02-02 10:15" in text


def test_E07_live_last_row():
    bars = read("E-07/live_last_row.csv")
    assert len(bars) == 3 and bars.close[-1] == 10.3
    assert "line 5" in notice(bars, "unfinished") and "14:37:21" in notice(bars, "unfinished")
    assert bars.interval_ns == DAY


# E-08


def test_E08_rows_without_prices():
    bars = read("E-08/nan_rows.csv")
    assert len(bars) == 5
    assert notice(bars, "without a price") == "3 rows without a price dropped as missing bars (lines 3, 5, 7)"
    assert bars.close.tolist() == [10.05, 10.15, 10.65, 10.95, 11.05]
    assert bars.volume[2] == 0
    assert np.isfinite(bars.prices).all()
    assert bars.interval_ns == 15 * MINUTE


def test_E08_leading_rows_are_cut_not_filled():
    bars = read("E-08/leading_nan.csv")
    assert len(bars) == 6 and bars.close[0] == 10.15
    assert "lines 2, 3" in notice(bars, "without a price")


def test_E08_no_volume():
    bars = read("E-08/no_volume.csv")
    assert len(bars) == 8 and bars.volume is None
    assert len(bars.notices) == 1 and "no volume" in bars.notices[0]


# E-09


@pytest.mark.parametrize("name", ["european.csv", "european_en_names.csv", "us_thousands.csv"])
def test_E09_numbers(name):
    bars = read(f"E-09/{name}")
    assert bars.close.tolist() == [2873.25, 2886.75, 2877.50]
    assert bars.volume.tolist() == [12400, 15050, 9875]


def test_E09_dates():
    days = [ns("2026-02-02"), ns("2026-02-03"), ns("2026-02-04")]
    for name in ("european.csv", "european_en_names.csv"):
        bars = read(f"E-09/{name}")
        assert bars.timestamp.tolist() == days
        assert "day first" in notice(bars, "convention")
    assert read("E-09/us_thousands.csv").timestamp[0] == ns("2026-02-13")
    assert "line 2" in refusal("E-09/us_thousands.csv", day_first=True)
    assert read("E-09/european.csv", day_first=False).timestamp.tolist() == [ns("2026-02-02"), ns("2026-03-02"), ns("2026-04-02")]


# E-10


def test_E10_prices_through_zero():
    text = refusal("E-10/through_zero.csv")
    assert "row 3" in text and "line 4" in text and "low -0.4" in text and "3 rows" in text
    assert 'data.price_mode = "arithmetic"' in text
    bars = read("E-10/through_zero.csv", price_mode="arithmetic")
    assert bars.close.tolist() == [9.60, 3.10, 0.00, -7.60, 2.20, 6.10]
    assert np.diff(bars.close).sum() == pytest.approx(-3.50)


# E-11


def test_E11_split_is_reported_and_left():
    bars = read("E-11/split.csv")
    assert bars.close.tolist() == [80.0, 80.8, 81.6, 20.5, 20.7, 20.6]
    text = notice(bars, "split")
    assert "4:1" in text and "-74.8775%" in text and "2026-02-05" in text
    assert bars.jumps[0].index == 3


def test_E11_adjusted_close_mends_it(tmp_path):
    lines = (HERE / "E-11/split.csv").read_text().splitlines()
    closes = ["Adj Close", "20.0", "20.2", "20.4", "20.5", "20.7", "20.6"]
    (tmp_path / "split.csv").write_text("\n".join(f"{line},{close}" for line, close in zip(lines, closes, strict=True)))
    bars = read_bars(tmp_path / "split.csv", DataConfig(adjusted=True))
    assert bars.close[:3].tolist() == [20.0, 20.2, 20.4]
    assert bars.prices[:3] == pytest.approx(read("E-11/split.csv").prices[:3] / 4)
    assert bars.jumps == ()


# E-12


@pytest.mark.parametrize(
    "name", ["bom_utf8.csv", "crlf.csv", "gz_without_suffix.csv", "plain.csv.gz", "quoted_bom.csv", "tab.csv", "utf16.csv"]
)
def test_E12_encodings_and_packings(name):
    bars = read(f"E-12/{name}")
    assert same_as_ascending(bars)
    assert bars.notices == ()


# E-13


@pytest.mark.parametrize(
    "name", ["decimal", "nullable_volume", "time_in_index", "ts_ms", "ts_ns_newyork", "ts_us_utc", "uint64_volume_float32"]
)
def test_E13_parquet(name):
    bars = read(f"E-13/{name}.parquet")
    assert len(bars) == 8
    assert (bars.timestamp[0], bars.timestamp[-1]) == (ns("2026-02-02T10:00"), ns("2026-02-02T11:45"))
    assert bars.interval_ns == 900 * SECOND
    assert bars.prices == pytest.approx(read("E-06/ascending.csv").prices, rel=1e-7)
    assert bars.prices.dtype == np.float64


def test_E13_decimals_are_exact_and_missing_volume_is_counted():
    assert same_as_ascending(read("E-13/decimal.parquet"))
    bars = read("E-13/nullable_volume.parquet")
    assert bars.volume[2] == 0
    assert notice(bars, "missing volume") == "1 missing volume taken as 0 (row 3)"


def test_E13_zero_rows():
    assert "no rows: 0 bars found" in refusal("E-13/zero_rows.parquet")


# E-14


@pytest.mark.parametrize(("name", "found"), [("zero_bytes.csv", 0), ("header_only.csv", 0), ("single_row.csv", 1), ("twelve_rows.csv", 12)])
def test_E14_too_short(name, found):
    with pytest.raises(DataError, match=rf"{name}: .*\b{found} bars? found, 13 needed \(warm-up\)"):
        read_bars(HERE / "E-14" / name, needed=13, what="warm-up")


def test_E14_exactly_the_needed_number():
    bars = read_bars(HERE / "E-14/twelve_rows.csv", needed=12)
    require_bars(bars, 12, "warm-up")
    with pytest.raises(DataError, match=r"twelve_rows.csv: 12 bars found, 13 needed \(warm-up\)"):
        require_bars(bars, 13, "warm-up")


def test_E14_missing_path_and_directory(tmp_path):
    for path, why in ((tmp_path / "none.csv", "no such file"), (tmp_path, "directory")):
        with pytest.raises(DataError, match=rf"{path.name}: .*{why}.*: 0 bars found, 5 needed"):
            read_bars(path, needed=5)


# E-15


def test_E15_gap_and_drift():
    bars = read("E-15/gap_and_drift.csv")
    assert len(bars) == 10 and bars.interval_ns == 60 * SECOND
    assert [(gap.start_ns, gap.missing) for gap in bars.gaps] == [(ns("2026-02-02T10:03"), 5)]
    assert "1 gap (5 bars)" in notice(bars, "gap")
    assert notice(bars, "off-grid").startswith("2 off-grid stamps (lines 8, 9)")


def test_E15_overnight_is_a_closure():
    bars = read("E-15/overnight.csv")
    assert bars.interval_ns == 1800 * SECOND
    assert bars.gaps == () and bars.calendar.breaks == 1
    assert bars.open[2] - bars.close[1] == pytest.approx(2.7)
    assert math.isnan(bars.bars_per_year)  # two sessions tell nothing of a year
