"""Sums, extremes and moments over the last `window` values of a series, float64 [T] -> float64 [T].

The series is cut into blocks of `window` values, counted from its first value. A window that ends in block b is the tail of block b - 1
and the head of block b, and both are plain accumulations inside one block (van Herk 1992, Gil and Werman 1993). So the cost is O(T)
whatever the window, and a result is made of its own window's values alone: the usual running sum keeps the rounding error of a
value for ever after it has left, and would turn flat prices after a spike into noise. It also depends on no later value and not
on T, so that appending values leaves earlier results unchanged bit for bit.

The first window - 1 results are NaN: their window is not full (`growing_mean` fills them).
"""

import numpy as np


def _blocks(x: np.ndarray, window: int) -> np.ndarray:
    """[T] -> [ceil(T / window), window], padded with zeros that no result before T reads."""
    padded = np.zeros(-(-len(x) // window) * window)
    padded[: len(x)] = x
    return padded.reshape(-1, window)


def _head(ufunc: np.ufunc, blocks: np.ndarray) -> np.ndarray:
    """[b, k]: block b from its start up to and including position k."""
    return ufunc.accumulate(blocks, axis=1)


def _tail(ufunc: np.ufunc, blocks: np.ndarray, empty: float) -> np.ndarray:
    """[b, k]: block b - 1 after position k, `empty` where that is nothing."""
    tail = np.full_like(blocks, empty)
    tail[1:, :-1] = ufunc.accumulate(blocks[:-1, :0:-1], axis=1)[:, ::-1]
    return tail


def _unblock(results: np.ndarray, n: int, window: int) -> np.ndarray:
    """[blocks, window] -> [T], NaN where the window is not full."""
    out = results.reshape(-1)[:n]
    out[: window - 1] = np.nan
    return out


def _windowed(ufunc: np.ufunc, x: np.ndarray, window: int, empty: float) -> np.ndarray:
    blocks = _blocks(x, window)
    return _unblock(ufunc(_head(ufunc, blocks), _tail(ufunc, blocks, empty)), len(x), window)


def rolling_sum(x: np.ndarray, window: int) -> np.ndarray:
    """Sum of x[t-window+1 .. t]."""
    return _windowed(np.add, x, window, 0.0)


def rolling_max(x: np.ndarray, window: int) -> np.ndarray:
    """Largest of x[t-window+1 .. t]."""
    return _windowed(np.maximum, x, window, -np.inf)


def rolling_min(x: np.ndarray, window: int) -> np.ndarray:
    """Smallest of x[t-window+1 .. t]."""
    return _windowed(np.minimum, x, window, np.inf)


class _Parts:
    """The two parts of each window, as deviations from an anchor that lies in the window.

    The head's anchor is its block's first value, the tail's its block's last. As an anchor a is one of the n values it serves,
    n (mean - a)^2 <= (n - 1) M2, M2 their sum of squared deviations from the mean: subtracting n (mean - a)^2 from the
    sum of (x - a)^2 loses at most a factor n in precision, at any price level, and equal values give exactly zero.
    """

    def __init__(self, x: np.ndarray, window: int):
        blocks = _blocks(x, window)
        self.anchor = blocks[:, :1]
        self.head = blocks - self.anchor
        self.tail = blocks - blocks[:, -1:]
        self.head_count = np.arange(1.0, window + 1)
        self.tail_count = window - self.head_count
        self.head_sum = _head(np.add, self.head)
        self.tail_sum = _tail(np.add, self.tail, 0.0)
        between = np.zeros((len(blocks), 1))
        between[1:, 0] = blocks[1:, 0] - blocks[:-1, -1]
        # head mean - tail mean; the tail of no values has weight 0 in all that follows
        self.delta = between + self.head_sum / self.head_count - self.tail_sum / np.maximum(self.tail_count, 1.0)
        self.mean = self.anchor + (self.head_sum / self.head_count - self.delta * (self.tail_count / window))


def rolling_mean(x: np.ndarray, window: int) -> np.ndarray:
    """Mean of x[t-window+1 .. t]; exactly x[t] where all are equal."""
    return _unblock(_Parts(x, window).mean, len(x), window)


def growing_mean(x: np.ndarray, window: int) -> np.ndarray:
    """`rolling_mean`, and the mean of x[0 .. t] while the window is not full."""
    mean = rolling_mean(x, window)
    start = x[: window - 1]
    first = start[:1]  # as an anchor: equal values have exactly their own mean
    mean[: window - 1] = first + np.cumsum(start - first) / np.arange(1.0, len(start) + 1)
    return mean


def rolling_moments(x: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and population variance of x[t-window+1 .. t]; the variance is exactly 0 where all are equal.

    The variances of the two parts are combined by Chan, Golub and LeVeque (1983): M2 = M2_a + M2_b + delta^2 n_a n_b / n.
    """
    p = _Parts(x, window)
    m2 = _head(np.add, np.square(p.head)) - np.square(p.head_sum) / p.head_count
    m2 += _tail(np.add, np.square(p.tail), 0.0) - np.square(p.tail_sum) / np.maximum(p.tail_count, 1.0)
    m2 += np.square(p.delta) * (p.head_count * p.tail_count / window)
    variance = np.maximum(m2, 0.0) / window
    return _unblock(p.mean, len(x), window), _unblock(variance, len(x), window)
