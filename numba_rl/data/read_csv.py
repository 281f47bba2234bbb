"""Delimited text to a RawTable: encoding, delimiter, header (one or three lines), columns by name, cells to numbers.

The delimiter (comma, semicolon, tab, bar) is the one under which a line near the top names a time, open, high, low and
close; lines above it are skipped and reported. Cells are parsed by polars as text and converted once the whole file is
known, since one cell alone cannot tell 12.400 from 12,400 or 02/03 from 03/02. Messages count lines as an editor does.
"""

import csv
import io
from functools import cached_property

import numpy as np
import polars as pl

from numba_rl.config import DataConfig
from numba_rl.data.columns import Columns, find_columns, find_columns_by_symbol, find_roles, has_bars, plain
from numba_rl.data.numbers import to_numbers
from numba_rl.data.raw import PRICES, NoBars, RawTable, Source, choose_symbol, count
from numba_rl.data.stamps import join_clock, text_to_ns
from numba_rl.errors import DataError

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
HEADER_WITHIN = 10  # lines
BOMS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))


def read_csv(data: bytes, path: str, config: DataConfig) -> RawTable:
    """Read unpacked text. Raises DataError naming the line for a file without bars' columns or with cells that are none."""
    text, encoding = _decode(data, path)
    if not text.strip():
        raise NoBars("the file is empty", "give a file with bars")
    lines = [line.replace("\r", "") for line in text[: 1 << 16].decode("utf-8", "ignore").split("\n")[: HEADER_WITHIN + 3]]
    source = Source(path, "line")
    delimiter, skipped, height, columns = _find_header(lines, source, config)
    body = _after_lines(text, skipped + height)
    source = Source(path, "line", _Lines(body, skipped + height, delimiter))
    table = _cells(body, delimiter, len(columns.names), source)
    used = {role: table[f"c{i}"] for role, i in columns.at.items()}
    rows = np.arange(len(table))

    full = pl.select(pl.any_horizontal(*[column.is_not_null() for column in used.values()])).to_series().to_numpy()
    used, rows = {role: column.filter(pl.Series(full)) for role, column in used.items()}, rows[full]
    if len(rows) == 0:
        raise NoBars("no rows", "give a longer file")
    symbol = columns.symbol
    if "symbol" in used:
        names = used.pop("symbol").fill_null("(empty)")
        symbol = choose_symbol(source, names.unique(maintain_order=True).to_list(), config.symbol)
        mine = names == symbol
        used, rows = {role: column.filter(mine) for role, column in used.items()}, rows[mine.to_numpy()]
    elif config.symbol is not None and symbol is None:
        choose_symbol(source, [], config.symbol)

    stamps = used.pop("time")
    if "clock" in used:
        stamps = join_clock(stamps, used.pop("clock"))
    _refuse_unstamped(stamps, source, rows)
    timestamp, how, assumed = text_to_ns(stamps, config, source, rows)
    names = {columns.name(role): column for role, column in used.items()}
    numbers, sign = to_numbers(names, config, source, rows, columns.german)
    get = {role: numbers[columns.name(role)] for role in used}
    notices = list(assumed)
    if skipped:
        notices.append(f"{count(skipped, 'line')} above the header skipped")
    if not full.all():
        notices.append(f"{count(int((~full).sum()), 'empty line')} skipped")
    if encoding == "cp1252":
        notices.append("not UTF-8: read as Windows-1252")
    return RawTable(
        source=source,
        timestamp=timestamp,
        prices={role: get[role] for role in PRICES},
        volume=get.get("volume"),
        adjusted=get.get("adjusted"),
        rows=rows,
        read_as=[
            ("format", f"CSV, {DELIMITERS[delimiter]} separated, {encoding}, {sign}"),
            ("columns", columns.describe()),
            ("time", how),
            *([("symbol", symbol)] if symbol else []),
        ],
        notices=notices,
    )


def _decode(data: bytes, path: str) -> tuple[bytes, str]:
    """The text as UTF-8 bytes without a byte order mark, and its encoding."""
    for mark, encoding in BOMS:
        if data.startswith(mark):
            break
    else:
        mark, head = b"", data[:200]
        encoding = "utf-16-le" if head[1::2].count(0) > len(head) // 4 else "utf-16-be" if head[::2].count(0) > len(head) // 4 else "utf-8"
    body = data[len(mark) :]
    if encoding == "utf-8" and b"\x00" in body[: 1 << 16]:
        raise DataError(f"{path}: neither text nor Parquet, Feather/Arrow or Databento DBN: give one of these")
    try:
        if b"\n" not in body and b"\r" in body:
            body = body.replace(b"\r", b"\n")
        if encoding != "utf-8":
            return body.decode(encoding).encode(), encoding.upper()
        if not body.isascii():
            body.decode()
        return body, "UTF-8"
    except UnicodeDecodeError:
        if encoding == "utf-8":
            return body.decode("cp1252", "replace").encode(), "cp1252"
        raise DataError(f"{path}: damaged {encoding.upper()} text: save it again as UTF-8") from None


