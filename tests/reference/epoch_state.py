"""The persistent epoch state in float64, straight from its definition."""

import numpy as np


def update(state, exact, returns, bars, ends, portfolio, shaping, multiplier=1.0):
    """(state float64 [8], exact int64 [2]) after a rollout; arguments as for the kernel."""
    state, exact = np.array(state, np.float64), np.array(exact, np.int64)
    for row in np.abs(np.asarray(returns, np.float64))[bars]:
        value = row.mean()
        state[0] = 0.99 * state[0] + 0.01 * value
        state[1] += 0.01 * state[0] * np.sign(value - state[1])
    equity = portfolio[:, 0] + portfolio[:, 1] * portfolio[:, 5] * multiplier
    state[2:4] = shaping.mean(0)
    state[4] = (equity / portfolio[:, 3]).mean()
    state[5] = max(state[5], (portfolio[:, 9] / portfolio[:, 3]).max())
    exact += [(ends != 0).sum(), bars.size]
    state[6:] = exact
    return state, exact
