"""Feature columns beside bars, wherever they come from, and the one check that they are finite.

`read_features` reads a user's own columns: any number F >= 1, named, on the bars' stamps, float32 [T, F] like the 51 of features.py.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from numba_rl.data.bars import Bars
from numba_rl.data.raw import stamp_text
from numba_rl.errors import DataError

TIME_COLUMNS = ("timestamp", "timestamp_utc", "datetime", "time", "date")


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
    bad = nonfinite_rows(values)
    if len(bad):
        row = bad[0]
        column = int(np.flatnonzero(~np.isfinite(values[row]))[0])
        raise DataError(
            f"{source}: feature {names[column]} is {values[row, column]} at row {row + first_row} "
            f"({len(bad)} of {len(values)} rows are not finite); fill or drop these rows before training"
        )


def read_features(path: str, bars: Bars) -> FeatureTable:
    """A user's own feature columns from a CSV or Parquet file with the bars' stamps in a column named as in TIME_COLUMNS.

    Rows are matched by stamp (UTC where none is given); other stamps are ignored. Leading rows that are not finite are the
    warm-up. Raises DataError for a file that cannot be read, a missing stamp, a column that holds no numbers, or a row
    after the warm-up that is not finite.
    """
    frame = _read_frame(path)
    time = next((name for name in frame.columns if name.lower() in TIME_COLUMNS), None)
    names = tuple(name for name in frame.columns if name != time)
    if time is None or not names:
        raise DataError(f"{path}: features need a time column ({', '.join(TIME_COLUMNS)}) and one column or more; found {frame.columns}")
    for name in names:
        if not frame[name].dtype.is_numeric():
            raise DataError(f"{path}: feature column {name} holds {frame[name].dtype}, not numbers; remove or convert it")
    stamps = _nanoseconds(frame[time], path)
    if len(np.unique(stamps)) != len(stamps):
        raise DataError(f"{path}: the time column {time} holds a stamp twice; keep one row a bar")
    order = np.argsort(stamps)
    place = np.minimum(np.searchsorted(stamps[order], bars.timestamp), len(stamps) - 1)
    missing = stamps[order][place] != bars.timestamp
    if missing.any():
        first = stamp_text(int(bars.timestamp[int(np.argmax(missing))]))
        raise DataError(f"{path}: {int(missing.sum())} of {len(bars)} bars have no features, the first at {first}; add rows for these stamps")
    columns = [frame[name].cast(pl.Float32).fill_null(float("nan")).to_numpy()[order][place] for name in names]
    values = np.ascontiguousarray(np.stack(columns, axis=1))
    good = np.isfinite(values).all(axis=1)
    warmup = int(np.argmax(good)) if good.any() else 0
    require_finite(values[warmup:], names, path, warmup)
    return FeatureTable(values, names, warmup)


def _read_frame(path: str) -> pl.DataFrame:
    try:
        if Path(path).suffix.lower() in (".parquet", ".pq"):
            return pl.read_parquet(path)
        return pl.read_csv(path, try_parse_dates=True)
    except (OSError, pl.exceptions.PolarsError) as problem:
        reason = str(problem).splitlines()[0]
        raise DataError(f"{path}: features cannot be read ({reason}); give a CSV or Parquet file of named columns") from problem


def _nanoseconds(column: pl.Series, path: str) -> np.ndarray:
    if column.dtype == pl.Date:
        column = column.cast(pl.Datetime("ns"))
    if not isinstance(column.dtype, pl.Datetime) or column.null_count():
        raise DataError(f"{path}: the time column {column.name} holds {column.dtype} or gaps, not dates; write stamps as 2026-02-02T10:00:00Z")
    return column.dt.cast_time_unit("ns").to_physical().to_numpy().astype(np.int64)
