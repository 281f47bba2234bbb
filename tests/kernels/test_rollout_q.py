"""The fused rollout of a Q-network in the simulator, with tiny networks, against the CPU stepper and float64 values."""

import numpy as np
import pytest
import torch
from numba import njit
from reference.games import EVERYTHING, PRICES, RUIN, WILD, config
from reference.rollout import SLOTS, Game, actor, check_game
from reference.rollout_q import OUTPUTS, advantages, check_choices, played
from torch import nn

from numba_rl.gpu import SIMULATED
from numba_rl.kernels import select
from numba_rl.kernels.q_layout import as_float, as_pairs, packed, packing, q_layout, rounded, unpacked
from numba_rl.kernels.rollout_q import QPlan, QRollout, plan_q
from numba_rl.rules.reward import user_base

pytestmark = pytest.mark.skipif(not SIMULATED, reason="tiny shapes of the simulator; test_rollout_q_gpu has the real ones")

FEATURES, HIDDEN, HEAD = 5, (8, 6), 4
GREEDY = np.array([0.0, 0.0, 100.0, 0.0], np.float32)
HALF = np.array([0.8, 0.2, 60.0, 0.0], np.float32)
TIE = 0.05


def games(settings, slots, steps, prices=PRICES, base=None):
    features = np.random.default_rng(9).standard_normal((len(prices), FEATURES)).astype(np.float32)
    return [Game(config(**settings), prices, features, slots, steps, base=base) for _ in range(2)]


def network(seed=0):
    return actor(FEATURES, (*HIDDEN, HEAD), seed=seed, scale=3.0)


def table_of(layout, features):
    table = np.zeros((len(features), layout.width), np.float32)
    table[:, : features.shape[1]] = features
    return as_pairs(table)


class Launcher:
    """A compiled rollout with what it needs beside a game."""

    def __init__(self, game, layers, groups=1, base=None):
        layout = q_layout(FEATURES, HIDDEN, HEAD, 45)
        self.rollout = QRollout(QPlan(layout, groups), game.rules, base)
        self.packed, self.table = packed(layout, layers), table_of(layout, game.features)

    def play(self, game, choice=GREEDY, given=0):
        outputs = [getattr(game, name) for name in OUTPUTS]
        launch = game.launch._replace(given=given)
        self.rollout.launch(*self.packed, self.table, game.state(), game.prices, outputs, choice, launch, game.rules)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("settings", [{}, EVERYTHING, RUIN], ids=["default", "everything", "ruin"])
def test_two_launches_are_the_game_and_the_choices(settings, groups):
    found, truth = games(settings, 9, 8, WILD if settings is RUIN else PRICES)
    layers = network()
    launcher = Launcher(found, layers, groups)
    explored = 0
    for _ in range(2):
        before = played(found)
        launcher.play(found, HALF)
        check_game(found, truth)
        explored += check_choices(found, truth, layers, HALF, before, TIE)[0]
        truth.next_launch()
    assert 0.2 < explored / (2 * 9 * 8) < 0.8
    assert (found.ends > 0).any() and (found.ends < 0).any() == (settings is RUIN) and not found.status.any()


def test_blocks_and_launch_lengths_change_nothing():
    whole, other = games({}, 9, 8)[0], games({}, 9, 8)[0]
    layers = network()
    Launcher(whole, layers).play(whole, HALF)
    Launcher(other, layers, 4).play(other, HALF)
    for name in (*SLOTS, *OUTPUTS):
        np.testing.assert_array_equal(getattr(other, name), getattr(whole, name), err_msg=name)
    parts = games({}, 9, 4)[0]
    launcher = Launcher(parts, layers)
    for part in range(2):
        launcher.play(parts, HALF)
        np.testing.assert_array_equal(parts.actions, whole.actions[4 * part : 4 * part + 4])
    for name in SLOTS:
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name), err_msg=name)


@pytest.mark.parametrize("choice", [GREEDY, HALF, np.array([0.5, 0.5, 10.0, 2.0], np.float32)], ids=["greedy", "epsilon", "softmax"])
def test_choices_are_those_of_the_selection_kernel(choice):
    """The same values and counters give the same actions as kernels.select, softmax included."""
    found, truth = games({}, 4, 3)
    layers = network()
    launcher = Launcher(found, layers)
    words, biases = launcher.packed
    for _ in range(2):
        launcher.play(found, choice)
        for t in range(3):
            actions = np.zeros((3, 4), np.int32)
            values = _in_bf16(words, biases, truth.states[t])
            regime = np.ones((40, 3), np.float32)
            arguments = truth.clock, truth.portfolio, regime, actions, choice, found.launch.seed, select.FLAT
            select.select_cpu(np.array([t], np.int32), values, *arguments)
            np.testing.assert_array_equal(found.actions[t], actions[t])
            truth.actions[:] = found.actions
            truth.compiled.step(
                t, np.zeros((4, 1), np.float32), *truth.state(), truth.prices, truth.features, truth.states, truth.final_states,
                truth.finals, truth.actions, truth.log_probs, truth.rewards, truth.bars[:-1], truth.ends, truth.status,
                truth.launch._replace(given=1), truth.rules,
            )  # fmt: skip
        truth.next_launch()
        truth.finals[:] = 0


