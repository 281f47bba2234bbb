"""Reading delimited text: headers, stamps, numbers, and the line that a message names."""

import gzip

import numpy as np
import pytest
import zstandard

from numba_rl.config import DataConfig
from numba_rl.data.bars import read_bars
from numba_rl.errors import ConfigError, DataError

HEADER = "timestamp,open,high,low,close,volume\n"
BAR = "10,11,9,10.5,5"
PLAIN = HEADER + f"2026-02-02 10:00,{BAR}\n2026-02-02 10:01,{BAR}\n"


@pytest.fixture
def read(tmp_path):
    def run(text, name="bars.csv", **settings):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_bars(path, DataConfig(**settings))

    return run


def stamps(*cells, header=HEADER):
    return header + "".join(f"{cell},{BAR}\n" for cell in cells)


def times(bars):
    return [str(t)[:19] for t in bars.timestamp.astype("datetime64[ns]")]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2026-02-02 10:00:00", "2026-02-02 10:15:00"),
        ("2026-02-02T10:00:00.000000", "2026-02-02T10:15:00.000000"),
        ("2026-02-02T10:00:00Z", "2026-02-02 10:15:00Z"),
        ("2026-02-02T12:00:00+02:00", "2026-02-02T05:15:00-0500"),
        ("2026-02-02 10:00:00+00", "2026-02-02 10:15:00+00"),
        ("2026-02-02 10:00 UTC", "2026-02-02 10:15 UTC"),
        ("2026/02/02 10:00", "2026/02/02 10:15"),
        ("2026.02.02 10:00:00", "2026.02.02 10:15:00"),
        ("20260202 100000", "20260202 101500"),
        ("20260202100000", "20260202101500"),
        ("202602021000", "202602021015"),
        (" 2026-02-02 10:00:00 ", "2026-02-02 10:15"),
        ('"Feb 2, 2026 10:00"', '"February 2, 2026 10:15"'),
        ("2-Feb-2026 10:00:00 AM", "2-Feb-2026 10:15:00 AM"),
        ("1770026400", "1770027300"),
        ("1770026400.0", "1770027300.0"),
        ("1770026400000", "1770027300000"),
        ("1770026400000000", "1770027300000000"),
        ("1770026400000000000", "1770027300000000000"),
    ],
)
def test_stamps_in_any_writing(read, first, second):
    assert times(read(stamps(first, second))) == ["2026-02-02T10:00:00", "2026-02-02T10:15:00"]


def test_a_spreadsheet_that_drops_midnight(read):
    bars = read(stamps("2026-02-01 23:00:00", "2026-02-02", "2026-02-02 01:00:00.5"))
    assert times(bars) == ["2026-02-01T23:00:00", "2026-02-02T00:00:00", "2026-02-02T01:00:00"]
    assert bars.timestamp[2] % 1_000_000_000 == 500_000_000


@pytest.mark.parametrize(
    ("cells", "line", "says"),
    [
        (("0", "1"), 2, "epoch"),
        (("44197.5", "44198.5"), 2, "epoch"),
        (("1770026400", "1770027300000"), 3, "use one unit"),
        (("2026-02-28", "2026-02-30"), 3, "'2026-02-30'"),
        (("hello", "2026-02-02"), 2, "'hello'"),
        (("02/13/26", "02/14/26"), 2, "four digits"),
        (("0226-02-02", "0226-02-03"), 2, "1900"),
        (("2026-02-02T10:00:00Z", "2026-02-02T10:15:00"), 3, "no zone"),
        (("2026-02-02T10:00:00", "2026-02-02T10:15:00Z"), 3, "as the first one"),
        (("2026-02-02 10:00 EST", "2026-02-02 10:15 EST"), 2, "cannot be read"),
        (("2026-02-02", ""), 3, "no stamp"),
    ],
)
def test_stamps_that_are_refused(read, cells, line, says):
    with pytest.raises(DataError, match=f"line {line} .*{says}"):
        read(stamps(*cells))


