"""Backtests as tables for files: a row a bar, and a row a round trip."""

from pathlib import Path

import polars as pl

from numba_rl.evaluate.backtest import Backtest
from numba_rl.evaluate.metrics import exit_notional
from numba_rl.evaluate.trades import fill_times
from numba_rl.files import atomic_file

POINTS = ("close", "equity", "gross_equity")
STEPS = ("action", "target", "exposure", "position", "price", "traded", "fee", "spread_cost", "financing", "reward")


def equity_table(backtest: Backtest) -> pl.DataFrame:
    """A row a point: timestamp, POINTS, and the STEPS of the step that ended there; the first point has none before it."""
    stamps = pl.Series("timestamp", backtest.timestamp).cast(pl.Datetime("ns", "UTC"))
    frame = pl.DataFrame([stamps]).with_columns(**{name: pl.Series(getattr(backtest, name)) for name in POINTS})
    return frame.with_columns(**{name: pl.Series([None, *getattr(backtest, name).tolist()]) for name in STEPS})


def trades_table(backtest: Backtest, fill_at: str) -> pl.DataFrame:
    """A row a round trip: the bars (UTC) of its first and last fill, then as ``trades.Trades``. fill_at: market.fill_at."""
    found = fill_times(backtest.trades, backtest.timestamp, fill_at, exit_notional(backtest))
    times = dict(zip(("entry_time", "exit_time"), found, strict=True))
    stamps = {name: pl.Series(name, values).cast(pl.Datetime("ns", "UTC")) for name, values in times.items()}
    return pl.DataFrame({**stamps, **backtest.trades._asdict()})


def write_parquet(path: Path, table: pl.DataFrame) -> None:
    """Write a table whole or not at all."""
    with atomic_file(path) as file:
        table.write_parquet(file)


def write_csv(path: Path, table: pl.DataFrame) -> None:
    """Write a table whole or not at all, numbers with all their digits."""
    with atomic_file(path) as file:
        table.write_csv(file)
