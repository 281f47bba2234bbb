"""Columns of numbers written as text to float64: decimal point or comma, thousands signs, K/M/B suffixes, missing cells.

Whether the comma or the point is the decimal sign is one decision for the whole file: a cell such as 2.871,50 (comma) or
2,871.50, 1,234,567, 15.05 (point) shows it, 12,400 does not. Cells that show both are refused, and so is a file whose
only commas are of the 12,400 kind, unless data.decimal_comma says how to read them. With no comma at all a point is the
decimal sign, except under German column names, where 12.400 alone is refused too.
"""

import numpy as np
import polars as pl

from numba_rl.config import DataConfig
from numba_rl.data.raw import Source

MISSING = ("", "nan", "na", "n/a", "#n/a", "null", "none", "nil", "-", "--")
NOISE = r"[\s\u00a0\u202f'’$€£¥]"  # spaces and apostrophes separate thousands, currency signs say nothing
SUFFIX = r"(?i)[kmbt]$"
EXPONENTS = {"k": "e3", "m": "e6", "b": "e9", "t": "e12"}
TAIL = r"(?:[eE][+-]?\d+)?[kKmMbBtT]?$"
NUMBER = {  # decimal sign -> a whole cell; groups of thousands are of three digits
    sign: rf"^[+-]?(?:\d+|\d{{1,3}}(?:{other}\d{{3}})+)?(?:{sign}\d*)?{TAIL}" for sign, other in ((r"\.", ","), (",", r"\."))
}
SHOWS = {  # decimal sign -> a cell that shows it: after the other sign, or the other one twice, or not before three digits
    sign: (
        rf"^[^{sign}]*{other}[^{sign}]*{sign}[^{other}{sign}]*$"
        rf"|^[^{sign}{other}]*{other}[^{sign}{other}]*{other}[^{sign}]*$"
        rf"|^[+-]?(?:\d*{sign}\d{{0,2}}|\d*{sign}\d{{4,}}|0?{sign}\d{{3}}|\d{{4,}}{sign}\d{{3}}){TAIL}"
    )
    for sign, other in ((r"\.", ","), (",", r"\."))
}


def to_numbers(
    cells: dict[str, pl.Series], config: DataConfig, source: Source, rows: np.ndarray, german: bool
) -> tuple[dict[str, np.ndarray], str]:
    """Text columns (String [N], by the file's own names) to float64 [N], NaN where missing, and the sign that was used.

    rows: int64 [N], the file's rows, for messages. german: whether a point may separate thousands. Raises DataError
    naming the first cell that is no number, and where the decimal sign is contradictory or cannot be decided.
    """
    if not german and not config.decimal_comma and not any(column.str.contains(",", literal=True).any() for column in cells.values()):
        plain = {name: _plain(column) for name, column in cells.items()}
        if all(column is not None for column in plain.values()):
            return plain, "decimal point"
    cleaned = {name: _clean(column) for name, column in cells.items()}
    comma = _decimal_comma(cleaned, config, source, rows, german)
    sign, other = (",", ".") if comma else (".", ",")
    result = {}
    for name, column in cleaned.items():
        good = column.str.contains(NUMBER["," if comma else r"\."]) & column.str.contains(r"\d")
        good |= column.str.contains(r"(?i)^[+-]?inf(inity)?$")
        bad = (~good).fill_null(False).arg_true()
        if len(bad):
            i = int(bad[0])
            raise source.error(
                int(rows[i]),
                f"column {name}: {cells[name][i]!r} is no number with a decimal {'comma' if comma else 'point'}: "
                f"correct the cell, or set data.decimal_comma = {str(not comma).lower()}",
            )
        suffix = column.str.extract(r"(?i)([kmbt])$", 1).str.to_lowercase()
        digits = column.str.replace_all(other, "", literal=True).str.replace(sign, ".", literal=True)
        exponent = suffix.replace_strict(EXPONENTS, default="", return_dtype=pl.String).fill_null("")
        result[name] = _values((digits.str.replace(SUFFIX, "") + exponent).cast(pl.Float64))
    return result, f"decimal {'comma' if comma else 'point'}"


def _values(column: pl.Series) -> np.ndarray:
    """float64 with NaN for null."""
    return np.array(column.fill_null(float("nan")).to_numpy())


def _plain(column: pl.Series) -> np.ndarray | None:
    """Values of a column of ordinary numbers and missing cells; None where a cell is anything else."""
    values = column.cast(pl.Float64, strict=False)
    odd = column.filter(values.is_null() & column.is_not_null()).str.strip_chars().str.to_lowercase()
    return _values(values) if odd.is_in(MISSING).all() else None


def _clean(column: pl.Series) -> pl.Series:
    """Cells without noise; null where missing."""
    stripped = column.str.replace_all(NOISE, "")
    missing = stripped.str.to_lowercase().is_in(MISSING)
    return pl.select(pl.when(missing).then(None).otherwise(stripped)).to_series()


def _first(cells: dict[str, pl.Series], pattern: str) -> tuple[int, str] | None:
    """Row and column of the first cell that matches."""
    hits = {name: column.str.contains(pattern).fill_null(False).arg_true() for name, column in cells.items()}
    return min(((int(at[0]), name) for name, at in hits.items() if len(at)), key=lambda hit: hit[0], default=None)


def _decimal_comma(cells: dict[str, pl.Series], config: DataConfig, source: Source, rows: np.ndarray, german: bool) -> bool:
    """The one decision for the file."""
    if config.decimal_comma is not None:
        return config.decimal_comma
    comma, point = _first(cells, SHOWS[","]), _first(cells, SHOWS[r"\."])
    if comma and point:
        (i, one), (j, two) = comma, point
        raise source.error(
            int(rows[i]),
            f"column {one}: {cells[one][i]!r} has a decimal comma, but {cells[two][j]!r} (column {two}, "
            f"{source.at(int(rows[j]))}) a decimal point: write one way, or set data.decimal_comma",
        )
    if comma or point:
        return comma is not None
    unclear = _first(cells, r"[.,]" if german else ",")
    if unclear:
        i, name = unclear
        raise source.error(
            int(rows[i]),
            f"column {name}: {cells[name][i]!r} may have a decimal sign or a thousands sign, and no other cell decides: "
            "set data.decimal_comma",
        )
    return False
