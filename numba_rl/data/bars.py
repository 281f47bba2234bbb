"""Market bars: the type that everything else reads, and the one function that reads any file into it.

Bars are float64 columns on int64 nanosecond stamps (UTC, bar open times). ``read_bars`` finds the format by content
(CSV, Parquet, Feather/Arrow, Databento DBN, each plain, gzip or zstd), repairs what can be repaired without inventing
prices, says so in ``Bars.notices``, and refuses the rest with a DataError that names file, row and fix.
"""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from numba_rl.config import DataConfig
from numba_rl.data.calendar import SECOND, Calendar, Gap, infer_calendar, last_is_unfinished, usual_interval
from numba_rl.data.formats import read_table
from numba_rl.data.raw import NoBars, RawTable, count, stamp_text
from numba_rl.data.splits import Jump, find_splits
from numba_rl.data.validate import validate
from numba_rl.errors import DataError

DEFAULTS = DataConfig()


@dataclass(frozen=True)
class Bars:
    """One instrument's bars in order of time; T is their number.

    Read-only by agreement. ``calendar``, ``jumps`` and ``read_as`` are what ``rltrain data inspect`` shows; bars that
    were made rather than read may leave them out.
    """

    timestamp: np.ndarray  # int64 [T], ns since 1970 UTC, bar open time, strictly increasing
    open: np.ndarray  # float64 [T]
    high: np.ndarray  # float64 [T]
    low: np.ndarray  # float64 [T]
    close: np.ndarray  # float64 [T]
    volume: np.ndarray | None  # float64 [T]; None: the file has none
    interval_ns: int  # usual distance of bars; 0: unknown (a single bar)
    bars_per_year: float  # math.nan: could not be inferred and was not set
    source: str  # file name, or such as "synthetic:mean_reverting"
    notices: tuple[str, ...] = ()  # what was repaired or is worth knowing, one line each
    gaps: tuple[Gap, ...] = ()  # bars missing while the market was open
    calendar: Calendar | None = None
    jumps: tuple[Jump, ...] = ()  # possible splits, never applied
    read_as: tuple[tuple[str, str], ...] = ()  # format, columns, time zone: what was taken for what

    def __len__(self) -> int:
        return len(self.timestamp)

    @property
    def prices(self) -> np.ndarray:
        """float64 [T, 4], contiguous: open, high, low, close."""
        return np.stack([self.open, self.high, self.low, self.close], axis=1)

    def digest(self) -> str:
        """SHA-256 (hex) of stamps, prices and volume; equal bars give equal digests whatever file held them."""
        hashed = hashlib.sha256()
        for column in (self.timestamp, self.open, self.high, self.low, self.close, self.volume):
            if column is None:
                hashed.update(b"none")
            else:
                hashed.update(np.ascontiguousarray(column, "<i8" if column.dtype == np.int64 else "<f8").tobytes())
        return hashed.hexdigest()

    def slice(self, start: int, stop: int) -> "Bars":
        """Bars start .. stop - 1 (as views), with the same interval and bars per year."""
        part = slice(start, stop)
        first, last = (self.timestamp[part][0], self.timestamp[part][-1]) if len(self.timestamp[part]) else (1, 0)
        return replace(
            self,
            **{name: getattr(self, name)[part] for name in ("timestamp", "open", "high", "low", "close")},
            volume=None if self.volume is None else self.volume[part],
            gaps=tuple(gap for gap in self.gaps if first <= gap.start_ns and gap.stop_ns <= last),
            jumps=tuple(jump for jump in self.jumps if first < jump.timestamp_ns <= last),
        )


def require_bars(bars: Bars, needed: int, what: str) -> None:
    """Raise DataError unless there are at least ``needed`` bars; ``what`` says what for ("warm-up 200 + ...")."""
    if len(bars) < needed:
        raise too_few(bars.source, len(bars), needed, what)


