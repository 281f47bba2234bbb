"""Circular block bootstrap (Politis and Romano 1992) of sums and Sharpe ratios.

Blocks keep the dependence between neighbouring bars and wrap from the last bar to the first. Sums of blocks come from
prefix sums, so that a resample of n bars costs n / block additions. Deterministic given the seed.
"""

import math
from collections.abc import Iterator

import numpy as np

CHUNK = 2_000_000  # block starts drawn at a time


def block_length(*series: np.ndarray) -> int:
    """Block length in bars for resampling series [n] together.

    The automatic rule for the circular bootstrap (Politis and White 2004, corrected by Patton, Politis and White 2009),
    for each series and for its squares (a Sharpe ratio depends on both); the largest is taken, at least n^(1/3) and at
    most min(3 sqrt(n), n / 3).
    """
    n = len(series[0])
    longest = max(1, int(min(3 * math.sqrt(n), n / 3)))
    wanted = [math.ceil(n ** (1 / 3))]
    for values in series:
        centred = np.asarray(values, np.float64) - np.mean(values)
        wanted += [_automatic_length(centred), _automatic_length(centred * centred)]
    return min(longest, max(wanted))


def _automatic_length(values: np.ndarray) -> int:
    n = len(values)
    runs = max(5, int(math.sqrt(math.log10(n))))
    lags = min(n - 1, math.ceil(math.sqrt(n)) + runs)
    spectrum = np.fft.rfft(values - values.mean(), 2 * n)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2, 2 * n)[: lags + 1] / n
    if covariance[0] <= 0:
        return 1
    small = np.abs(covariance[1:] / covariance[0]) < 2 * math.sqrt(math.log10(n) / n)
    quiet = np.flatnonzero(np.convolve(small, np.ones(runs), "valid") == runs)  # first of `runs` small correlations in a row
    last = int(quiet[0]) if quiet.size else int(np.flatnonzero(~small)[-1]) + 1
    bandwidth = min(2 * max(last, 1), lags)
    k = np.arange(1, bandwidth + 1)
    taper = np.minimum(1.0, 2.0 * (1.0 - k / bandwidth))  # flat top
    density = covariance[0] + 2 * np.sum(taper * covariance[1 : bandwidth + 1])
    slope = 2 * np.sum(taper * k * covariance[1 : bandwidth + 1])
    if density <= 0:
        return 1
    return max(1, math.ceil((2 * slope**2 / (4 / 3 * density**2) * n) ** (1 / 3)))


def resampled_sums(values: np.ndarray, block: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Sums [M, S] over n bars of M resamples of the columns of values [n, S], chunk by chunk; blocks wrap around."""
    n = len(values)
    blocks = math.ceil(n / block)
    prefix = np.zeros((n + block + 1, values.shape[1]))
    np.cumsum(np.concatenate([values, values[:block]]), axis=0, out=prefix[1:])
    whole = prefix[block : n + block] - prefix[:n]
    rest = n - (blocks - 1) * block
    part = prefix[rest : n + rest] - prefix[:n]
    rng = np.random.default_rng(seed)
    chunk = max(1, CHUNK // blocks)
    for done in range(0, resamples, chunk):
        starts = rng.integers(0, n, (min(chunk, resamples - done), blocks))
        yield np.stack([column[starts[:, :-1]].sum(1) for column in whole.T], 1) + part[starts[:, -1]]


def resampled_sharpes(series: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Sharpe ratios per bar of resamples of series [n] from their sums [M, 2] of centred values and squares; 0 where all was 0."""
    n, mean = len(series), series.mean()
    noise = 1e-6 * series.std()  # differences of prefix sums leave about sqrt(eps) of the deviation
    variance = np.maximum(sums[:, 1] - sums[:, 0] ** 2 / n, 0.0) / (n - 1)
    average = mean + sums[:, 0] / n
    std = np.sqrt(variance)
    ratio = np.divide(average, std, out=np.full(len(sums), np.nan), where=std > noise)
    return np.where((std <= noise) & (np.abs(average) <= noise), 0.0, ratio)


def centred_columns(series: np.ndarray) -> list[np.ndarray]:
    """What ``resampled_sharpes`` needs summed: series [n] less its mean, and the squares of that."""
    centred = series - series.mean()
    return [centred, centred * centred]
