"""What is repaired and counted, what is refused, and the Bars type itself."""

import numpy as np
import pytest

from numba_rl.config import DataConfig
from numba_rl.data.bars import read_bars
from numba_rl.data.raw import stamp_text
from numba_rl.errors import DataError

HEADER = "timestamp,open,high,low,close,volume\n"


@pytest.fixture
def read(tmp_path):
    def run(rows, header=HEADER, **settings):
        """Rows without their stamp, a minute apart from 10:00."""
        path = tmp_path / "bars.csv"
        path.write_text(header + "".join(f"2026-02-02 10:{minute:02d},{row}\n" for minute, row in enumerate(rows)))
        return read_bars(path, DataConfig(**settings))

    return run


GOOD = "10,11,9,10.5,5"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("10,8,9,8.5,5", "high 8 is below low 9"),
        ("12,11,9,10,5", "open 12 is outside low 9 .. high 11"),
        ("10,11,9,8.5,5", "close 8.5 is outside low 9 .. high 11"),
        ("10,inf,9,10,5", "high is inf"),
        ("10,11,-inf,10,5", "low is -inf"),
        ("10,11,9,10,inf", "volume is inf"),
        ("10,11,9,10,-5", "volume -5 is negative"),
        ("10,11,0,10,5", r"low 0 on 2026-02-02 10:01 is not above zero \(1 row of 3"),
    ],
)
def test_refused_with_the_line(read, row, says):
    with pytest.raises(DataError, match=rf"bars.csv: line 3 \(row 2\): {says}"):
        read([GOOD, row, GOOD])


def test_rounding_widens_the_range(read):
    bars = read([GOOD, "10,10.5,9,10.500001,5", "8.999999,11,9,10,5"])
    assert (bars.high >= bars.close).all() and (bars.low <= bars.open).all()
    assert bars.notices == ("high or low of 2 rows widened to hold open and close (rounding)",)
    with pytest.raises(DataError, match="outside"):
        read([GOOD, "10,10.5,9,10.5001,5"])


class TestMissing:
    LACKS = "10,11,,10.5,5"

    def test_share(self, read):
        with pytest.raises(DataError, match=r"line 3 .*3 rows of 40 \(7.5%, allowed are 5.0%\).*data.max_missing"):
            read([GOOD, *[self.LACKS] * 3, *[GOOD] * 36])
        assert len(read([GOOD, *[self.LACKS] * 2, *[GOOD] * 37])) == 38
        assert len(read([GOOD, *[self.LACKS] * 3, *[GOOD] * 36], max_missing=0.1)) == 37

    def test_few_rows_have_no_share(self, read):
        with pytest.raises(DataError, match="2 rows of 20"):
            read([GOOD, *[self.LACKS] * 2, *[GOOD] * 17])
        assert len(read([GOOD, *[self.LACKS] * 2, *[GOOD] * 16])) == 17
        assert len(read([GOOD, *[self.LACKS] * 3])) == 1
        with pytest.raises(DataError, match="max_missing"):
            read([GOOD, *[self.LACKS] * 4])
        with pytest.raises(DataError, match="max_missing"):
            read([GOOD, self.LACKS], max_missing=0.0)

    def test_none_left(self, read):
        with pytest.raises(DataError, match="no row has all prices: 0 bars found"):
            read([",,,,"] * 3)

    def test_a_row_cut_off(self, read):
        assert read([GOOD, GOOD, "10,11"]).notices == ("1 row without a price dropped as missing bar (line 4)",)


class TestVolume:
    def test_missing_cells_are_zero(self, read):
        bars = read([GOOD, "10,11,9,10.5,", "10,11,9,10.5,0"])
        assert bars.volume.tolist() == [5, 0, 0]
        assert bars.notices == ("1 missing volume taken as 0 (line 3)",)

    def test_empty_column_is_no_volume(self, read):
        assert read(["10,11,9,10.5,"] * 3).volume is None


class TestDuplicates:
    def rows(self, *rows):
        return HEADER + "".join(f"2026-02-02 10:{minute:02d},{row}\n" for minute, row in rows)

    def test_exact(self, read):
        bars = read([], header=self.rows((1, GOOD), (0, GOOD), (1, GOOD), (1, GOOD)))
        assert len(bars) == 2
        assert bars.notices == ("4 rows sorted by time (1 step back in time)", "2 duplicate rows removed (lines 4, 5)")

    @pytest.mark.parametrize("other", ["10,11,9,10.4,5", "10,11,9,10.5,6"])
    def test_conflicting_in_price_or_volume(self, read, other):
        with pytest.raises(DataError, match=r"line 5 \(row 4\): differs from line 2 \(row 1\).*2026-02-02 10:01 UTC"):
            read([], header=self.rows((1, GOOD), (0, GOOD), (2, GOOD), (1, other)))

    def test_a_double_that_lacks_its_price_is_a_missing_bar(self, read):
        assert len(read([], header=self.rows((0, GOOD), (0, "10,11,9,,5"), (1, GOOD)))) == 2