class TestDayAndMonth:
    def test_decided_by_a_later_row(self, read):
        assert times(read(stamps("02/03/2026", "13/03/2026")))[0] == "2026-03-02T00:00:00"
        assert times(read(stamps("02/03/2026 16:00", "02/13/2026 16:00")))[0] == "2026-02-03T16:00:00"
        assert times(read(stamps("2-3-2026", "13-3-2026")))[0] == "2026-03-02T00:00:00"

    def test_undecidable(self, read):
        with pytest.raises(DataError, match=r"line 2 .*data\.day_first"):
            read(stamps("02/03/2026", "02/04/2026"))
        assert times(read(stamps("02/03/2026", "02/04/2026"), day_first=True))[0] == "2026-03-02T00:00:00"
        assert times(read(stamps("02/03/2026", "02/04/2026"), day_first=False))[0] == "2026-02-03T00:00:00"

    def test_both_orders_in_one_file(self, read):
        with pytest.raises(DataError, match="line 2 .*month first.*line 3 .*day first"):
            read(stamps("02/13/2026", "13/02/2026"))


class TestTimezone:
    def test_wall_clock(self, read):
        bars = read(stamps("2026-02-02 09:30", "2026-07-02 09:30"), timezone="America/New_York")
        assert times(bars) == ["2026-02-02T14:30:00", "2026-07-02T13:30:00"]

    def test_clock_change(self, read):
        with pytest.raises(DataError, match=r"line 3 .*01:30:00 occurs twice in America/New_York"):
            read(stamps("2026-11-01 00:30", "2026-11-01 01:30"), timezone="America/New_York")
        with pytest.raises(DataError, match=r"line 3 .*02:30:00 occurs never"):
            read(stamps("2026-03-08 01:30", "2026-03-08 02:30"), timezone="America/New_York")

    def test_dates_and_stamps_with_a_zone_are_left(self, read):
        assert times(read(stamps("2026-03-08", "2026-03-09"), timezone="America/New_York"))[0] == "2026-03-08T00:00:00"
        assert times(read(stamps("2026-03-08T10:00:00Z"), timezone="America/New_York"))[0] == "2026-03-08T10:00:00"

    def test_unknown(self, read):
        with pytest.raises(ConfigError, match=r"data\.timezone"):
            read(PLAIN, timezone="Mars/Olympus")


class TestColumns:
    def test_names_of_vendors(self, read):
        mt5 = "<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<TICKVOL>\t<SPREAD>\n2026.02.02\t10:00:00\t10\t11\t9\t10.5\t5\t2\n"
        binance = f"open_time,open,high,low,close,volume,close_time\n1770026400000,{BAR},1770026459999\n"
        exchange = (
            f"https://example.org\nunix,date,symbol,open,high,low,close,Volume BTC,Volume USD\n1770026400,2026-02-02 10:00:00,B,{BAR},9\n"
        )
        investing = '"Date","Price","Open","High","Low","Vol.","Change %"\n"02/13/2026","10.5","10","11","9","5","0.1%"\n'
        pandas = f",open,high,low,close,volume\n2026-02-02 10:00:00,{BAR}\n"
        tradestation = f'"Date","Time","Open","High","Low","Close","Volume"\n02/13/2026,0930,{BAR}\n'
        for text in (mt5, binance, exchange, investing, pandas, tradestation):
            bars = read(text)
            assert bars.prices.tolist() == [[10, 11, 9, 10.5]]
            assert bars.volume.tolist() == [5]
        assert times(read(tradestation)) == ["2026-02-13T09:30:00"]
        assert "1 line above the header skipped" in read(exchange).notices

    @pytest.mark.parametrize(
        ("header", "says"),
        [
            ("timestamp,open,high,close,volume,x\n", "line 1: no column for low among"),
            ("timestamp,bid_open,bid_high,bid_low,bid_close,v\n", "no column for open, high, low, close"),
            ("x,open,high,low,close,volume\n", "no column for time"),
            ("timestamp,open,high,low,close,Close\n", "two columns are named 'close'"),
            ("", "no column for time, open, high, low, close among '2026-02-02'"),
        ],
    )
    def test_unknown_columns(self, read, header, says):
        with pytest.raises(DataError, match=says):
            read(stamps("2026-02-02", header=header))

    def test_symbol_column(self, read):
        text = "date,symbol,open,high,low,close\n2026-02-02,A,1,2,1,2\n2026-02-02,B,1,2,1,x\n"
        with pytest.raises(DataError, match=r"2 instruments \(A, B\).*data\.symbol"):
            read(text)
        assert len(read(text, symbol="a")) == 1  # the bad cell belongs to the other one
        with pytest.raises(DataError, match="line 3 .*'x'"):
            read(text, symbol="B")
        with pytest.raises(DataError, match="names no instrument"):
            read(PLAIN, symbol="A")

    def test_no_rows_under_a_symbol_column(self, read):
        for text in ("date,symbol,open,high,low,close\n", "date,symbol,open,high,low,close\n,,,,,\n\n"):
            with pytest.raises(DataError, match="no rows: 0 bars found"):
                read(text)

    def test_a_row_that_ends_with_a_delimiter(self, read):
        assert len(read(HEADER + f"2026-02-02 10:00,{BAR},\n2026-02-02 10:01,{BAR},\n")) == 2