def _find_header(lines: list[str], source: Source, config: DataConfig) -> tuple[str, int, int, Columns]:
    """Delimiter, lines above the header, lines of the header, and its columns."""
    for at in range(min(HEADER_WITHIN, len(lines))):
        for delimiter in DELIMITERS:
            block = [next(csv.reader([line], delimiter=delimiter), []) for line in lines[at : at + 3]]
            by_symbol = _two_levels(block)
            if by_symbol:
                return delimiter, at, 3, find_columns_by_symbol(source, *by_symbol, config.symbol)
            if has_bars(find_roles(block[0])):
                names = [name.strip() for name in block[0]]
                extra = block[1][len(names) :] if len(block) > 1 else []
                if not any(extra):  # rows that end with a delimiter
                    names += [""] * len(extra)
                return delimiter, at, 1, find_columns(source, names, f"line {at + 1}: ")
    # nothing fits: the error comes from the line that looks most like a header
    guess = max(DELIMITERS, key=lambda d: max((len(find_roles(line.split(d))), line.count(d)) for line in lines))
    written = [i for i in range(min(HEADER_WITHIN, len(lines))) if lines[i].strip()] or [0]
    at = max(written, key=lambda i: len(find_roles(lines[i].split(guess))))
    return guess, at, 1, find_columns(source, next(csv.reader([lines[at]], delimiter=guess), []), f"line {at + 1}: ")


def _two_levels(block: list[list[str]]) -> tuple[list[str], list[str]] | None:
    """Fields and instruments of a header of three lines (yfinance): fields, tickers in either order, then the time's name."""
    if len(block) < 3 or len({len(line) for line in block}) != 1 or len(block[0]) < 5 or any(block[2][1:]):
        return None
    time = block[2][0]
    if "time" not in find_roles([time]) or not plain(time):
        return None
    for fields, symbols in ((block[0], block[1]), (block[1], block[0])):
        names = [time, *fields[1:]]
        if has_bars(find_roles(names)):
            return names, ["", *symbols[1:]]
    return None


def _after_lines(text: bytes, number: int) -> bytes:
    start = 0
    for _ in range(number):
        end = text.find(b"\n", start)
        if end < 0:
            return b""
        start = end + 1
    return text[start:]


class _Lines:
    """Physical line (from 1) of a data row (from 0). Rows are lines, unless quoted cells hold line breaks."""

    def __init__(self, body: bytes, header: int, delimiter: str):
        self.body, self.header, self.delimiter = body, header, delimiter

    def __call__(self, row: int) -> int:
        if self._starts is not None:
            return self.header + int(self._starts[row])
        return self.header + row + 1

    @cached_property
    def _starts(self) -> np.ndarray | None:
        if b'"' not in self.body:
            return None
        reader = csv.reader(io.StringIO(self.body.decode(), newline=""), delimiter=self.delimiter)
        starts, before = [], 0
        for _ in reader:
            starts.append(before + 1)
            before = reader.line_num
        return np.array(starts)


def _cells(body: bytes, delimiter: str, width: int, source: Source) -> pl.DataFrame:
    """Text cells, columns c0 .. c{width - 1}; null where empty."""
    header = delimiter.join(f"c{i}" for i in range(width)).encode()  # so that a short first row does not set the width
    try:
        return pl.read_csv(io.BytesIO(header + b"\n" + body), separator=delimiter, infer_schema=False)
    except pl.exceptions.PolarsError as error:
        raise _odd_line(body, delimiter, width, source, str(error).splitlines()[0]) from None


def _odd_line(body: bytes, delimiter: str, width: int, source: Source, reason: str) -> DataError:
    """The error for a file that polars refused: the first line with too many cells or a stray quote."""
    try:
        for row, cells in enumerate(csv.reader(io.StringIO(body.decode(), newline=""), delimiter=delimiter, strict=True)):
            if len(cells) > width:
                return source.error(
                    row, f"{len(cells)} cells, but the header names {width}: quote cells that hold a {DELIMITERS[delimiter]}"
                )
    except csv.Error as error:
        return source.error(None, f"a quote is not closed or stands inside a cell ({error}): correct the quotes")
    return source.error(None, f"cannot be split into cells ({reason}): correct the file")


def _refuse_unstamped(stamps: pl.Series, source: Source, rows: np.ndarray) -> None:
    bad = stamps.is_null().arg_true()
    if len(bad):
        raise source.error(int(rows[bad[0]]), f"no stamp ({count(len(bad), 'such row')}): write it, or delete the row")
