"""Time columns of any kind to int64 nanoseconds since 1970 UTC.

Text: ISO dates and times, compact ones (20260202 103000), day/month/year in either order, month names, 12-hour clocks; a
zone as Z, UTC, GMT or an offset. Numbers: epoch seconds, milliseconds, microseconds or nanoseconds, told apart by size.
Stamps that carry no zone are read in data.timezone, by default UTC; dates alone are no instants and stay at 00:00 UTC.

One decision is made for the whole column, never cell by cell: the order of day and month is the one under which every
cell is a date. Where both orders are possible it is refused, except with points (02.03.2026 is day first by convention).
"""

import re
from typing import NamedTuple

import numpy as np
import polars as pl

from numba_rl.config import DataConfig
from numba_rl.data.calendar import SECOND
from numba_rl.data.raw import Source, count
from numba_rl.errors import ConfigError

CLOCKS = ("%H:%M:%S", "%H:%M:%S%.f", "%H:%M", "%I:%M:%S %p", "%I:%M %p", "%H%M%S", "%H%M")
ZONED = r"(?i)^(.*:\d{2}(?:\.\d+)?(?: ?[ap]m)?)\s*(Z|(?:UTC|GMT)?[+-]\d{2}(?::?\d{2})?|UTC|GMT)$"
COMPACT = r"(19|20|21)\d{6}(\d{4}|\d{6})?"
NUMERIC_DATE = r"^(\d{1,2})([/.-])(\d{1,2})[/.-]\d{4}(?:\D|$)"
# lowest and highest number of each unit: March 1973 to November 5138 as seconds, and the same with 3, 6, 9 more digits.
# Smaller numbers are row counters or spreadsheet dates.
EPOCHS = ((10**8, 10**11, SECOND, "s"), (10**11, 10**14, 10**6, "ms"), (10**14, 10**17, 10**3, "us"), (10**17, 2**63 - 1, 1, "ns"))
FIRST_US, LAST_US = (int(np.datetime64(f"{year}-01-01", "us").astype(np.int64)) for year in (1900, 2200))


class Stamps(NamedTuple):
    """A time column as instants."""

    ns: np.ndarray  # int64 [N], since 1970 UTC
    how: str  # what the column was taken for
    assumed: tuple[str, ...] = ()  # notices: decisions that the file does not prove


