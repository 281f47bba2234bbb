"""Standardises features: float32 [n, F] -> (value - mean) / std, bounded to +-clip, float32 [n, F].

The statistics are fitted once, on training rows only, and are kept in the checkpoint: validation, test and later data are scaled by them.
"""

from dataclasses import dataclass

import numpy as np

from numba_rl.data.feature_table import require_finite
from numba_rl.errors import CheckpointError, DataError

_CHUNK = 1024  # rows scaled at a time in float64; they stay in the cache
_RESOLUTION = 1e-7  # of a float32: a spread below this share of the values is their rounding


@dataclass(frozen=True)
class Scaling:
    """Mean and standard deviation of each feature over the training rows."""

    mean: np.ndarray  # float64 [F]
    std: np.ndarray  # float64 [F], > 0; 1 for a column that did not vary
    clip: float
    names: tuple[str, ...]  # of the columns, length F

    @classmethod
    def fit(cls, values: np.ndarray, clip: float, names: tuple[str, ...], source: str = "features") -> "Scaling":
        """Population mean and standard deviation of each column of float32 [n, F], n >= 1.

        DataError: no rows, or a value that is not finite (named by column and row).
        """
        if len(values) == 0:
            raise DataError(f"{source}: no training rows to fit the scaling on; give the training range more bars")
        require_finite(values, names, source)
        mean, std = np.empty(len(names)), np.empty(len(names))
        for j in range(len(names)):
            column = values[:, j].astype(np.float64)
            mean[j] = column.mean()
            std[j] = np.sqrt(np.square(column - mean[j]).mean())
            if std[j] <= _RESOLUTION * np.abs(column).max():
                std[j] = 1.0
        return cls(mean, std, float(clip), tuple(names))

    def apply(self, values: np.ndarray, source: str = "features") -> np.ndarray:
        """Scaled copy of float32 [n, F], C-contiguous, finite, within +-clip. DataError: a value that is not finite."""
        require_finite(values, self.names, source)
        out = np.empty(values.shape, np.float32)
        for lo in range(0, len(values), _CHUNK):
            scaled = values[lo : lo + _CHUNK] - self.mean
            scaled /= self.std
            np.clip(scaled, -self.clip, self.clip, out=scaled)
            out[lo : lo + _CHUNK] = scaled
        return out

    def to_dict(self) -> dict:
        """Plain lists and numbers that survive JSON exactly."""
        return {"names": list(self.names), "mean": self.mean.tolist(), "std": self.std.tolist(), "clip": self.clip}

    @classmethod
    def from_dict(cls, stored: dict) -> "Scaling":
        """The scaling that `to_dict` wrote. CheckpointError: it is incomplete or its numbers make no sense."""
        try:
            names, clip = tuple(str(name) for name in stored["names"]), float(stored["clip"])
            mean, std = np.array(stored["mean"], np.float64), np.array(stored["std"], np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"stored feature scaling cannot be read ({error}); the checkpoint is damaged: use another one") from error
        sound = mean.shape == std.shape == (len(names),) and np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all()
        if not (sound and 0 < clip < np.inf):
            raise CheckpointError("stored feature scaling has wrong shapes or values; the checkpoint is damaged: use another one")
        return cls(mean, std, clip, names)
