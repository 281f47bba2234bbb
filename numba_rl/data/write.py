"""Bars to a file that `read_bars` reads back equal: CSV (.gz, .zst), Parquet or Feather, by suffix."""

import gzip
import io
from pathlib import Path

import polars as pl
import zstandard

from numba_rl.data.bars import Bars
from numba_rl.errors import UserError
from numba_rl.files import atomic_write


def write_bars(path: str | Path, bars: Bars) -> None:
    """Write stamps (UTC) and prices with all their digits. Raises UserError for a suffix that is no format, or a bad path."""
    columns = {"timestamp": pl.Series(bars.timestamp).cast(pl.Datetime("ns", "UTC"))}
    columns |= {name: getattr(bars, name) for name in ("open", "high", "low", "close")}
    if bars.volume is not None:
        columns["volume"] = bars.volume
    frame = pl.DataFrame(columns)
    name, buffer = Path(path).name.lower(), io.BytesIO()
    if name.endswith(".parquet"):
        frame.write_parquet(buffer)
    elif name.endswith((".feather", ".arrow")):
        frame.write_ipc(buffer)
    elif name.endswith((".csv", ".csv.gz", ".csv.zst")):
        frame.with_columns(pl.col("timestamp").dt.strftime("%Y-%m-%dT%H:%M:%SZ")).write_csv(buffer)
    else:
        raise UserError(f"{path}: bars are written as .csv, .csv.gz, .csv.zst, .parquet or .feather; choose one of these endings")
    data = buffer.getvalue()
    if name.endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    elif name.endswith(".zst"):
        data = zstandard.compress(data)
    try:
        atomic_write(path, data)
    except OSError as problem:
        raise UserError(f"{path}: cannot be written: {problem.strerror}") from None