def epoch_to_ns(values: np.ndarray, source: Source, rows: np.ndarray) -> Stamps:
    """Epoch numbers, int64 or float64 [N].

    rows: int64 [N], the file's rows, for messages. Raises DataError for numbers that are no epoch time, or of two units.
    """
    if len(values) == 0:
        return Stamps(np.empty(0, np.int64), "epoch")
    unit = next((u for u in EPOCHS if u[0] <= values[0] < u[1]), None)
    if unit is None:
        raise source.error(int(rows[0]), f"stamp {values[0]:.19g} is neither a date nor an epoch time in s, ms, us or ns: write dates")
    low, high, factor, name = unit
    other = np.flatnonzero(~((values >= low) & (values < high)))
    if len(other):
        i = other[0]
        raise source.error(int(rows[i]), f"stamp {values[i]:.19g} is not in epoch {name} as the first one ({values[0]:.19g}): use one unit")
    whole = values.astype(np.int64)
    part = np.rint((values - whole) * (factor / 1e3)).astype(np.int64) * 1000 if values.dtype.kind == "f" and factor > 1 else 0
    check_years(whole // (SECOND // factor) * 1_000_000, source, rows)
    return Stamps(whole * factor + part, f"epoch {name}")


def localize(microseconds: np.ndarray, config: DataConfig, source: Source, rows: np.ndarray) -> tuple[np.ndarray, str]:
    """Wall-clock int64 [N] us without a zone to UTC int64 [N] us, in data.timezone.

    Raises DataError for a time that a clock change repeats or skips, ConfigError for an unknown zone.
    """
    if config.timezone is None or config.timezone.upper() == "UTC":
        return microseconds, "no zone, taken as UTC" if config.timezone is None else "no zone, UTC as set"
    wall = pl.Series(microseconds).cast(pl.Datetime("us"))
    try:
        utc = wall.dt.replace_time_zone(config.timezone, ambiguous="null", non_existent="null")
    except pl.exceptions.ComputeError:
        raise ConfigError(f"data.timezone = {config.timezone!r} is no time zone: write one such as America/New_York") from None
    lost = utc.is_null()
    if lost.any():
        i = int(lost.arg_true()[0])
        twice = wall[i : i + 1].dt.replace_time_zone(config.timezone, ambiguous="earliest", non_existent="null")[0] is not None
        raise source.error(
            int(rows[i]),
            f"{wall[i]} occurs {'twice' if twice else 'never'} in {config.timezone}, where the clocks change "
            f"({count(int(lost.sum()), 'such row')}): write the stamps in UTC or with their offsets",
        )
    return utc.to_physical().to_numpy(), f"no zone, {config.timezone} as set"


def text_to_ns(cells: pl.Series, config: DataConfig, source: Source, rows: np.ndarray) -> Stamps:
    """Text stamps [N], no nulls. Raises DataError naming the first bad row."""
    if len(cells) == 0:
        return Stamps(np.empty(0, np.int64), "text")
    cells = cells.str.strip_chars()
    first = cells[0]
    if re.fullmatch(r"\d+(\.\d*)?([eE]\+?\d+)?", first):
        compact = _compact(cells) if re.fullmatch(COMPACT, first) else None
        if compact is None:
            return _text_epoch(cells, source, rows)
        microseconds, how, assumed, dates_only = compact, f"text like {first!r}", (), len(first) == 8
    else:
        cells, offset, zone = _split_zone(cells, source, rows)
        microseconds, how, assumed, dates_only = _parse(cells, config, source, rows)
        if zone:
            check_years(microseconds, source, rows)
            return Stamps((microseconds - offset) * 1000, f"{how}, zone {zone}", assumed)
    check_years(microseconds, source, rows)
    if dates_only:
        return Stamps(microseconds * 1000, f"{how}, dates at 00:00 UTC", assumed)
    microseconds, zone = localize(microseconds, config, source, rows)
    return Stamps(microseconds * 1000, f"{how}, {zone}", assumed)


def join_clock(dates: pl.Series, clocks: pl.Series) -> pl.Series:
    """Text dates and times of day, in two columns, as one; a clock may be 930 or 93000."""
    digits = clocks.str.contains(r"^\d+$").fill_null(False)
    if digits.any():
        width = 4 if (clocks.str.len_chars().max() or 0) <= 4 else 6
        clocks = clocks.str.zfill(width)
    return dates + " " + clocks


def check_years(microseconds: np.ndarray, source: Source, rows: np.ndarray) -> None:
    """Raise DataError for an int64 [N] us stamp outside the years 1900 to 2199: a wrong unit, or a damaged cell."""
    outside = np.flatnonzero((microseconds < FIRST_US) | (microseconds >= LAST_US))
    if len(outside):
        raise source.error(int(rows[outside[0]]), "the stamp lies outside the years 1900 to 2199: correct it, or the column's unit")


def _to_microseconds(cells: pl.Series, pattern: str) -> pl.Series:
    """Naive us (Int64), null where a cell does not follow the pattern."""
    return cells.str.to_datetime(pattern, time_unit="us", strict=False).to_physical()


def _compact(cells: pl.Series) -> np.ndarray | None:
    """Naive us of 20260202, 202602021030 or 20260202103000 throughout, else None."""
    pattern = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}[len(cells[0])]
    parsed = _to_microseconds(cells, pattern)
    return None if parsed.null_count() else parsed.to_numpy()


def _text_epoch(cells: pl.Series, source: Source, rows: np.ndarray) -> Stamps:
    values = cells.cast(pl.Int64, strict=False)
    if values.null_count():
        values = cells.cast(pl.Float64, strict=False)
    if values.null_count():
        i = int(values.is_null().arg_true()[0])
        raise source.error(int(rows[i]), f"stamp {cells[i]!r} is not a number as the first one ({cells[0]!r}): correct or delete the row")
    return epoch_to_ns(values.to_numpy(), source, rows)


def _split_zone(cells: pl.Series, source: Source, rows: np.ndarray) -> tuple[pl.Series, np.ndarray | int, str | None]:
    """Cells without their zone, the offset from UTC (us, one for all or [N]), and the zone (None: they carry none)."""
    match = re.match(ZONED, cells[0])
    if match is None:
        return cells, 0, None
    zone = match[2]
    if cells.str.ends_with(zone).all():  # one suffix throughout: no need to look into each cell
        return cells.str.strip_suffix(zone).str.strip_chars(), _offset(zone), zone
    zones = cells.str.extract(ZONED, 2)
    if zones.null_count():
        i = int(zones.is_null().arg_true()[0])
        raise source.error(int(rows[i]), f"stamp {cells[i]!r} carries no zone as the first one ({cells[0]!r}): write all stamps alike")
    offsets = {text: _offset(text) for text in zones.unique()}
    shown = " and ".join(sorted(offsets)[:4])
    return cells.str.extract(ZONED, 1).str.strip_chars(), zones.replace_strict(offsets, return_dtype=pl.Int64).to_numpy(), shown


