"""What a Q-network's rollout must choose, in float64: the advantages by NumPy, epsilon-greedy by its definition."""

import numpy as np

from numba_rl.kernels.slots import PLAYED
from numba_rl.rules.philox import EXPLORE, below, uniform

OUTPUTS = ("account", "bars", "final_account", "final_bars", "finals", "actions", "rewards", "ends", "status")


def advantages(layers, states):
    """float64 [..., actions] of weights [out, in] and biases in order, ReLU between, on states [..., features + 3]."""
    x = np.asarray(states, np.float64)
    for index in range(0, len(layers), 2):
        x = x @ np.asarray(layers[index], np.float64).T + np.asarray(layers[index + 1], np.float64)
        if index < len(layers) - 2:
            x = np.maximum(x, 0.0)
    return x


def epsilon(choice, steps):
    """Share of random actions after `steps` of all slots."""
    start, end, duration = (float(value) for value in choice[:3])
    return start + (end - start) * min(1.0, steps / duration)


def check_choices(found, truth, layers, choice, played, tie):
    """Each action of `found` is the random one where its slot explores, else one whose advantage lies within `tie` of the largest.

    truth: the replay of the same actions (its states are what was seen); played int64 [N]: steps of each slot before the launch;
    tie: a share of the spread of the advantages of all states. Returns (explored, ties): how many actions were random, and how
    many greedy ones were not the float64 network's.
    """
    values = advantages(layers, truth.states[:-1])
    spread = values.std()
    seed, explored, ties = found.launch.seed, 0, 0
    for t in range(found.steps):
        for e in range(found.slots):
            step = int(played[e]) + t
            action = found.actions[t, e]
            if uniform(seed, EXPLORE, e, 0, step, 0) < np.float32(epsilon(choice, step * found.slots)):
                explored += 1
                assert action == below(45, seed, EXPLORE, e, 0, step, 1), (t, e)
            else:
                gap = values[t, e].max() - values[t, e, action]
                ties += gap > 0
                assert gap <= tie * spread, (t, e, gap, spread)
    return explored, ties


def played(game):
    """Steps that each slot has played, a copy."""
    return game.clock[:, PLAYED].copy()
