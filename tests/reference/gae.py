"""Generalised advantage estimation in NumPy float64, written from the definition: sums of discounted deltas, no recursion."""

import numpy as np


def gae(rewards, values, ends, final_values, gamma, gae_lambda):
    """(advantages, returns) float64 [L, N]; arguments as in numba_rl.kernels.gae, any float type."""
    steps, slots = rewards.shape
    advantages = np.zeros((steps, slots))
    rewards, values, final_values = (np.asarray(array, np.float64) for array in (rewards, values, final_values))
    for e in range(slots):
        deltas = np.empty(steps)
        for t in range(steps):
            end = int(ends[t, e])
            following = values[t + 1, e] if end == 0 else 0.0 if end < 0 else final_values[end - 1, e]
            deltas[t] = rewards[t, e] + gamma * following - values[t, e]
        for t in range(steps):
            weight = 1.0
            for later in range(t, steps):
                advantages[t, e] += weight * deltas[later]
                if ends[later, e] != 0:
                    break
                weight *= gamma * gae_lambda
    return advantages, advantages + values[:-1]