def too_few(path: str, found: int, needed: int, what: str, reason: str = "", fix: str = "give a longer file") -> DataError:
    """The one message for too little data: file, why, bars found, bars needed and what for, and the fix."""
    why = f"{reason}: " if reason else ""
    return DataError(f"{path}: {why}{count(found, 'bar')} found, {needed:,} needed{f' ({what})' if what else ''}: {fix}")


def read_bars(path: str | Path, config: DataConfig = DEFAULTS, needed: int = 1, what: str = "") -> Bars:
    """Read a market file of any supported format into Bars.

    needed, what: bars that the caller cannot do without, and what for; fewer raise the DataError of ``require_bars``, and
    so do a missing path, a directory and an empty file (0 found). Raises DataError for all that cannot be trusted (see
    ``validate`` and the readers). Cost: about 1.5 s for a million CSV rows on two cores.
    """
    needed = max(needed, 1)
    try:
        table = read_table(Path(path), config)
    except NoBars as error:
        raise too_few(str(path), 0, needed, what, error.reason, error.fix) from None
    interval = _interval(table, config)
    validate(table, config)
    if len(table) == 0:
        raise too_few(str(path), 0, needed, what, "no row has all prices")
    if last_is_unfinished(table.timestamp, interval):
        stamp, row = stamp_text(table.timestamp[-1]), table.source.at(int(table.rows[-1]))
        table.notices.append(f"{row}: the last bar ({stamp} UTC) is off the grid of the others: dropped as unfinished")
        table.keep(np.arange(len(table) - 1))
    calendar = infer_calendar(table.timestamp, interval, config.bars_per_year)
    jumps = find_splits(table.timestamp, table.prices["open"], table.prices["close"])
    bars = Bars(
        timestamp=table.timestamp,
        **table.prices,
        volume=table.volume,
        interval_ns=calendar.interval_ns,
        bars_per_year=calendar.bars_per_year,
        source=Path(path).name,
        notices=(*table.notices, *_calendar_notices(table, calendar), *_jump_notices(jumps)),
        gaps=calendar.gaps,
        calendar=calendar,
        jumps=jumps,
        read_as=tuple(table.read_as),
    )
    if len(bars) < needed:
        raise too_few(str(path), len(bars), needed, what)
    return bars


def _interval(table: RawTable, config: DataConfig) -> int:
    """Bar interval in ns: as the file or the settings say, else the usual one of all stamps, those of missing bars too.

    Raises DataError where data.interval_seconds contradicts the file.
    """
    usual = table.interval_ns or usual_interval(table.timestamp)
    if config.interval_seconds is None:
        return usual
    interval = round(config.interval_seconds * SECOND)
    if (table.interval_ns or interval) != interval or 0 < usual < 0.999 * interval:
        raise table.source.error(
            None, f"bars are {usual / SECOND:g} s apart, not data.interval_seconds = {config.interval_seconds:g}: leave it out"
        )
    return interval


def _calendar_notices(table: RawTable, calendar: Calendar) -> list[str]:
    """Gaps and off-grid stamps, one line each."""
    notices = []
    if calendar.gaps:
        largest = max(calendar.gaps, key=lambda gap: gap.missing)
        missing = sum(gap.missing for gap in calendar.gaps)
        notices.append(
            f"{count(len(calendar.gaps), 'gap')} ({count(missing, 'bar')}) while the market was open, the largest "
            f"{count(largest.missing, 'bar')} after {stamp_text(largest.start_ns)} UTC; not filled"
        )
    if not calendar.regular:
        notices.append("the stamps keep no interval (tick or volume bars?): gaps are not looked for")
    elif len(calendar.off_grid):
        rows = table.source.listed(np.sort(table.rows[calendar.off_grid]))
        notices.append(f"{count(len(calendar.off_grid), 'off-grid stamp')} ({rows}); left as they are")
    return notices


def _jump_notices(jumps: tuple[Jump, ...]) -> list[str]:
    return [
        f"possible {jump.ratio} split on {stamp_text(jump.timestamp_ns)}: close {jump.before:.10g} to {jump.after:.10g} "
        f"({jump.change:+.4%}); prices left as they are"
        for jump in jumps
    ]