class TestAdjusted:
    HEADER = "timestamp,open,high,low,close,volume,adj close\n"

    def test_is_reported_where_it_is_not_used(self, read):
        assert "differs in 1 row and is not used" in read([f"{GOOD},10.5", f"{GOOD},5.25"], header=self.HEADER).notices[0]
        assert read([f"{GOOD},10.5"] * 2, header=self.HEADER).notices == ()

    def test_scales_and_keeps_volume(self, read):
        bars = read([f"{GOOD},5.25", f"{GOOD},10.5"], header=self.HEADER, adjusted=True)
        assert bars.prices.tolist() == [[5, 5.5, 4.5, 5.25], [10, 11, 9, 10.5]]
        assert bars.volume.tolist() == [5, 5]

    def test_missing_adjusted_close_is_a_missing_bar(self, read):
        assert len(read([f"{GOOD},", f"{GOOD},10.5"], header=self.HEADER, adjusted=True)) == 1
        with pytest.raises(DataError, match="line 2 .*close of 0"):
            read(["0,1,0,0,5,0"], header=self.HEADER, adjusted=True)


class TestInterval:
    def test_contradicted_by_the_stamps(self, read):
        with pytest.raises(DataError, match=r"60 s apart, not data\.interval_seconds = 3600"):
            read([GOOD] * 3, interval_seconds=3600.0)

    def test_shorter_than_the_stamps_leaves_gaps(self, read):
        bars = read([GOOD] * 3, interval_seconds=30.0)
        assert bars.interval_ns == 30_000_000_000
        assert [gap.missing for gap in bars.gaps] == [1, 1]

    def test_bars_per_year_as_set(self, read):
        bars = read([GOOD] * 3, bars_per_year=1000.0)
        assert bars.bars_per_year == 1000 and bars.calendar.rule == "set by data.bars_per_year"


class TestSplits:
    def closes(self, *closes):
        return [f"{c},{c * 1.001},{c * 0.999},{c},5" for c in closes]

    @pytest.mark.parametrize(("after", "ratio"), [(50.2, "2:1"), (66.6, "3:2"), (1010.0, "1:10")])
    def test_found(self, read, after, ratio):
        bars = read(self.closes(100, 100.3, 99.9, 100, after, after * 1.002, after))
        assert [jump.ratio for jump in bars.jumps] == [ratio]
        assert bars.jumps[0].timestamp_ns == bars.timestamp[4]
        assert bars.close[4] == after

    @pytest.mark.parametrize(
        "closes",
        [
            (100, 100.3, 99.9, 100, 50, 99, 100, 101, 100, 99),  # comes back
            (100, 100.3, 99.9, 100, 56, 56, 56, 56),  # no whole ratio
            (100, 60, 110, 55, 104, 52, 100, 49, 101),  # moves like that all the time
        ],
    )
    def test_not_found(self, read, closes):
        assert read(self.closes(*closes)).jumps == ()


class TestBars:
    def test_slice(self, read):
        bars = read([GOOD] * 5 + ["20,21,19,20,7"])
        part = bars.slice(1, 4)
        assert len(part) == 3 and part.timestamp.tolist() == bars.timestamp[1:4].tolist()
        assert part.interval_ns == bars.interval_ns
        assert bars.slice(0, len(bars)).digest() == bars.digest()
        assert part.digest() != bars.digest()

    def test_slice_keeps_the_gaps_inside(self, tmp_path):
        path = tmp_path / "bars.csv"
        path.write_text(HEADER + "".join(f"2026-02-02 10:{minute:02d},{GOOD}\n" for minute in (0, 1, 2, 5, 6, 7, 8, 10, 11)))
        bars = read_bars(path)
        assert [gap.missing for gap in bars.gaps] == [2, 1]
        assert [gap.missing for gap in bars.slice(3, 9).gaps] == [1]
        assert bars.slice(3, 3).gaps == ()

    def test_digest_covers_every_column(self, read):
        base = read([GOOD] * 3).digest()
        for changed in ("10.1,11,9,10.5,5", "10,11.1,9,10.5,5", "10,11,8.9,10.5,5", "10,11,9,10.4,5", "10,11,9,10.5,6"):
            assert read([GOOD, changed, GOOD]).digest() != base
        assert read([GOOD[:-2]] * 3, header="timestamp,open,high,low,close\n").digest() != base


def test_stamps_as_text():
    assert stamp_text(np.datetime64("2026-02-02", "ns").astype(np.int64)) == "2026-02-02"
    assert stamp_text(np.datetime64("2026-02-02T10:15", "ns").astype(np.int64)) == "2026-02-02 10:15"
    assert stamp_text(np.datetime64("2026-02-02T10:15:07.250", "ns").astype(np.int64)) == "2026-02-02 10:15:07.25"
