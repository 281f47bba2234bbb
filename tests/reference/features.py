"""The 51 features in float64, straight from their formulas: one window cut out of the bars for each value, no running state.

`reference(bars, t, price_mode)` -> dict of name to value for bar t, t >= 256. Neutral values where a formula divides by zero.
"""

import math

import numpy as np


def _divide(a, b, neutral):
    return a / b if b > 0 else neutral


class _At:
    """Bars up to and including t, as x (log prices, or prices)."""

    def __init__(self, bars, t, price_mode):
        part = slice(max(0, t - 1023), t + 1)
        prices = [np.asarray(p[part], np.float64) for p in (bars.open, bars.high, bars.low, bars.close)]
        self.typical_price = sum(prices[1:]) / 3
        self.o, self.h, self.l, self.c = [np.log(p) for p in prices] if price_mode == "log" else prices
        self.v = np.zeros(len(self.c)) if bars.volume is None else np.asarray(bars.volume[part], np.float64)
        self.stamp = int(bars.timestamp[t])

    def ret(self, n):
        return self.c[-1] - self.c[-1 - n]

    def r(self, n, before=0):
        """The last n one-bar returns, or those `before` bars earlier."""
        end = len(self.c) - before
        return [self.c[i] - self.c[i - 1] for i in range(end - n, end)]

    def rms(self, n):
        return math.sqrt(sum(x * x for x in self.r(n)) / n)

    def distance(self, n):
        return float(np.mean(self.c[-1] - self.c[-n:]))

    def zscore(self, n):
        shifted = self.c[-n:] - self.c[-1]
        return _divide(-float(np.mean(shifted)), float(np.std(shifted)), 0.0)

    def rsi(self, n):
        gains = sum(max(x, 0) for x in self.r(n))
        losses = sum(max(-x, 0) for x in self.r(n))
        return 100 * _divide(gains, gains + losses, 0.5)

    def position(self, n):
        low, high = min(self.l[-n:]), max(self.h[-n:])
        return _divide(self.c[-1] - low, high - low, 0.5)

    def true_range(self, i):
        return max(self.h[i], self.c[i - 1]) - min(self.l[i], self.c[i - 1])

    def di(self, end, n=14):
        """+DI and -DI over the n bars that end at index `end` (negative)."""
        plus = minus = total = 0.0
        for i in range(end - n + 1, end + 1):
            up, down = self.h[i] - self.h[i - 1], self.l[i - 1] - self.l[i]
            plus += up if up > down and up > 0 else 0.0
            minus += down if down > up and down > 0 else 0.0
            total += self.true_range(i)
        return 100 * _divide(plus, total, 0.0), 100 * _divide(minus, total, 0.0)

    def adx(self):
        return float(np.mean([100 * _divide(abs(p - m), p + m, 0.0) for p, m in (self.di(end) for end in range(-14, 0))]))

    def close_in_bar(self, i):
        return _divide(2 * self.c[i] - self.h[i] - self.l[i], self.h[i] - self.l[i], 0.0)

    def autocorrelation(self, n):
        now, before = self.r(n), self.r(n, 1)
        norm = math.sqrt(sum(x * x for x in now)) * math.sqrt(sum(x * x for x in before))
        return _divide(sum(x * y for x, y in zip(now, before, strict=True)), norm, 0.0)

    def parkinson(self, n):
        return math.sqrt(sum((self.h[i] - self.l[i]) ** 2 for i in range(-n, 0)) / n / (4 * math.log(2)))

    def garman_klass(self, n):
        total = sum(0.5 * (self.h[i] - self.l[i]) ** 2 - (2 * math.log(2) - 1) * (self.c[i] - self.o[i]) ** 2 for i in range(-n, 0))
        return math.sqrt(max(total, 0) / n)

    def yang_zhang(self, n):
        gap = np.var([self.o[i] - self.c[i - 1] for i in range(-n, 0)], ddof=1)
        body = np.var([self.c[i] - self.o[i] for i in range(-n, 0)], ddof=1)
        inside = np.mean(
            [(self.h[i] - self.c[i]) * (self.h[i] - self.o[i]) + (self.l[i] - self.c[i]) * (self.l[i] - self.o[i]) for i in range(-n, 0)]
        )
        k = 0.34 / (1.34 + (n + 1) / (n - 1))
        return math.sqrt(max(gap + k * body + (1 - k) * inside, 0))

    def relative_volume(self, short, long):
        a, b = float(np.mean(self.v[-short:])), float(np.mean(self.v[-long:]))
        return _divide(a - b, a + b, 0.0)

    def mfi(self, n):
        rising = falling = 0.0
        for i in range(-n, 0):
            step = self.typical_price[i] - self.typical_price[i - 1]
            if abs(step) > 1e-12 * abs(self.typical_price[i]):
                flow = abs(self.typical_price[i]) * self.v[i]
                rising, falling = (rising + flow, falling) if step > 0 else (rising, falling + flow)
        return 100 * _divide(rising, rising + falling, 0.5)

    def vwap_distance(self, n):
        away = sum(self.v[i] * (self.c[-1] - (self.h[i] + self.l[i] + self.c[i]) / 3) for i in range(-n, 0))
        return _divide(away, sum(self.v[-n:]), 0.0)

    def cmf(self, n):
        return _divide(sum(self.v[i] * self.close_in_bar(i) for i in range(-n, 0)), sum(self.v[-n:]), 0.0)

    def kurtosis(self, n):
        square = sum(x * x for x in self.r(n))
        return n * sum(x**4 for x in self.r(n)) / square**2 - 3 if square > 0 else 0.0

    def skewness(self, n):
        return _divide(math.sqrt(n) * sum(x**3 for x in self.r(n)), sum(x * x for x in self.r(n)) ** 1.5, 0.0)


