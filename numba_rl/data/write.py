"""Bars to a file that `read_bars` reads back equal, to the last bit: CSV (.gz, .zst), Parquet or Feather, by suffix."""

import gzip
from pathlib import Path

import polars as pl
import zstandard

from numba_rl.data.bars import Bars
from numba_rl.errors import UserError
from numba_rl.files import atomic_file

SUFFIXES = (".csv", ".csv.gz", ".csv.zst", ".parquet", ".feather", ".arrow")


def check_suffix(path: str | Path) -> str:
    """The one of SUFFIXES that a file's name ends with. UserError: none of them."""
    for suffix in SUFFIXES:
        if Path(path).name.lower().endswith(suffix):
            return suffix
    raise UserError(f"{path}: bars are written as {', '.join(SUFFIXES)}; end the file's name with one of them")


def write_bars(path: str | Path, bars: Bars) -> None:
    """Write stamps (UTC), prices and volume (if there is one) with all their digits, whole or not at all.

    Raises UserError for a suffix that is no format, and for a file that cannot be written.
    """
    suffix = check_suffix(path)
    columns = {name: getattr(bars, name) for name in ("open", "high", "low", "close")}
    if bars.volume is not None:
        columns["volume"] = bars.volume
    stamps = pl.Series("timestamp", bars.timestamp).cast(pl.Datetime("ns", "UTC"))
    table = pl.DataFrame([stamps, *(pl.Series(name, column) for name, column in columns.items())])
    try:
        with atomic_file(path) as stream:
            _write(table, stream, suffix)
    except OSError as problem:
        raise UserError(f"{path}: cannot be written: {problem.strerror or problem}") from None


def _write(table: pl.DataFrame, stream, suffix: str) -> None:
    if suffix == ".parquet":
        table.write_parquet(stream)
    elif suffix in (".feather", ".arrow"):
        table.write_ipc(stream)
    elif suffix == ".csv":
        _write_csv(table, stream)
    elif suffix == ".csv.gz":
        with gzip.GzipFile(filename="", fileobj=stream, mode="wb", mtime=0, compresslevel=6) as packed:  # equal bars, equal files
            _write_csv(table, packed)
    else:
        with zstandard.ZstdCompressor().stream_writer(stream, closefd=False) as packed:
            _write_csv(table, packed)


def _write_csv(table: pl.DataFrame, stream) -> None:
    table.write_csv(stream, datetime_format="%Y-%m-%dT%H:%M:%S%.fZ")
