"""The 51 market features: float32 [T, 51], unscaled, row t from bars up to and including t.

`FEATURES` is the whole definition: index, name, formula, look-back, unit and the function that computes it. In the formulas o, h, l, c are
the bar's prices as x: their natural logs, or the prices themselves in arithmetic mode, which allows prices <= 0. Where the unit says
"log" it is price points in that mode; nothing else changes. tp = (h + l + c) / 3, v = volume, r = c[t] - c[t-1].
A feature's look-back is the number of bars before t that it reads; `sum(n)`, `mean(n)`, `max(n)`, `min(n)` run over the bars t-n+1 .. t.
`WARMUP` bars are dropped at the start of a file: a longer look-back reads what is there until the file is that long, since a file of a few
hundred bars would else be lost to one column.
"""

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np

from numba_rl.data import indicators as ind
from numba_rl.data.bars import Bars
from numba_rl.data.feature_table import FeatureTable
from numba_rl.data.rolling import growing_mean, rolling_mean
from numba_rl.errors import DataError

DAY_NS = 86_400_000_000_000
WARMUP = 256
REGIME = (3, 40, 41)  # log close return, trend strength, volatility regime: the game's rules read these


class _Series:
    """What the formulas start from: the bars' columns as x, float64 [T]."""

    def __init__(self, bars: Bars, price_mode: str):
        prices = [np.ascontiguousarray(p, np.float64) for p in (bars.open, bars.high, bars.low, bars.close)]
        self.open, self.high, self.low, self.close = (np.log(p) for p in prices) if price_mode == "log" else prices
        self.typical_price = (bars.high + bars.low + bars.close) / 3.0
        self.volume = np.zeros(len(bars)) if bars.volume is None else np.array(bars.volume, np.float64)
        self.timestamp = bars.timestamp

    @cached_property
    def returns(self) -> np.ndarray:
        return ind.change(self.close, 1)

    @cached_property
    def directional(self) -> tuple[np.ndarray, np.ndarray]:
        return ind.directional(self.high, self.low, self.close, 14)

    @cached_property
    def day_angle(self) -> np.ndarray:
        return (self.timestamp % DAY_NS) * (2.0 * np.pi / DAY_NS)

    @cached_property
    def week_angle(self) -> np.ndarray:
        return (self.timestamp // DAY_NS + 3) % 7 * (2.0 * np.pi / 7.0)  # 1 January 1970 was a Thursday; Monday is 0

    def return_over(self, bars: int) -> np.ndarray:
        return ind.change(self.close, bars)

    def distance_from_mean(self, window: int) -> np.ndarray:
        return self.close - growing_mean(self.close, window)

    def range_position(self, window: int) -> np.ndarray:
        return ind.range_position(self.high, self.low, self.close, window)

    def volatility_regime(self) -> np.ndarray:
        return ind.divide(ind.root_mean_square(self.returns, 32), ind.root_mean_square(self.returns, 256), 1.0)


class Feature(NamedTuple):
    """One column: its place, its name, what it is, how many earlier bars it reads, its unit, and the code that computes it."""

    index: int
    name: str
    formula: str
    lookback: int
    unit: str
    compute: Callable[[_Series], np.ndarray]

    @property
    def warmup(self) -> int:
        """Earlier bars that must be there."""
        return min(self.lookback, WARMUP)


_ROWS = (
    ("gap", "o[t] - c[t-1]", 1, "log", lambda s: s.open - ind.previous(s.close)),
    ("body", "c - o", 0, "log", lambda s: s.close - s.open),
    ("range", "h - l", 0, "log", lambda s: s.high - s.low),
    ("return_1", "c[t] - c[t-1]: log close return", 1, "log", lambda s: s.returns),
    ("return_2", "c[t] - c[t-2]", 2, "log", lambda s: s.return_over(2)),
    ("return_4", "c[t] - c[t-4]", 4, "log", lambda s: s.return_over(4)),
    ("return_8", "c[t] - c[t-8]", 8, "log", lambda s: s.return_over(8)),
    ("return_16", "c[t] - c[t-16]", 16, "log", lambda s: s.return_over(16)),
    ("return_32", "c[t] - c[t-32]", 32, "log", lambda s: s.return_over(32)),
    ("return_64", "c[t] - c[t-64]", 64, "log", lambda s: s.return_over(64)),
    ("return_128", "c[t] - c[t-128]", 128, "log", lambda s: s.return_over(128)),
    ("return_256", "c[t] - c[t-256]", 256, "log", lambda s: s.return_over(256)),
    ("ma_distance_8", "c - mean(8) c", 7, "log", lambda s: s.distance_from_mean(8)),
    ("ma_distance_16", "c - mean(16) c", 15, "log", lambda s: s.distance_from_mean(16)),
    ("ma_distance_32", "c - mean(32) c", 31, "log", lambda s: s.distance_from_mean(32)),
    ("ma_distance_64", "c - mean(64) c", 63, "log", lambda s: s.distance_from_mean(64)),
    ("ma_distance_128", "c - mean(128) c", 127, "log", lambda s: s.distance_from_mean(128)),
    ("ma_distance_256", "c - mean(256) c", 255, "log", lambda s: s.distance_from_mean(256)),
    ("ma_distance_1024", "c - mean(1024) c, of all bars while there are fewer", 1023, "log", lambda s: s.distance_from_mean(1024)),
    ("zscore_64", "(c - mean(64) c) / std(64) c", 63, "standard deviations", lambda s: ind.zscore(s.close, 64)),
    ("bollinger_b_20", "0.5 + (c - mean(20) c) / (4 std(20) c)", 19, "bands", lambda s: 0.5 + 0.25 * ind.zscore(s.close, 20)),
    ("rsi_14", "100 gains / (gains + losses), sum(14) of r's two sides", 14, "0 to 100", lambda s: ind.rsi(s.returns, 14)),
    ("rsi_42", "the same over 42 bars", 42, "0 to 100", lambda s: ind.rsi(s.returns, 42)),
    ("stochastic_k_14", "100 (c - min(14) l) / (max(14) h - min(14) l)", 13, "0 to 100", lambda s: 100.0 * s.range_position(14)),
    ("williams_r_28", "100 (c - max(28) h) / (max(28) h - min(28) l)", 27, "-100 to 0", lambda s: 100.0 * (s.range_position(28) - 1.0)),
    ("directional_14", "+DI - -DI, 100 sum(14) DM / sum(14) true range", 14, "-100 to 100", lambda s: s.directional[0] - s.directional[1]),
    ("adx_14", "mean(14) of 100 |+DI - -DI| / (+DI + -DI)", 27, "0 to 100", lambda s: ind.adx(*s.directional, 14)),
    ("close_in_bar", "(2c - h - l) / (h - l)", 0, "-1 to 1", lambda s: ind.close_in_bar(s.high, s.low, s.close)),
    ("range_position_64", "(c - min(64) l) / (max(64) h - min(64) l)", 63, "0 to 1", lambda s: s.range_position(64)),
    ("range_position_256", "(c - min(256) l) / (max(256) h - min(256) l)", 255, "0 to 1", lambda s: s.range_position(256)),
    (
        "autocorrelation_16",
        "sum(16) r[t] r[t-1] / sqrt(sum(16) r[t]^2 sum(16) r[t-1]^2)",
        17,
        "-1 to 1",
        lambda s: ind.autocorrelation(s.returns, 16),
    ),
    ("autocorrelation_64", "the same over 64 bars", 65, "-1 to 1", lambda s: ind.autocorrelation(s.returns, 64)),
    ("volatility_16", "sqrt(mean(16) r^2)", 16, "log per bar", lambda s: ind.root_mean_square(s.returns, 16)),
    ("volatility_64", "sqrt(mean(64) r^2)", 64, "log per bar", lambda s: ind.root_mean_square(s.returns, 64)),
    ("parkinson_16", "sqrt(mean(16) (h - l)^2 / (4 ln 2))", 15, "log per bar", lambda s: ind.parkinson(s.high, s.low, 16)),
    (
        "garman_klass_32",
        "sqrt(mean(32) of 0.5 (h - l)^2 - (2 ln 2 - 1) (c - o)^2)",
        31,
        "log per bar",
        lambda s: ind.garman_klass(s.open, s.high, s.low, s.close, 32),
    ),
    (
        "yang_zhang_64",
        "sqrt(var(64) gap + k var(64) body + (1 - k) Rogers-Satchell)",
        64,
        "log per bar",
        lambda s: ind.yang_zhang(s.open, s.high, s.low, s.close, 64),
    ),
    ("atr_14", "mean(14) true range", 14, "log", lambda s: rolling_mean(ind.true_range(s.high, s.low, s.close), 14)),
    ("skewness_64", "8 sum(64) r^3 / (sum(64) r^2)^1.5", 64, "-8 to 8", lambda s: ind.realized_skewness(s.returns, 64)),
    ("kurtosis_64", "64 sum(64) r^4 / (sum(64) r^2)^2 - 3", 64, "-2 to 61", lambda s: ind.realized_kurtosis(s.returns, 64)),
    ("trend_strength", "|c[t] - c[t-64]| / sum(64) |r|", 64, "0 (none) to 1", lambda s: ind.efficiency(s.close, 64)),
    ("volatility_regime", "sqrt(mean(32) r^2) / sqrt(mean(256) r^2)", 256, "1 is usual, up to 2.83", lambda s: s.volatility_regime()),
    ("relative_volume_1", "(v - m) / (v + m), m = mean(64) v", 63, "-1 to 1", lambda s: ind.relative_volume(s.volume, 1, 64)),
    (
        "relative_volume_8",
        "(a - m) / (a + m), a = mean(8) v, m = mean(128) v",
        127,
        "-1 to 1",
        lambda s: ind.relative_volume(s.volume, 8, 128),
    ),
    (
        "mfi_14",
        "100 rising / (rising + falling), sum(14) of price x v where tp rose or fell",
        14,
        "0 to 100",
        lambda s: ind.money_flow_index(s.typical_price, s.volume, 14),
    ),
    (
        "cmf_21",
        "sum(21) v close_in_bar / sum(21) v",
        20,
        "-1 to 1",
        lambda s: ind.weighted_by_volume(ind.close_in_bar(s.high, s.low, s.close), s.volume, 21),
    ),
    ("vwap_distance_32", "c - sum(32) v tp / sum(32) v", 31, "log", lambda s: ind.vwap_distance(s.high, s.low, s.close, s.volume, 32)),
    ("time_of_day_sin", "sin(2 pi share of the UTC day)", 0, "-1 to 1", lambda s: np.sin(s.day_angle)),
    ("time_of_day_cos", "cos(2 pi share of the UTC day)", 0, "-1 to 1", lambda s: np.cos(s.day_angle)),
    ("day_of_week_sin", "sin(2 pi day / 7), Monday 0", 0, "-1 to 1", lambda s: np.sin(s.week_angle)),
    ("day_of_week_cos", "cos(2 pi day / 7)", 0, "-1 to 1", lambda s: np.cos(s.week_angle)),
)

FEATURES: tuple[Feature, ...] = tuple(Feature(i, *row) for i, row in enumerate(_ROWS))
NAMES: tuple[str, ...] = tuple(f.name for f in FEATURES)
REGIME_WARMUP = max(FEATURES[i].warmup for i in REGIME)


def compute_features(bars: Bars, price_mode: str = "log") -> FeatureTable:
    """The 51 features of `FEATURES` for every bar: float32 [T, 51], NaN where a column's look-back (up to `WARMUP` of it) is not there yet.

    Row t does not change, bit for bit, when later bars are appended or altered. DataError: a price <= 0 in "log" mode, or prices or
    volumes so large that a feature overflows.
    """
    return FeatureTable(_compute(bars, price_mode, FEATURES), NAMES, WARMUP)


def compute_regime(bars: Bars, price_mode: str = "log") -> FeatureTable:
    """Only the three features that the game's rules read (`REGIME`): float32 [T, 3]."""
    chosen = tuple(FEATURES[i] for i in REGIME)
    return FeatureTable(_compute(bars, price_mode, chosen), tuple(f.name for f in chosen), REGIME_WARMUP)


def _compute(bars: Bars, price_mode: str, features: tuple[Feature, ...]) -> np.ndarray:
    if price_mode == "log":
        _refuse_prices_below_zero(bars)
    columns = np.empty((len(features), len(bars)), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # an overflow is found, and named, below
        series = _Series(bars, price_mode)
        for column, feature in zip(columns, features, strict=True):
            column[:] = feature.compute(series)
            column[: feature.warmup] = np.nan
            bad = np.flatnonzero(~np.isfinite(column[feature.warmup :]))
            if len(bad):
                row = int(bad[0]) + feature.warmup
                raise DataError(
                    f"{bars.source}: feature {feature.name} overflows at bar {row + 1} of {len(bars)}: "
                    f"close {bars.close[row]:g}, volume {0.0 if bars.volume is None else bars.volume[row]:g}; check the bars before it, or rescale them"
                )
    return np.ascontiguousarray(columns.T)


def _refuse_prices_below_zero(bars: Bars) -> None:
    lowest = np.minimum(np.minimum(bars.open, bars.close), bars.low)
    bad = np.flatnonzero(~(lowest > 0))
    if len(bad):
        raise DataError(
            f"{bars.source}: bar {bad[0] + 1} has a price <= 0 (low {bars.low[bad[0]]:g}; {len(bad)} such bars), which has no log return; "
            'correct the file, or set data.price_mode = "arithmetic"'
        )
