"""Technical indicators over whole series: float64 [T] -> float64 [T], each from the last bars alone and finite for any finite input.

Prices come in as x: the natural log of the price, or the price itself where prices may be zero or negative (features.py decides), so
that differences of x are log returns or price differences. Averages are plain means over a window, never recursive: a value forgets a
bar completely once it has left the window, and does not depend on where the file starts. Where a formula would divide zero by zero (flat
bars, no volume) the result is its neutral value.
"""

import math

import numpy as np

from numba_rl.data.rolling import rolling_max, rolling_mean, rolling_min, rolling_moments, rolling_sum


def divide(numerator: np.ndarray, denominator: np.ndarray, neutral: float) -> np.ndarray:
    """numerator / denominator where the denominator is positive, `neutral` elsewhere."""
    return np.divide(numerator, denominator, out=np.full(len(denominator), neutral), where=denominator > 0)


def change(x: np.ndarray, bars: int) -> np.ndarray:
    """x[t] - x[t-bars]; 0 for the first `bars` rows, which belong to the warm-up."""
    out = np.zeros(len(x))
    out[bars:] = x[bars:] - x[: max(len(x) - bars, 0)]
    return out


def previous(x: np.ndarray) -> np.ndarray:
    """x[t-1]; x[0] for the first row, which belongs to the warm-up."""
    return np.concatenate([x[:1], x[:-1]])


def zscore(x: np.ndarray, window: int) -> np.ndarray:
    """(x - mean) / population standard deviation of the window; within +-sqrt(window - 1), 0 when flat."""
    mean, variance = rolling_moments(x, window)
    return divide(x - mean, np.sqrt(variance), 0.0)


def rsi(returns: np.ndarray, window: int) -> np.ndarray:
    """Relative strength index with plain averages (Cutler): 100 gains / (gains + losses), in [0, 100], 50 when flat."""
    gains = rolling_sum(np.maximum(returns, 0.0), window)
    losses = rolling_sum(np.maximum(-returns, 0.0), window)
    return 100.0 * divide(gains, gains + losses, 0.5)


def range_position(high: np.ndarray, low: np.ndarray, close: np.ndarray, window: int) -> np.ndarray:
    """(close - lowest low) / (highest high - lowest low), in [0, 1], 0.5 when flat: stochastic %K / 100, Williams %R / 100 + 1."""
    lowest = rolling_min(low, window)
    return divide(close - lowest, rolling_max(high, window) - lowest, 0.5)


def true_range(high: np.ndarray, low: np.ndarray, close: np.ndarray) -> np.ndarray:
    """Range of the bar with the previous close taken in (Wilder 1978)."""
    before = previous(close)
    return np.maximum(high, before) - np.minimum(low, before)


