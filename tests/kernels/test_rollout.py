"""Both forms of the fused rollout in the simulator, with tiny networks, against the CPU stepper and a float64 network."""

import numpy as np
import pytest
from numba import njit
from reference.games import EVERYTHING, PRICES, RUIN, WILD, config
from reference.rollout import Game, actor, check

from numba_rl.gpu import SIMULATED
from numba_rl.kernels.mma import launch_pack, tiles_of, unpack
from numba_rl.kernels.rollout import Plan, Rollout, plan_rollout
from numba_rl.kernels.rollout_block import block_of
from numba_rl.kernels.settled import NEUTRAL, pattern_of, settled_for
from numba_rl.rules.parameters import rules_of
from numba_rl.rules.reward import user_base

pytestmark = pytest.mark.skipif(not SIMULATED, reason="tiny shapes of the simulator; test_rollout_gpu has the real ones")

FEATURES, HIDDEN = 5, (8, 6)


def games(settings, slots, steps, prices=PRICES, base=None):
    features = np.random.default_rng(9).standard_normal((len(prices), FEATURES)).astype(np.float32)
    return [Game(config(**settings), prices, features, slots, steps, base=base) for _ in range(2)]


class Launcher:
    """A compiled rollout with what it needs beside a game."""

    def __init__(self, form, game, layers, base=None, groups=1, hidden=HIDDEN):
        tiles = tiles_of(FEATURES, hidden) if form == "warp" else None
        self.rollout = Rollout(Plan(block_of(FEATURES, hidden) if form == "block" else None, tiles, groups), game.rules, base)
        self.layers, self.packed, self.market = layers, None, game.features
        if form == "warp":
            self.packed = np.zeros(tiles.words, np.uint64), np.zeros(tiles.biases, np.float32)
            table = np.zeros((len(game.features), tiles.width), np.float16)
            table[:, :FEATURES] = game.features
            self.market = table.view(np.uint32)

    def play(self, game, launch=None):
        arguments = (self.layers, game.state(), game.prices, self.market, game.outputs(), launch or game.launch, game.rules)
        self.rollout.launch(*arguments, packed=self.packed)


TOLERANCE = {"block": {}, "warp": {"edge": 3e-3, "log_prob": 1e-2}}


@pytest.mark.parametrize("form", ["block", "warp"])
@pytest.mark.parametrize("settings", [{}, EVERYTHING, RUIN], ids=["default", "everything", "ruin"])
def test_two_launches_are_the_game_and_the_draws(form, settings):
    found, truth = games(settings, 3 if form == "block" else 9, 8, WILD if settings is RUIN else PRICES)
    layers = actor(FEATURES, HIDDEN, scale=3.0)
    launcher = Launcher(form, found, layers, groups=2 if settings is EVERYTHING else 1)
    for _ in range(2):
        launcher.play(found)
        check(found, truth, layers, **TOLERANCE[form])
        truth.next_launch()
    assert (found.ends > 0).any() and (found.ends < 0).any() == (settings is RUIN) and not found.status.any()


def _mine(equity_before, equity_after, price_before, price_after, exposure_before, exposure_after, cost, drawdown, step):
    return np.float32(100) * (equity_after / equity_before - np.float32(1)) - cost * np.float32(1e-4) + step + drawdown + exposure_after - exposure_before


@pytest.fixture(scope="module")
def users_base():
    return user_base(njit(_mine))


@pytest.mark.parametrize("form", ["block", "warp"])
def test_a_users_reward_is_paid(form, users_base):
    found, truth = games({}, 2, 7, base=users_base)
    layers = actor(FEATURES, HIDDEN, scale=3.0)
    Launcher(form, found, layers, users_base).play(found)
    check(found, truth, layers, **TOLERANCE[form])


@pytest.mark.parametrize("form", ["block", "warp"])
def test_given_actions_are_played_and_logits_without_a_distribution_are_flagged(form):
    found, truth = games({}, 3, 5)
    layers = actor(FEATURES, HIDDEN)
    launcher = Launcher(form, found, layers)
    found.actions[:] = np.random.default_rng(1).integers(0, 45, (5, 3))
    truth.replay(found.actions)
    launcher.play(found, found.launch._replace(given=1))
    assert np.array_equal(found.actions, truth.actions) and not found.log_probs.any()
    np.testing.assert_allclose(found.rewards, truth.rewards, rtol=1e-4, atol=1e-4)
    layers[4][7, 2] = np.nan
    launcher.play(found)
    assert (found.actions == 19).all() and (found.status == 1).all() and np.isnan(found.log_probs).all()
    found.status[:] = 0
    layers[4][7, 2] = 0.0
    launcher.play(found)
    assert not found.status.any() and np.isfinite(found.log_probs).all()


def test_packed_weights_are_the_weights_rounded_to_fp16():
    layers = actor(FEATURES, (20, 24))
    tiles = tiles_of(FEATURES, (20, 24))
    words, biases = np.zeros(tiles.words, np.uint64), np.zeros(tiles.biases, np.float32)
    launch_pack(tiles, layers, words, biases)
    for index, (found, weight) in enumerate(zip(unpack(tiles, words), layers[::2], strict=True)):
        wanted = np.zeros_like(found)
        scaled = (weight * np.float32(1 / np.log(2)) if index == 2 else weight).astype(np.float16)
        if index == 0:
            wanted[: len(weight), :FEATURES], wanted[: len(weight), -4:-1] = scaled[:, :FEATURES], scaled[:, FEATURES:]
        else:
            wanted[: weight.shape[0], : weight.shape[1]] = scaled
        np.testing.assert_array_equal(found, wanted)


def test_forms_are_chosen_by_size_card_and_limits(monkeypatch):
    # the simulator's own forms have a few threads; look at those of a GPU
    monkeypatch.setattr("numba_rl.kernels.rollout_block.SIMULATED", False)
    monkeypatch.setattr("numba_rl.kernels.mlp.SIMULATED", False)
    assert plan_rollout(51, (128, 64), 128).form == "block"
    assert plan_rollout(51, (128, 64), 8192).form == "warp" and plan_rollout(51, (128, 64), 8192).groups == 1
    assert plan_rollout(51, (128, 64), 65536).groups == 2
    assert plan_rollout(51, (128, 64), 65536, capability=(7, 5)).form == "block"
    assert plan_rollout(51, (128, 64), 128, form="warp").form == "warp"
    assert plan_rollout(51, (128, 64), 128).block.threads == 384
    assert plan_rollout(51, (512, 512), 128) is None and plan_rollout(51, (128,), 128) is None
    assert plan_rollout(7, (32, 32), 128).form == "block" and plan_rollout(300, (64, 64), 8192).form == "block"


def test_settled_rules_are_the_rules():
    rules = rules_of(config(**EVERYTHING), 525_600.0)
    for altered in (rules, rules_of(config()), rules._replace(leverage=3.0, drift_tolerance=0.1, equity_sizing=0)):
        settled = settled_for(pattern_of(altered))
        assert settled.fn(altered) == altered
        other = altered._replace(taker=0.5, **{name: 0.25 for name in NEUTRAL if getattr(altered, name) != NEUTRAL[name]})
        assert settled.fn(other) == other
    assert pattern_of(rules) != pattern_of(rules_of(config()))
