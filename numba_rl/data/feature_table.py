"""Feature columns beside bars, wherever they come from, and the one check that they are finite.

`read_features` reads a user's own columns: any number F >= 1, named, on the bars' stamps, float32 [T, F] like the 51 of features.py.
"""

from dataclasses import dataclass

import numpy as np

from numba_rl.errors import DataError


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