class TestNumbers:
    def prices(self, *cells, names="Date;Open;High;Low;Close"):
        return f"{names}\n" + "".join(f"2026-02-{day:02d};{';'.join([cell] * 4)}\n" for day, cell in enumerate(cells, start=2))

    @pytest.mark.parametrize(
        ("cells", "values"),
        [
            (("1,5", "12.400"), [1.5, 12400]),
            (("2.871,50", "3"), [2871.5, 3]),
            (("1.234.567", "1.234"), [1234567, 1234]),
            (("1'234.5", "1 200"), [1234.5, 1200]),
            (("1,234,567", "1,234"), [1234567, 1234]),
            (("12,400", "2.5"), [12400, 2.5]),
            (("15.05K", "1.2M"), [15050, 1.2e6]),
            (("$31.40", "1e2"), [31.4, 100]),
            (("12.400", "12.401"), [12.4, 12.401]),
            (("0,123", "0,124"), [0.123, 0.124]),
        ],
    )
    def test_one_decimal_sign_a_file(self, read, cells, values):
        assert read(self.prices(*cells)).close.tolist() == values

    def test_undecidable(self, read):
        with pytest.raises(DataError, match=r"line 2 .*column Open: '1,234'.*data\.decimal_comma"):
            read(self.prices("1,234", "1,235"))
        assert read(self.prices("1,234"), decimal_comma=True).close[0] == 1.234
        assert read(self.prices("1,234"), decimal_comma=False).close[0] == 1234
        german = "Datum;Erster;Hoch;Tief;Schlusskurs"
        with pytest.raises(DataError, match=r"'2\.871'.*data\.decimal_comma"):
            read(self.prices("2.871", "2.872", names=german))
        assert read(self.prices("2.8715", "2.872", names=german)).close.tolist() == [2.8715, 2.872]

    def test_contradictions(self, read):
        with pytest.raises(DataError, match=r"line 2 .*'1,5' has a decimal comma, but '1\.5' .*line 3"):
            read(self.prices("1,5", "1.5"))
        with pytest.raises(DataError, match="line 2 .*'1,5' is no number with a decimal point"):
            read(self.prices("1,5"), decimal_comma=False)
        with pytest.raises(DataError, match=r"line 2 .*'1\.5' is no number with a decimal comma"):
            read(self.prices("1.5"), decimal_comma=True)

    @pytest.mark.parametrize("cell", ["x", "1.2.3,4,5", "12,34.5", "--5", "1_0", "K"])
    def test_cells_that_are_no_number(self, read, cell):
        with pytest.raises(DataError, match="line 3 .*column Open"):
            read(self.prices("2.5", cell))

    @pytest.mark.parametrize("cell", ["", "NaN", "null", "None", "N/A", "-", " "])
    def test_cells_that_are_missing(self, read, cell):
        assert read(self.prices("2.5", cell)).close.tolist() == [2.5]


