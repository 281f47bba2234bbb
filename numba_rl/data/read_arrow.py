"""Parquet, Feather and Arrow IPC (file and stream) to a RawTable.

Stored instants are taken as they are: any time unit, any zone. Stamps without a zone are read in data.timezone (UTC),
whole numbers as epoch times by their size, text as in CSV. Prices may be floats, whole numbers, decimals or text;
missing values are NaN. A pandas index is a column like others; a pandas column index of two levels is read by symbol.
"""

import ast

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet

from numba_rl.config import DataConfig
from numba_rl.data.calendar import DAY, SECOND
from numba_rl.data.columns import Columns, find_columns, find_columns_by_symbol
from numba_rl.data.numbers import to_numbers
from numba_rl.data.raw import PRICES, NoBars, RawTable, Source, choose_symbol, count
from numba_rl.data.stamps import Stamps, check_years, epoch_to_ns, join_clock, localize, text_to_ns

MAGIC = {b"PAR1": "Parquet", b"ARRO": "Arrow IPC file", b"FEA1": "Feather (version 1)", b"\xff\xff\xff\xff": "Arrow IPC stream"}


def read_arrow(data: bytes, path: str, config: DataConfig) -> RawTable:
    """Read unpacked data that begins with one of MAGIC. Raises DataError naming the row for what is no bar."""
    source, kind = Source(path, "row"), MAGIC[data[:4]]
    table = _load(data, kind, source)
    columns = _columns(table.column_names, source, config)
    if len(table) == 0:
        raise NoBars("no rows", "give a longer file")
    used = {role: table.column(i) for role, i in columns.at.items()}
    used = {role: _text(column) if _is_text(column.type) else column for role, column in used.items()}
    rows = np.arange(len(table))
    symbol = columns.symbol
    if "symbol" in used:
        names = pc.fill_null(_text(used.pop("symbol")), "(empty)")
        symbol = choose_symbol(source, pc.unique(names).to_pylist(), config.symbol)
        mine = pc.equal(names, symbol)
        used, rows = {role: column.filter(mine) for role, column in used.items()}, rows[mine.to_numpy()]
    elif config.symbol is not None and symbol is None:
        choose_symbol(source, [], config.symbol)

    empty = np.logical_and.reduce([_is_missing(column) for column in used.values()])
    unstamped = np.flatnonzero(_is_missing(used["time"]) & ~empty)
    if len(unstamped):
        raise source.error(int(rows[unstamped[0]]), f"no stamp ({count(len(unstamped), 'such row')}): write it, or delete the row")
    full = pa.array(~empty)
    used, rows = {role: column.filter(full) for role, column in used.items()}, rows[~empty]
    stamps = used.pop("time")
    timestamp, how, assumed = to_stamps(stamps, used.pop("clock", None), config, source, rows)
    numbers = to_floats({columns.name(role): column for role, column in used.items()}, config, source, rows, columns.german)
    get = {role: numbers[columns.name(role)] for role in used}
    return RawTable(
        source=source,
        timestamp=timestamp,
        prices={role: get[role] for role in PRICES},
        volume=get.get("volume"),
        adjusted=get.get("adjusted"),
        rows=rows,
        read_as=[("format", kind), ("columns", columns.describe()), ("time", how), *([("symbol", symbol)] if symbol else [])],
        notices=[*assumed, *([f"{count(int(empty.sum()), 'empty row')} skipped"] if empty.any() else [])],
    )


def _load(data: bytes, kind: str, source: Source) -> pa.Table:
    buffer = pa.BufferReader(data)
    try:
        if kind == "Parquet":
            return pa.parquet.ParquetFile(buffer).read()
        if kind == "Arrow IPC stream":
            return pa.ipc.open_stream(buffer).read_all()
        return pa.feather.read_table(buffer)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise source.error(None, f"not readable as {kind} ({str(error).splitlines()[0]}): write the file again") from None


def _columns(names: list[str], source: Source, config: DataConfig) -> Columns:
    """Columns by name; pandas writes a column index of two levels as ``('Close', 'ZZQX')``."""
    pairs = [ast.literal_eval(name) if name.startswith("('") and name.endswith("')") else (name, "") for name in names]
    if any(symbol for _, symbol, *_ in pairs):
        return find_columns_by_symbol(source, [pair[0] for pair in pairs], [pair[1] for pair in pairs], config.symbol)
    return find_columns(source, names)


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """As large_string, the one text type that every function here takes."""
    return column.cast(column.type.value_type if pa.types.is_dictionary(column.type) else column.type).cast(pa.large_string())


def _is_missing(column: pa.ChunkedArray) -> np.ndarray:
    """bool [N]: null or NaN."""
    return pc.is_null(column, nan_is_null=pa.types.is_floating(column.type)).to_numpy()


def to_stamps(column: pa.ChunkedArray, clock: pa.ChunkedArray | None, config: DataConfig, source: Source, rows: np.ndarray) -> Stamps:
    """Instants of a time column (and of its column with the time of day, where there is one)."""
    kind = column.type
    if clock is not None:
        return text_to_ns(join_clock(pl.from_arrow(_text(column)), pl.from_arrow(_text(clock))), config, source, rows)
    if pa.types.is_date(kind):
        days = column.cast(pa.date32()).cast(pa.int32()).to_numpy().astype(np.int64)
        check_years(days * (DAY // 1000), source, rows)
        return Stamps(days * DAY, f"{kind}, dates at 00:00 UTC")
    if pa.types.is_timestamp(kind):
        factor = {"s": SECOND, "ms": 10**6, "us": 10**3, "ns": 1}[kind.unit]  # ns
        values = column.cast(pa.int64()).to_numpy()
        microseconds = values // 1000 if factor == 1 else np.clip(values, -(2**63) // factor, 2**63 // factor) * (factor // 1000)
        check_years(microseconds, source, rows)
        if kind.tz is not None:
            return Stamps(values * factor, f"{kind}, stored instants")
        utc, how = localize(microseconds, config, source, rows)
        return Stamps(utc * 1000 + (values % 1000 if factor == 1 else 0), f"{kind}, {how}")
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return epoch_to_ns(column.cast(pa.float64() if pa.types.is_floating(kind) else pa.int64(), safe=False).to_numpy(), source, rows)
    if _is_text(kind):
        return text_to_ns(pl.from_arrow(column), config, source, rows)
    raise source.error(None, f"the time column has type {kind}: store timestamps, dates, epoch numbers or text")


def _is_text(kind: pa.DataType) -> bool:
    """Text of any layout; a dictionary of texts too."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def to_floats(
    columns: dict[str, pa.ChunkedArray], config: DataConfig, source: Source, rows: np.ndarray, german: bool
) -> dict[str, np.ndarray]:
    """float64 [N] by the file's own names, NaN where missing."""
    text = {name: pl.from_arrow(column) for name, column in columns.items() if _is_text(column.type)}
    result = to_numbers(text, config, source, rows, german)[0] if text else {}
    for name, column in columns.items():
        kind = column.type
        if name in text:
            continue
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind)):
            raise source.error(None, f"column {name} has type {kind}: store numbers")
        if pa.types.is_decimal(kind):
            column = column.cast(pa.string())  # the direct cast to float64 is not correctly rounded
        result[name] = np.array(column.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy(), np.float64)
    return result