def _offset(zone: str) -> int:
    """Offset of a zone suffix from UTC in us: ``-0500`` is -18,000,000,000."""
    match = re.search(r"([+-])(\d{2}):?(\d{2})?$", zone)
    if match is None:
        return 0
    minutes = int(match[2]) * 60 + int(match[3] or 0)
    return (-minutes if match[1] == "-" else minutes) * 60_000_000


def _parse(cells: pl.Series, config: DataConfig, source: Source, rows: np.ndarray) -> tuple[np.ndarray, str, tuple[str, ...], bool]:
    """Naive us [N], how they were read, what was assumed, and whether they are dates without a time of day.

    The pattern is taken from the first cell; cells that do not follow it may differ in how they write the time of day
    (a spreadsheet drops it at midnight), never in how they write the date.
    """
    date, how, assumed = _date_pattern(cells, config, source, rows)
    patterns = [f"{date}{joiner}{clock}" for joiner in (" ", "T", "  ", ", ") for clock in CLOCKS] + [date]
    result, dates_only = np.empty(len(cells), np.int64), True
    left = np.arange(len(cells))
    while len(left):
        sample = cells[int(left[0])]
        pattern = next((p for p in patterns if _to_microseconds(pl.Series([sample]), p)[0] is not None), None)
        if pattern is None:
            raise source.error(
                int(rows[left[0]]),
                f"stamp {sample!r} cannot be read{f' as the first one ({cells[0]!r})' if left[0] else ''}: "
                "write it as 2026-02-03 10:15:00, or delete the row",
            )
        parsed = _to_microseconds(cells if len(left) == len(cells) else cells[left], pattern)
        done = parsed.is_not_null().to_numpy()
        result[left[done]] = parsed.drop_nulls().to_numpy()
        left = left[~done]
        dates_only &= pattern == date
    return result, how, assumed, dates_only


def _date_pattern(cells: pl.Series, config: DataConfig, source: Source, rows: np.ndarray) -> tuple[str, str, tuple[str, ...]]:
    """strptime pattern of the date part, how it was found, and what was assumed."""
    first = cells[0]
    like = f"text like {first!r}"
    if match := re.match(r"\d{4}([-/.])\d{1,2}\1\d{1,2}", first):
        return f"%Y{match[1]}%m{match[1]}%d", like, ()
    if match := re.match(r"\d{1,2}([ -])[A-Za-z]{3,9}[ -]\d{4}", first):
        return f"%d{match[1]}%B{match[1]}%Y", like, ()
    if re.match(r"\d{8}[ T]", first):
        return "%Y%m%d", like, ()
    if re.match(r"[A-Za-z]{3,9} \d{1,2}, \d{4}", first):
        return "%B %d, %Y", like, ()
    match = re.match(NUMERIC_DATE, first)
    if match is None:
        raise source.error(int(rows[0]), f"stamp {first!r} cannot be read: write it as 2026-02-03 10:15:00 (years with four digits)")
    day_first, why = _day_first(cells, config, source, rows)
    assumed = ()
    if day_first is None:  # both orders are possible
        if match[2] != ".":
            raise source.error(
                int(rows[0]), f"{first!r} can be month/day or day/month, and no other row decides: set data.day_first to true or false"
            )
        day_first, why = True, "by convention with points"
        assumed = (f"dates like {first} taken as day first by convention: no row decides, data.day_first = false for the other order",)
    parts = ("%d", "%m", "%Y") if day_first else ("%m", "%d", "%Y")
    return match[2].join(parts), f"{like}, {'day' if day_first else 'month'} first ({why})", assumed


def _day_first(cells: pl.Series, config: DataConfig, source: Source, rows: np.ndarray) -> tuple[bool | None, str]:
    """Order of day and month that the whole column allows (None: both), and why. Raises DataError where it allows none."""
    one, two = (cells.str.extract(NUMERIC_DATE, group).cast(pl.Int64, strict=False) for group in (1, 3))
    day_row, month_row = ((part > 12).fill_null(False).arg_true() for part in (one, two))
    if len(day_row) and len(month_row):
        i, j = int(day_row[0]), int(month_row[0])
        raise source.error(
            int(rows[j]), f"{cells[j]!r} is month first, {cells[i]!r} in {source.at(int(rows[i]))} day first: write all dates alike"
        )
    wanted = config.day_first
    if len(day_row) == len(month_row) == 0:
        return wanted, "as set"
    decided = len(day_row) > 0
    i = int((day_row if decided else month_row)[0])
    if wanted is not None and wanted != decided:
        raise source.error(int(rows[i]), f"{cells[i]!r} contradicts data.day_first = {str(wanted).lower()}: leave the setting out")
    return decided, f"decided by {cells[i]!r} in {source.at(int(rows[i]))}"
