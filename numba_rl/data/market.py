"""From settings to what training and evaluation see: bars, scaled features and ranges, warm-up rows dropped.

A decision at bar t uses features[t]. A training or validation range [a, b) is played with decisions at a .. b-2 and its last mark at
close b-1; a test range with decisions at a-1 .. b-2, so that the first test bar's profit counts.
"""

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from numba_rl.config import Config
from numba_rl.data.bars import Bars, read_bars
from numba_rl.data.feature_table import FeatureTable, read_features
from numba_rl.data.features import REGIME, REGIME_WARMUP, WARMUP, compute_features, compute_regime
from numba_rl.data.scaling import Scaling
from numba_rl.data.windows import Range, bars_needed, describe_need, split
from numba_rl.errors import CheckpointError, ConfigError


@dataclass(frozen=True)
class Market:
    """One instrument's bars with their features. T counts the bars after the warm-up; arrays are C-contiguous and not written to."""

    timestamp: np.ndarray  # int64 [T], ns since 1970 UTC, bar open time
    prices: np.ndarray  # float64 [T, 4]: open, high, low, close
    volume: np.ndarray | None  # float64 [T]
    features: np.ndarray  # float32 [T, F], scaled
    raw_features: np.ndarray  # float32 [T, F]; [0, F] in a market that is only trained on
    regime: (
        np.ndarray
    )  # float32 [T, 3], unscaled: features 3, 40, 41 (log close return, trend strength, volatility regime), whatever the set
    names: tuple[str, ...]  # of the features, length F
    scaling: Scaling
    train: Range
    validation: Range
    test: Range
    warmup: int  # bars of the file that were dropped before bar 0 here
    interval_ns: int
    bars_per_year: float  # math.nan: unknown
    source: str
    notices: tuple[str, ...]
    bars_digest: str  # SHA-256 (hex) of all bars of the file
    features_digest: str  # SHA-256 (hex) of names and unscaled features

    def __len__(self) -> int:
        return len(self.timestamp)

    def fit_scaling(self, rows: Range) -> Scaling:
        """A scaling fitted on the bars of one range, such as a fold's training bars."""
        return Scaling.fit(self.raw_features[rows.start : rows.stop], self.scaling.clip, self.names, self.source)

    def for_training(self) -> "Market":
        """The same market without what only another scaling would need (unscaled features, volume): its memory is free once this is gone."""
        return replace(self, raw_features=np.empty((0, len(self.names)), np.float32), volume=None)

    def with_scaling(self, scaling: Scaling) -> "Market":
        """The same market, its features scaled by `scaling`. CheckpointError: it was fitted on other features."""
        _require_same_features(scaling, self.names, self.source)
        if len(self.raw_features) != len(self):
            raise ValueError("a market for training has no unscaled features left to scale")
        return replace(self, scaling=scaling, features=scaling.apply(self.raw_features, self.source))


def load_market(config: Config, bars: Bars | None = None, scaling: Scaling | None = None) -> Market:
    """Read (unless `bars` are given), compute features, drop the warm-up, split, and scale by the training rows.

    scaling: a trained policy's own, instead of a fit; data.split may then leave the training range empty (such as [0, 0, 1]).
    Raises DataError (a file that cannot be trusted or is too short: bars found and needed), ConfigError, CheckpointError.
    """
    data = config.data
    if data.split[0] == 0 and scaling is None:
        raise ConfigError(f"data.split = {list(data.split)} leaves no bars to train on; give the first share more than 0")
    own = data.features != "default"
    if bars is None:
        if data.path is None:
            raise ConfigError("data.path is not set; name a market file (--data FILE)")
        warmup = REGIME_WARMUP if own else WARMUP
        bars = read_bars(data.path, data, bars_needed(data.split, warmup), describe_need(data.split, warmup))
    regime = compute_regime(bars, data.price_mode) if own else None
    table = read_features(data.features, bars, data) if own else compute_features(bars, data.price_mode)
    warmup = max(table.warmup, regime.warmup) if own else table.warmup
    train, validation, test = split(len(bars), data.split, warmup, bars.source)
    raw = np.ascontiguousarray(table.values[warmup:])
    if scaling is None:
        scaling = Scaling.fit(raw[train.start : train.stop], data.feature_clip, table.names, bars.source)
    _require_same_features(scaling, table.names, bars.source)
    return Market(
        timestamp=np.ascontiguousarray(bars.timestamp[warmup:]),
        prices=np.ascontiguousarray(bars.prices[warmup:]),
        volume=None if bars.volume is None else np.ascontiguousarray(bars.volume[warmup:]),
        features=scaling.apply(raw, bars.source),
        raw_features=raw,
        regime=np.ascontiguousarray(regime.values[warmup:] if own else raw[:, REGIME]),
        names=table.names,
        scaling=scaling,
        train=train,
        validation=validation,
        test=test,
        warmup=warmup,
        interval_ns=bars.interval_ns,
        bars_per_year=bars.bars_per_year,
        source=bars.source,
        notices=bars.notices,
        bars_digest=bars.digest(),
        features_digest=_digest(table, raw),
    )


def _digest(table: FeatureTable, raw: np.ndarray) -> str:
    hashed = hashlib.sha256("\n".join(table.names).encode())
    hashed.update(np.ascontiguousarray(raw, "<f4").data)
    return hashed.hexdigest()


def _require_same_features(scaling: Scaling, names: tuple[str, ...], source: str) -> None:
    if scaling.names != names:
        other = next((name for name in (*names, *scaling.names) if (name in names) != (name in scaling.names)), "their order")
        raise CheckpointError(
            f"{source}: the policy was trained on {len(scaling.names)} features, these are {len(names)} (the first difference: {other}); "
            "use the data.features of its training, and the version that meta.json names"
        )
