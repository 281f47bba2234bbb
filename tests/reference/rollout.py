"""What a rollout must be, in float64: the network by NumPy, the game by the CPU stepper, the draw by its definition.

A rollout under test is checked with its own actions: the game is replayed with them, the network is evaluated on the replayed
states, and each action must be the one that its uniform picks, unless that lies within `edge` of a neighbour's interval.
"""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import reference.kept_rules  # noqa: F401 - compiles once a machine, not once a run

from numba_rl.kernels.slots import CLOCK_FIELDS, PLAYED
from numba_rl.kernels.step import Launch, steppers
from numba_rl.rules.barrier import BARRIER_FIELDS
from numba_rl.rules.diversity import WINDOW_FIELDS
from numba_rl.rules.parameters import rules_of
from numba_rl.rules.philox import ACTION, uniform
from numba_rl.rules.portfolio import PORTFOLIO_FIELDS
from numba_rl.rules.shaping import SHAPING_FIELDS

compiled_steps = cache(steppers)

SLOTS = ("portfolio", "barrier", "window", "shaping", "clock")
OUTPUTS = ("account", "bars", "final_account", "final_bars", "finals", "actions", "log_probs", "rewards", "ends", "status")


def actor(features, hidden, actions=45, seed=0, scale=1.0, dtype=np.float32):
    """(w1, b1, w2, b2, w3, b3) of a random actor, weights [out, in]; the last layer is `scale` times wider than usual."""
    rng = np.random.default_rng(seed)
    sizes = (features + 3, *hidden, actions)
    layers = []
    for index, (inputs, outputs) in enumerate(pairwise(sizes)):
        factor = scale if index == len(sizes) - 2 else 1.0
        layers += [rng.normal(0, factor / np.sqrt(inputs), (outputs, inputs)), rng.normal(0, 0.1, outputs)]
    return [np.ascontiguousarray(layer, dtype) for layer in layers]


def log_softmax(layers, states, slope=0.0):
    """Log-probabilities float64 [..., actions] of an actor on states [..., features + 3]."""
    x = np.asarray(states, np.float64)
    for index in range(0, len(layers), 2):
        x = x @ np.asarray(layers[index], np.float64).T + np.asarray(layers[index + 1], np.float64)
        if index < len(layers) - 2:
            x = np.where(x > 0, x, slope * x)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@dataclass
class Game:
    """A market, the slots of N episodes and the arrays of launches of L steps, all NumPy."""

    config: object
    prices: np.ndarray
    features: np.ndarray
    slots: int
    steps: int
    start: int = 0
    stop: int | None = None
    base: object = None

    def __post_init__(self):
        self.rules = rules_of(self.config, 525_600.0)
        self.stop = len(self.prices) if self.stop is None else self.stop
        self.launch = Launch(self.config.train.seed, self.start, self.stop, 0, 0, 1.0)
        self.compiled = compiled_steps(self.base)
        n, length = self.slots, min(self.rules.episode_length, self.stop - 1 - self.start)
        finals = self.steps // length + 2
        self.portfolio, self.barrier = np.zeros((n, PORTFOLIO_FIELDS)), np.zeros((n, BARRIER_FIELDS))
        self.window, self.shaping = np.zeros((n, WINDOW_FIELDS), np.int64), np.zeros((n, SHAPING_FIELDS))
        self.clock = np.zeros((n, CLOCK_FIELDS), np.int64)
        self.account, self.bars = np.zeros((self.steps + 1, n, 3), np.float32), np.zeros((self.steps + 1, n), np.int32)
        self.final_account, self.final_bars = np.zeros((finals, n, 3), np.float32), np.zeros((finals, n), np.int32)
        self.finals, self.status = np.zeros(n, np.int32), np.zeros(n, np.int32)
        self.actions = np.zeros((self.steps, n), np.int32)
        self.log_probs, self.rewards = (np.zeros((self.steps, n), np.float32) for _ in range(2))
        self.ends = np.zeros((self.steps, n), np.int16)
        width = self.features.shape[1] + 3
        self.states = np.zeros((self.steps + 1, n, width), np.float32)
        self.final_states = np.zeros((finals, n, width), np.float32)
        self.compiled.start(*self.state(), self.prices, self.features, self.states, 0, self.launch, self.rules)

    def state(self):
        """The slot arrays."""
        return tuple(getattr(self, name) for name in SLOTS)

    def outputs(self):
        """The arrays that a fused launch fills."""
        return tuple(getattr(self, name) for name in OUTPUTS)

    def replay(self, actions):
        """One launch of given actions on the CPU; `states` and `final_states` are then what the network saw."""
        self.actions[:] = actions
        self.finals[:] = 0
        for t in range(self.steps):
            self.compiled.step(
                t, np.zeros((self.slots, 1), np.float32), *self.state(), self.prices, self.features, self.states, self.final_states,
                self.finals, self.actions, self.log_probs, self.rewards, self.bars[:-1], self.ends, self.status,
                self.launch._replace(given=1), self.rules,
            )  # fmt: skip
        return self

    def next_launch(self):
        """Make the launch's last state the first of the next."""
        self.states[0] = self.states[-1]


def check_game(found: Game, truth: Game, *, money=1e-9, reward=1e-4):
    """Compare what a fused launch played with the replay of its actions (`truth` stands where `found` stood before the launch)."""
    truth.replay(found.actions)
    features = found.features.shape[1]
    for name in ("ends", "finals", "clock", "window"):
        np.testing.assert_array_equal(getattr(found, name), getattr(truth, name), err_msg=name)
    np.testing.assert_array_equal(found.bars[:-1], truth.bars[:-1])
    np.testing.assert_array_equal(found.bars[-1], truth.clock[:, 0])
    for name in ("portfolio", "barrier", "shaping"):
        np.testing.assert_allclose(getattr(found, name), getattr(truth, name), rtol=money, atol=money, err_msg=name)
    np.testing.assert_allclose(found.rewards, truth.rewards, rtol=reward, atol=reward)
    np.testing.assert_allclose(found.account, truth.states[:, :, features:], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found.features[found.bars], truth.states[:, :, :features])
    for e in range(found.slots):
        rows = range(found.finals[e])
        np.testing.assert_allclose(found.final_account[rows, e], truth.final_states[rows, e, features:], rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(found.features[found.final_bars[rows, e]], truth.final_states[rows, e, :features])


def check(found: Game, truth: Game, layers, *, slope=0.0, edge=1e-5, log_prob=1e-5, **tolerances):
    """`check_game`, and the draws of an actor: log-probabilities within `log_prob`."""
    played = truth.clock[:, PLAYED].copy()
    check_game(found, truth, **tolerances)
    wanted = log_softmax(layers, truth.states[:-1], slope)
    taken = np.take_along_axis(wanted, found.actions[:, :, None].astype(np.int64), -1)[:, :, 0]
    np.testing.assert_allclose(found.log_probs, taken, rtol=0, atol=log_prob)
    after = np.cumsum(np.exp(wanted), -1)
    high = np.take_along_axis(after, found.actions[:, :, None].astype(np.int64), -1)[:, :, 0]
    low = high - np.exp(taken)
    for t in range(found.steps):
        for e in range(found.slots):
            u = float(uniform(found.launch.seed, ACTION, e, 0, int(played[e]) + t, 0))
            assert low[t, e] - edge <= u <= high[t, e] + edge, (t, e, low[t, e], u, high[t, e])