def reference(bars, t, price_mode="log"):
    """Every feature of bar t, by name, float64."""
    s = _At(bars, t, price_mode)
    out = {"gap": s.o[-1] - s.c[-2], "body": s.c[-1] - s.o[-1], "range": s.h[-1] - s.l[-1]}
    out |= {f"return_{n}": s.ret(n) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256)}
    out |= {f"ma_distance_{n}": s.distance(n) for n in (8, 16, 32, 64, 128, 256, 1024)}
    out |= {"zscore_64": s.zscore(64), "bollinger_b_20": 0.5 + s.zscore(20) / 4, "rsi_14": s.rsi(14), "rsi_42": s.rsi(42)}
    out |= {"stochastic_k_14": 100 * s.position(14), "williams_r_28": 100 * s.position(28) - 100}
    plus, minus = s.di(-1)
    out |= {"directional_14": plus - minus, "adx_14": s.adx(), "close_in_bar": s.close_in_bar(-1)}
    out |= {f"range_position_{n}": s.position(n) for n in (64, 256)}
    out |= {f"autocorrelation_{n}": s.autocorrelation(n) for n in (16, 64)}
    out |= {"volatility_16": s.rms(16), "volatility_64": s.rms(64), "parkinson_16": s.parkinson(16), "garman_klass_32": s.garman_klass(32)}
    out |= {"yang_zhang_64": s.yang_zhang(64), "atr_14": float(np.mean([s.true_range(i) for i in range(-14, 0)]))}
    out |= {"skewness_64": s.skewness(64), "kurtosis_64": s.kurtosis(64)}
    out["trend_strength"] = _divide(abs(s.ret(64)), sum(abs(x) for x in s.r(64)), 0.0)
    out["volatility_regime"] = _divide(s.rms(32), s.rms(256), 1.0)
    out |= {
        "relative_volume_1": s.relative_volume(1, 64),
        "relative_volume_8": s.relative_volume(8, 128),
        "mfi_14": s.mfi(14),
        "cmf_21": s.cmf(21),
    }
    out["vwap_distance_32"] = s.vwap_distance(32)
    day = 86_400 * 10**9
    of_day, of_week = 2 * math.pi * (s.stamp % day) / day, 2 * math.pi * ((s.stamp // day + 3) % 7) / 7
    out |= {"time_of_day_sin": math.sin(of_day), "time_of_day_cos": math.cos(of_day)}
    out |= {"day_of_week_sin": math.sin(of_week), "day_of_week_cos": math.cos(of_week)}
    return out