class TestLines:
    BAD = "2026-02-02 10:05,1,0.5,2,1,3\n"

    def test_blank_lines_count(self, read):
        with pytest.raises(DataError, match="line 6 "):
            read(HEADER + f"\n2026-02-02 10:00,{BAR}\n,,,,,\n\n" + self.BAD)
        bars = read(HEADER + f"\n2026-02-02 10:00,{BAR}\n,,,,,\n\n")
        assert len(bars) == 1
        assert bars.notices == ("3 empty lines skipped",)

    def test_quoted_line_breaks_count(self, read):
        text = 'timestamp,open,high,low,close,volume,note\n2026-02-02 10:00,10,11,9,10.5,5,"a\n\nb"\n' + self.BAD
        with pytest.raises(DataError, match=r"line 5 \(row 2\)"):
            read(text)

    def test_preamble_and_three_header_lines_count(self, read):
        with pytest.raises(DataError, match=r"line 4 \(row 2\)"):
            read("by a vendor\n" + HEADER + f"2026-02-02 10:00,{BAR}\n" + self.BAD)
        header = "Price,Close,High,Low,Open,Volume\nTicker,A,A,A,A,A\nDate,,,,,\n"
        with pytest.raises(DataError, match=r"line 4 \(row 1\).*high 1 is below low 2"):
            read(header + "2026-02-02,1,1,2,1,5\n")

    def test_after_sorting_and_dropping(self, read):
        with pytest.raises(DataError, match="line 4 .*line 2 "):
            read(HEADER + f"2026-02-02 10:01,{BAR}\n2026-02-02 10:00,,,,,\n2026-02-02 10:01,10,11,9,10,5\n")

    def test_too_many_cells(self, read):
        with pytest.raises(DataError, match="line 3 .*7 cells, but the header names 6"):
            read(HEADER + f"2026-02-02 10:00,{BAR}\n2026-02-02 10:01,{BAR},9\n")
        with pytest.raises(DataError, match="quote"):
            read(HEADER + f'2026-02-02 10:00,{BAR}\n"2026-02-02 10:01,{BAR}\n')


class TestPacking:
    def test_by_content(self, read):
        expected = read(PLAIN).digest()
        data = PLAIN.encode()
        half = len(data) // 2
        frames = zstandard.compress(data[:half]) + zstandard.compress(data[half:])
        for packed in (gzip.compress(data), gzip.compress(data[:half]) + gzip.compress(data[half:]), zstandard.compress(data), frames):
            assert read(packed, name="bars.txt").digest() == expected
        assert read(PLAIN, name="plain.csv.gz").digest() == expected

    def test_encodings(self, read):
        expected = read(PLAIN).digest()
        for packed in (PLAIN.encode("utf-16"), PLAIN.encode("utf-16-be"), PLAIN.encode("utf-8-sig"), PLAIN.replace("\n", "\r").encode()):
            assert read(packed).digest() == expected
        bars = read("Datum;Eröffnung;Hoch;Tief;Schluss\n13.02.2026;1,5;2,5;1,0;2\n".encode("cp1252"))
        assert bars.open.tolist() == [1.5]
        assert any("Windows-1252" in text for text in bars.notices)

    @pytest.mark.parametrize(
        ("data", "says"),
        [
            (b"PK\x03\x04....", "ZIP"),
            (b"<!doctype html>\n", "web page"),
            (b'{"a": 1}', "JSON"),
            (bytes(range(256)), "neither text"),
            (gzip.compress(PLAIN.encode())[:-6], "cut short"),
            (zstandard.compress(PLAIN.encode())[:-6], "cut short"),
            (b"PAR1" + bytes(40), "not readable as Parquet"),
            (b"\n\n", "empty"),
            (b"\xef\xbb\xbf\n", "empty"),
        ],
        ids=range(9),  # packed bytes hold the time, and so would the tests' names
    )
    def test_what_is_no_market_file(self, read, data, says):
        with pytest.raises(DataError, match=says):
            read(data)


def test_bars_are_contiguous_float64(read):
    bars = read(PLAIN)
    assert bars.prices.flags.c_contiguous and bars.prices.dtype == np.float64 and bars.prices.shape == (2, 4)
    assert bars.timestamp.dtype == np.int64
    assert bars.source == "bars.csv"