def _in_bf16(words, biases, states):
    """The kernel's arithmetic for whole states, by NumPy."""
    layout = q_layout(FEATURES, HIDDEN, HEAD, 45)
    x = np.zeros((len(states), layout.width), np.float32)
    x[:, :FEATURES], x[:, -4:-1] = states[:, :FEATURES], states[:, FEATURES:]
    x, shifts = rounded(x), np.split(biases, layout.bias_starts[1:-1])
    for layer, (weight, shift) in enumerate(zip(unpacked(layout, words), shifts, strict=True)):
        x = (x @ weight.T + shift).astype(np.float32)
        x = rounded(np.maximum(x, 0)) if layer < 3 else x
    return np.ascontiguousarray(x[:, :45])


def _mine(equity_before, equity_after, price_before, price_after, exposure_before, exposure_after, cost, drawdown, step):
    """A user's reward."""
    return step + np.float32(100) * (price_after / price_before - np.float32(1))


def test_a_users_reward_is_paid():
    found, _ = games({}, 2, 7)
    Launcher(found, network(), base=user_base(njit(_mine))).play(found)
    paid = found.rewards.copy()
    steps, step = np.zeros((7, 2)), np.zeros(2)
    for t in range(7):
        steps[t] = step
        step = np.where(found.ends[t] != 0, 0, step + 1)
    close = PRICES[:, 3]
    moves = close[found.bars[:-1] + 1] / close[found.bars[:-1]] - 1
    np.testing.assert_allclose(paid, steps + 100 * moves, rtol=1e-4, atol=1e-4)
    assert (found.ends > 0).any()


def test_given_actions_are_played_and_values_that_are_no_numbers_are_flagged():
    found, truth = games({}, 3, 5)
    layers = network()
    found.actions[:] = np.random.default_rng(1).integers(0, 45, (5, 3))
    truth.replay(found.actions)
    Launcher(found, layers).play(found, given=1)
    assert np.array_equal(found.actions, truth.actions)
    np.testing.assert_allclose(found.rewards, truth.rewards, rtol=1e-4, atol=1e-4)
    for place in range(0, 8, 2):
        broken = [layer.copy() for layer in layers]
        broken[place][3, 1] = np.nan
        found.status[:] = 0
        Launcher(found, broken).play(found, HALF)
        assert (found.actions == 19).all() and (found.status == 1).all()


@pytest.mark.parametrize(("features", "hidden", "head"), [(5, (8, 6), 4), (51, (256, 256), 128), (28, (72,), 136), (29, (64, 200, 16), 65)])
def test_packed_weights_are_the_weights_in_bf16(features, hidden, head):
    layout = q_layout(features, hidden, head, 45)
    layers = actor(features, (*hidden, head))
    words, biases = packed(layout, layers)
    assert len(words) == layout.starts[-1] and len(biases) == layout.bias_starts[-1] and layout.width % 32 == 0
    indices, _ = packing(layout)
    used = np.bincount(indices)
    weights = sum(layer.size for layer in layers[::2])
    assert (used[:-1] <= 1).all() and used[:-1].sum() == weights and used[-1] == len(indices) - weights
    for index, (found, weight) in enumerate(zip(unpacked(layout, words), layers[::2], strict=True)):
        wanted = np.zeros_like(found)
        if index == 0:
            wanted[: len(weight), :features], wanted[: len(weight), -4:-1] = rounded(weight[:, :features]), rounded(weight[:, features:])
        else:
            wanted[: weight.shape[0], : weight.shape[1]] = rounded(weight)
        np.testing.assert_array_equal(found, wanted)
    for found, bias in zip(np.split(biases, layout.bias_starts[1:-1]), layers[1::2], strict=True):
        np.testing.assert_array_equal(found[: len(bias)], bias)
        assert not found[len(bias) :].any()


def test_bf16_pairs_round_to_the_nearest():
    values = np.concatenate([np.random.default_rng(0).standard_normal(998).astype(np.float32), np.float32([1.00390625, np.nan])])
    found = as_float(as_pairs(values))
    np.testing.assert_array_equal(found, torch.from_numpy(values).bfloat16().float().numpy())
    np.testing.assert_array_equal(found, rounded(values))


def test_plans_are_chosen_by_size_card_and_limits(monkeypatch):
    # the simulator's own tiles have four rows; look at those of a GPU
    monkeypatch.setattr("numba_rl.kernels.rollout_q.ROWS", 16)
    monkeypatch.setattr("numba_rl.kernels.rollout_q.THREADS", 256)
    monkeypatch.setattr("numba_rl.kernels.rollout_q.SIMULATED", False)
    for episodes, groups in ((128, 1), (2112, 1), (2113, 2), (4224, 2), (8192, 4), (65536, 4)):
        assert plan_q(51, (256, 256), 128, episodes).groups == groups
    few, many = plan_q(51, (256, 256), 128, 128), plan_q(51, (256, 256), 128, 8192)
    assert (few.players, few.registers, many.players, many.registers) == (32, 168, 64, 168)
    assert plan_q(51, (256, 256), 128, 128, capability=(7, 5)) is None and plan_q(51, (), 128, 128) is None
    assert plan_q(51, (512, 512), 128, 8192).groups == 2 and plan_q(51, (1024, 1024), 512, 8192).groups == 1
    assert plan_q(51, (2048,), 128, 128) is None and plan_q(300, (64,), 64, 8192).groups == 2


def test_advantages_of_the_reference_are_a_networks():
    layers = network()
    modules = []
    for weight, bias in zip(layers[::2], layers[1::2], strict=True):
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        linear.weight.data, linear.bias.data = torch.from_numpy(weight), torch.from_numpy(bias)
        modules += [linear, nn.ReLU()]
    states = torch.randn(7, FEATURES + 3)
    np.testing.assert_allclose(advantages(layers, states.numpy()), nn.Sequential(*modules[:-1])(states).detach(), rtol=1e-4, atol=1e-5)
