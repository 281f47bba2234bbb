"""The 12 figures of an epoch in float64, straight from their definitions."""

import numpy as np


def monitor(rewards, actions):
    """rewards [S], actions [S] -> float64 [12]."""
    rewards, actions = np.asarray(rewards, np.float64), np.asarray(actions)
    finite = rewards[np.isfinite(rewards)]
    mean = finite.mean() if len(finite) else np.nan
    std = finite.std(ddof=1) if len(finite) > 1 else np.nan
    low, high = (finite.min(), finite.max()) if len(finite) else (np.nan, np.nan)
    varies = len(finite) > 1 and std > 1e-6 * max(abs(low), abs(high))
    counts = np.bincount(actions // 9, minlength=5)
    return np.array([mean, std, low, high, mean / std if varies else np.nan, *counts, len(rewards), len(rewards) - len(finite)])
