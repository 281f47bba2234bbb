"""What every reader hands over before anything is judged: columns as the file has them, and where each row stands.

Missing prices are NaN here; order, duplicates and contradictions are the file's own. ``validate`` turns this into bars.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from numba_rl.errors import DataError

PRICES = ("open", "high", "low", "close")


class NoBars(DataError):
    """A file that holds nothing to read; ``read_bars`` adds how many bars are needed."""

    def __init__(self, reason: str, fix: str):
        super().__init__(f"{reason}: {fix}")
        self.reason, self.fix = reason, fix


def stamp_text(ns: int) -> str:
    """A stamp (ns since 1970 UTC) as people write it: the date, and the time of day where there is one."""
    text = str(np.datetime64(int(ns), "ns")).replace("T", " ")
    date, _, time = text.partition(" ")
    whole, _, fraction = time.partition(".")
    fraction = fraction.rstrip("0")
    if whole == "00:00:00" and not fraction:
        return date
    if fraction:
        return f"{date} {whole}.{fraction}"
    return f"{date} {whole.removesuffix(':00')}"


def count(number: int, noun: str) -> str:
    """``3 rows``, ``1 row``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@dataclass(frozen=True)
class Source:
    """A file, and how a row of it is called in messages. Rows are counted from 0 here and from 1 in the text."""

    path: str
    unit: str  # "line", "row", "record"
    line_of: Callable[[int], int] | None = None  # physical line of a data row, for text files

    def at(self, row: int) -> str:
        """``line 4 (row 3)``, ``row 3`` or ``record 3``."""
        if self.line_of is None:
            return f"{self.unit} {row + 1}"
        return f"line {self.line_of(row)} (row {row + 1})"

    def listed(self, rows: np.ndarray, most: int = 5) -> str:
        """``lines 3, 5, 7 and 12 more``."""
        numbers = [self.line_of(int(row)) if self.line_of else int(row) + 1 for row in rows[:most]]
        more = f" and {len(rows) - most:,} more" if len(rows) > most else ""
        return f"{self.unit}{'' if len(rows) == 1 else 's'} {', '.join(str(n) for n in numbers)}{more}"

    def error(self, row: int | None, text: str) -> DataError:
        """A DataError that names the file, the row (None: the whole file) and what is wrong."""
        return DataError(f"{self.path}: {text}" if row is None else f"{self.path}: {self.at(row)}: {text}")


@dataclass
class RawTable:
    """Columns of one instrument as read; N is the number of rows."""

    source: Source
    timestamp: np.ndarray  # int64 [N], ns since 1970 UTC
    prices: dict[str, np.ndarray]  # open, high, low, close: float64 [N], NaN where missing
    volume: np.ndarray | None  # float64 [N], NaN where missing
    adjusted: np.ndarray | None  # float64 [N], adjusted close, NaN where missing
    rows: np.ndarray  # int64 [N], row of the file (from 0) that each came from
    interval_ns: int | None = None  # where the file says it
    read_as: list[tuple[str, str]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.timestamp)

    def keep(self, index: np.ndarray) -> None:
        """Keep the rows of a boolean mask or index array, in its order."""
        self.timestamp = self.timestamp[index]
        self.prices = {name: column[index] for name, column in self.prices.items()}
        self.volume = None if self.volume is None else self.volume[index]
        self.adjusted = None if self.adjusted is None else self.adjusted[index]
        self.rows = self.rows[index]


def choose_symbol(source: Source, found: list[str], wanted: str | None) -> str | None:
    """The instrument to read of those found; None where the file names none.

    ``wanted`` is data.symbol, matched exactly, then without regard to case. Raises DataError where it is not among those
    found, or where several are found and none is wanted.
    """
    shown = ", ".join(found[:8]) + (f" and {len(found) - 8} more" if len(found) > 8 else "")
    if wanted is None:
        if len(found) > 1:
            raise source.error(None, f"holds {len(found)} instruments ({shown}): say which one with data.symbol")
        return found[0] if found else None
    if not found:
        raise source.error(None, f"names no instrument, so data.symbol = {wanted!r} cannot be checked: leave it out")
    chosen = wanted if wanted in found else next((name for name in found if name.casefold() == wanted.casefold()), None)
    if chosen is None:
        raise source.error(None, f"has no instrument {wanted!r}, only {shown}: set data.symbol to one of them")
    return chosen
