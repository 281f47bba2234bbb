"""Q-learning by its definitions, one sample after the other, in float64."""

import numpy as np


def n_step(rewards, ends, n, gamma):
    """For each step t of one slot: (return, discount, k, end) over k = min(n, steps to the episode's end); None where too few follow.

    rewards [T], ends [T]: 0 goes on, -1 ruin, >= 1 cut.
    """
    found = []
    for t in range(len(rewards)):
        total, discount = 0.0, 1.0
        for k in range(1, n + 1):
            if t + k > len(rewards):
                found.append(None)
                break
            total += discount * rewards[t + k - 1]
            discount *= gamma
            if ends[t + k - 1] != 0 or k == n:
                found.append((total, discount, k, ends[t + k - 1]))
                break
    return found


def heads_of(q, sizes):
    """The heads' parts of a row of values."""
    return np.split(np.asarray(q, np.float64), np.cumsum(sizes)[:-1])


def target(reward, discount, terminated, online_next, target_next, sizes):
    """Double-DQN target: the online network picks for each head, the target network's values are averaged over the heads."""
    if terminated:
        return float(reward)
    picked = [int(np.argmax(part)) for part in heads_of(online_next, sizes)]
    return float(reward + discount * np.mean([part[a] for part, a in zip(heads_of(target_next, sizes), picked, strict=True)]))


def huber(error, edge=1.0):
    """0.5 e^2 up to the edge, linear beyond."""
    return 0.5 * error**2 if abs(error) <= edge else edge * (abs(error) - 0.5 * edge)


def quantile_huber(predicted, levels, targets, edge=1.0):
    """Loss of one sample (Dabney et al. 2018, equation 3): summed over the levels, averaged over the targets."""
    total = 0.0
    for value, tau in zip(predicted, levels, strict=True):
        total += np.mean([abs(tau - (y - value < 0)) * huber(y - value, edge) / edge for y in targets])
    return total


def dueling(value, advantage):
    """q = value + advantage - mean advantage."""
    return value + advantage - advantage.mean(-1, keepdims=True)