def directional(high: np.ndarray, low: np.ndarray, close: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """+DI and -DI (Wilder 1978) with plain averages, in [0, 100], 0 when flat."""
    up, down = change(high, 1), -change(low, 1)
    plus = np.where((up > down) & (up > 0), up, 0.0)
    minus = np.where((down > up) & (down > 0), down, 0.0)
    total = rolling_sum(true_range(high, low, close), window)
    return 100.0 * divide(rolling_sum(plus, window), total, 0.0), 100.0 * divide(rolling_sum(minus, window), total, 0.0)


def adx(plus: np.ndarray, minus: np.ndarray, window: int) -> np.ndarray:
    """Average directional index: mean of 100 |+DI - -DI| / (+DI + -DI), in [0, 100], 0 when flat."""
    return rolling_mean(100.0 * divide(np.abs(plus - minus), plus + minus, 0.0), window)


def close_in_bar(high: np.ndarray, low: np.ndarray, close: np.ndarray) -> np.ndarray:
    """Where the close lies in its bar: -1 at the low, +1 at the high, 0 for a bar without a range."""
    return divide(2.0 * close - high - low, high - low, 0.0)


def root_mean_square(returns: np.ndarray, window: int) -> np.ndarray:
    """Close-to-close volatility per bar, no mean subtracted."""
    return np.sqrt(rolling_sum(np.square(returns), window) / window)


def parkinson(high: np.ndarray, low: np.ndarray, window: int) -> np.ndarray:
    """Volatility per bar from high and low (Parkinson 1980)."""
    return np.sqrt(rolling_sum(np.square(high - low), window) / (window * 4.0 * math.log(2.0)))


def garman_klass(open_: np.ndarray, high: np.ndarray, low: np.ndarray, close: np.ndarray, window: int) -> np.ndarray:
    """Volatility per bar from open, high, low and close (Garman and Klass 1980)."""
    bar = 0.5 * np.square(high - low) - (2.0 * math.log(2.0) - 1.0) * np.square(close - open_)
    return np.sqrt(np.maximum(rolling_sum(bar, window), 0.0) / window)


def yang_zhang(open_: np.ndarray, high: np.ndarray, low: np.ndarray, close: np.ndarray, window: int) -> np.ndarray:
    """Volatility per bar with opening gaps and drift taken out (Yang and Zhang 2000)."""
    unbiased = window / (window - 1.0)
    gap = rolling_moments(open_ - previous(close), window)[1] * unbiased
    body = rolling_moments(close - open_, window)[1] * unbiased
    inside = (high - close) * (high - open_) + (low - close) * (low - open_)  # Rogers and Satchell 1991
    k = 0.34 / (1.34 + (window + 1.0) / (window - 1.0))
    return np.sqrt(np.maximum(gap + k * body + (1.0 - k) * rolling_sum(inside, window) / window, 0.0))


def efficiency(x: np.ndarray, window: int) -> np.ndarray:
    """Kaufman's efficiency ratio |x[t] - x[t-window]| / sum of |steps|: 0 a walk to nowhere, 1 a straight line, 0 when flat."""
    return divide(np.abs(change(x, window)), rolling_sum(np.abs(change(x, 1)), window), 0.0)


def realized_skewness(returns: np.ndarray, window: int) -> np.ndarray:
    """sqrt(n) sum r^3 / (sum r^2)^1.5 (Amaya et al. 2015), within +-sqrt(n), 0 when flat."""
    square = rolling_sum(np.square(returns), window)
    return math.sqrt(window) * divide(rolling_sum(returns**3, window), square**1.5, 0.0)


def realized_kurtosis(returns: np.ndarray, window: int) -> np.ndarray:
    """n sum r^4 / (sum r^2)^2 - 3 (Amaya et al. 2015), within [-2, n - 3], 0 when flat."""
    square = rolling_sum(np.square(returns), window)
    return window * divide(rolling_sum(np.square(np.square(returns)), window), np.square(square), 3.0 / window) - 3.0


def autocorrelation(returns: np.ndarray, window: int) -> np.ndarray:
    """sum r[t] r[t-1] / sqrt(sum r[t]^2 sum r[t-1]^2), within +-1: below 0 where moves are taken back, 0 when flat."""
    before = previous(returns)
    norm = np.sqrt(rolling_sum(np.square(returns), window)) * np.sqrt(rolling_sum(np.square(before), window))
    return divide(rolling_sum(returns * before, window), norm, 0.0)


def relative_volume(volume: np.ndarray, short: int, long: int) -> np.ndarray:
    """(a - b) / (a + b) of the mean volumes a, b over the short and the long window, within +-1, 0 without volume."""
    a, b = rolling_sum(volume, short) / short, rolling_sum(volume, long) / long
    return divide(a - b, a + b, 0.0)


def money_flow_index(typical: np.ndarray, volume: np.ndarray, window: int) -> np.ndarray:
    """100 x money flow of rising bars / money flow of rising and falling bars, in [0, 100], 50 without either."""
    flow, step = np.abs(typical) * volume, change(typical, 1)
    step[np.abs(step) <= 1e-12 * np.abs(typical)] = 0.0  # equal sums of three prices in another order
    rising = rolling_sum(np.where(step > 0, flow, 0.0), window)
    falling = rolling_sum(np.where(step < 0, flow, 0.0), window)
    return 100.0 * divide(rising, rising + falling, 0.5)


def weighted_by_volume(values: np.ndarray, volume: np.ndarray, window: int) -> np.ndarray:
    """sum volume x values / sum volume, 0 without volume."""
    return divide(rolling_sum(volume * values, window), rolling_sum(volume, window), 0.0)


def vwap_distance(high: np.ndarray, low: np.ndarray, close: np.ndarray, volume: np.ndarray, window: int) -> np.ndarray:
    """close - volume-weighted mean of the typical price (high + low + close) / 3, 0 without volume or when flat."""
    typical = (high + low + close) / 3.0
    total = rolling_sum(volume, window)
    base = typical[:1]  # keeps the sums small beside the price
    mean = divide(rolling_sum(volume * (typical - base), window), total, 0.0) + base
    flat = rolling_max(high, window) == rolling_min(low, window)  # the mean is then off by its rounding
    return np.where((total > 0) & ~flat, close - mean, 0.0)
