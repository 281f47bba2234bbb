"""Feature columns beside bars, wherever they come from, and the one check that they are finite.

`read_features` reads a user's own columns: any number F >= 1, named, on the bars' stamps, float32 [T, F] like the 51 of features.py.
"""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from numba_rl.config import DataConfig
from numba_rl.data.bars import Bars
from numba_rl.data.columns import find_roles
from numba_rl.data.raw import Source, count, stamp_text
from numba_rl.data.read_arrow import to_floats, to_stamps
from numba_rl.errors import DataError

DEFAULTS = DataConfig()


@dataclass(frozen=True)
class FeatureTable:
    """Feature columns beside the bars that they belong to."""

    values: np.ndarray  # float32 [T, F], C-contiguous, unscaled; rows before `warmup` may hold NaN, later ones are finite
    names: tuple[str, ...]
    warmup: int  # rows to drop at the start


def nonfinite_rows(values: np.ndarray) -> np.ndarray:
    """Indices of the rows of [n, F] that hold a NaN or an infinity, int64, ascending."""
    return np.flatnonzero(~np.isfinite(values).all(axis=1))


def require_finite(values: np.ndarray, names: tuple[str, ...], source: str, first_row: int = 0) -> None:
    """DataError that names the first bad column and row (counted from `first_row`) of [n, F], and how many rows are bad."""
    if np.isfinite(values).all():
        return
    bad = nonfinite_rows(values)
    row = bad[0]
    column = int(np.flatnonzero(~np.isfinite(values[row]))[0])
    raise DataError(
        f"{source}: feature {names[column]} is {values[row, column]} at row {row + first_row} "
        f"({len(bad)} of {len(values)} rows are not finite); fill or drop these rows before training"
    )


def read_features(path: str | Path, bars: Bars, config: DataConfig = DEFAULTS) -> FeatureTable:
    """A user's own feature columns for the bars: float32 [T, F] in the file's order, F >= 1.

    The file is comma-separated text (plain, gzip or zstd), Parquet or Feather, with the bars' stamps in a column that is named and
    written as in a market file; every other column is a feature. Rows are matched by stamp, rows for other stamps are ignored.
    Leading rows with a missing value are the features' own warm-up. Raises DataError: a file that cannot be read, a bar without a
    row, a stamp that occurs twice, a column that holds no numbers, or a value after the warm-up that is missing or not finite.
    """
    source = Source(str(path), "row")
    table = _load(path, source).to_arrow()
    at = find_roles(table.column_names)
    time, clock = (table.column(at[role]) if role in at else None for role in ("time", "clock"))
    names = tuple(name for i, name in enumerate(table.column_names) if i not in (at.get("time"), at.get("clock")))
    if time is None or not names:
        raise source.error(None, f"columns are {', '.join(table.column_names)}: name one timestamp, and have one feature column or more")
    rows = np.arange(len(table))
    unstamped = np.flatnonzero(time.is_null().to_numpy())
    if len(unstamped):
        raise source.error(int(unstamped[0]), "no stamp: write it, or delete the row")
    stamps = to_stamps(time, clock, config, source, rows).ns
    columns = to_floats({name: table.column(name) for name in names}, config, source, rows, german=False)
    place = _rows_of_bars(stamps, bars, source)
    with np.errstate(over="ignore"):  # an infinity is refused below
        values = np.stack([columns[name][place].astype(np.float32) for name in names], axis=1)
    finite = np.isfinite(values).all(axis=1)
    warmup = int(np.argmax(finite)) if finite.any() else 0
    require_finite(values[warmup:], names, str(path), warmup)
    return FeatureTable(values, names, warmup)


def _load(path: str | Path, source: Source) -> pl.DataFrame:
    """The file's columns; text files keep their cells as text."""
    try:
        data = Path(path).read_bytes()
        if data.startswith(b"PAR1"):
            return pl.read_parquet(io.BytesIO(data))
        if data.startswith(b"ARROW1"):
            return pl.read_ipc(io.BytesIO(data))
        return pl.read_csv(io.BytesIO(data), infer_schema=False)
    except OSError as error:
        raise DataError(f"{path}: features cannot be read ({error.strerror}): check data.features") from None
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0]
        raise source.error(None, f"features cannot be read ({reason}): give a CSV, Parquet or Feather file of named columns") from None


def _rows_of_bars(stamps: np.ndarray, bars: Bars, source: Source) -> np.ndarray:
    """Row of the file for each bar, int64 [T]."""
    order = np.argsort(stamps, kind="stable")
    ordered = stamps[order]
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(twice):
        raise source.error(int(order[twice[0] + 1]), f"a second row for {stamp_text(ordered[twice[0]])}: keep one row for each bar")
    at = np.searchsorted(ordered, bars.timestamp)
    found = np.zeros(len(bars), bool)
    inside = at < len(ordered)
    found[inside] = ordered[at[inside]] == bars.timestamp[inside]
    if not found.all():
        first = stamp_text(bars.timestamp[np.argmin(found)])
        raise source.error(
            None, f"{count(int((~found).sum()), 'bar')} of {len(bars):,} without a row of features, the first at {first} UTC: add them"
        )
    return order[at]
