"""The fused rollouts at real sizes on a GPU: against the stepper and the float64 network, bit for bit repeatable, capturable."""

import numpy as np
import pytest
import torch
from numba import njit
from reference.games import EVERYTHING, config
from reference.games import MANY_PRICES as PRICES
from reference.games import MANY_SETTINGS as SETTINGS
from reference.rollout import OUTPUTS, SLOTS, Game, actor, check

from numba_rl.collect.batched import BatchedCollector
from numba_rl.collect.fused import FusedCollector
from numba_rl.config import Config, EpisodeConfig, PpoConfig
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.gpu import cuda
from numba_rl.kernels.mma import tiles_of
from numba_rl.kernels.rollout import Plan, Rollout
from numba_rl.kernels.rollout_block import block_of
from numba_rl.rules.reward import user_base
from numba_rl.trainer.networks import build_actor

pytestmark = pytest.mark.gpu

TOLERANCE = {"block": {}, "warp": {"edge": 5e-3, "log_prob": 2e-2}}


def game(settings, slots, steps, features=51, **options):
    table = np.random.default_rng(9).standard_normal((len(PRICES), features)).astype(np.float32)
    return Game(config(length=50, **settings), PRICES, table, slots, steps, **options)


def plan_of(form, features, hidden, slope=0.0):
    if form == "block":
        return Plan(block_of(features, hidden, slope=slope), None)
    return Plan(None, tiles_of(features, hidden, slope=slope))


class Launcher:
    """A compiled rollout on device copies of a game's arrays."""

    def __init__(self, plan, played: Game, layers, base=None):
        self.rollout, self.game = Rollout(plan, played.rules, base), played
        self.layers = [cuda.to_device(layer) for layer in layers]
        self.prices, self.packed = cuda.to_device(played.prices), None
        market = played.features
        if plan.tiles is not None:
            market = np.zeros((len(market), plan.tiles.width), np.float16)
            market[:, : plan.tiles.features] = played.features
            market = market.view(np.uint32)
            self.packed = cuda.device_array(plan.tiles.words, np.uint64), cuda.device_array(plan.tiles.biases, np.float32)
        self.market = cuda.to_device(market)

    def play(self, given=0):
        names = (*SLOTS, *OUTPUTS)
        moved = {name: cuda.to_device(getattr(self.game, name)) for name in names}
        self.rollout.launch(
            self.layers, [moved[name] for name in SLOTS], self.prices, self.market, [moved[name] for name in OUTPUTS],
            self.game.launch._replace(given=given), self.game.rules, packed=self.packed,
        )  # fmt: skip
        for name in names:
            moved[name].copy_to_host(getattr(self.game, name))
        return self.game


@pytest.mark.parametrize("form", ["block", "warp"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_launches_are_the_game_and_the_draws(form, settings):
    slots = 37 if form == "block" else 101  # no multiple of 16
    found, truth = (game(SETTINGS[settings], slots, 64) for _ in range(2))
    layers = actor(51, (128, 64), scale=3.0)
    launcher = Launcher(plan_of(form, 51, (128, 64)), found, layers)
    for _ in range(2):
        launcher.play()
        check(found, truth, layers, **TOLERANCE[form])
        truth.next_launch()
    assert not found.status.any() and (found.ends > 0).any() and (settings != "ruin" or (found.ends < 0).any())
    assert len(np.unique(found.actions)) > 30


@pytest.mark.parametrize(("features", "hidden", "slope"), [(51, (128, 64), 0.01), (7, (32, 32), 0.0), (90, (96, 48), 0.0), (124, (64, 128), 0.0), (1, (16, 16), 0.2)])
@pytest.mark.parametrize("form", ["block", "warp"])
def test_other_sizes_and_leaky_units(form, features, hidden, slope):
    plan = plan_of(form, features, hidden, slope)
    if plan.block is None and plan.tiles is None:
        pytest.skip("does not fit this form")
    found, truth = (game({}, 19, 30, features) for _ in range(2))
    layers = actor(features, hidden, scale=2.0)
    Launcher(plan, found, layers).play()
    check(found, truth, layers, slope=slope, **TOLERANCE[form])


@pytest.mark.parametrize("threads", [128, 256, 512])
def test_the_block_form_does_not_depend_on_its_threads(threads):
    found, truth = (game({}, 9, 40) for _ in range(2))
    layers = actor(51, (128, 64), scale=3.0)
    block = block_of(51, (128, 64), network=threads)
    if block is None:
        pytest.skip("the weights do not fit so few or so many threads")
    Launcher(Plan(block, None), found, layers).play()
    check(found, truth, layers)


def _same(a, b):
    for name in (*SLOTS, *OUTPUTS):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


@pytest.mark.parametrize("form", ["block", "warp"])
def test_reruns_are_bit_identical_and_launch_lengths_change_nothing(form):
    layers = actor(51, (128, 64), scale=3.0)
    whole, again, parts = game(EVERYTHING, 50, 60), game(EVERYTHING, 50, 60), game(EVERYTHING, 50, 20)
    plan = plan_of(form, 51, (128, 64))
    for played in (whole, again):
        Launcher(plan, played, layers).play()
    _same(whole, again)
    launcher = Launcher(plan, parts, layers)
    for part in range(3):
        launcher.play()
        rows = slice(20 * part, 20 * part + 20)
        for name in ("actions", "log_probs", "rewards"):
            np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name)[rows])
        np.testing.assert_array_equal(parts.account[:-1], whole.account[rows])
        assert np.array_equal(parts.ends != 0, whole.ends[rows] != 0)
    for name in SLOTS:
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))


@pytest.mark.parametrize("plan", [(1, 1, 0), (1, 4, 128), (2, 1, 0), (2, 4, 128), (2, 2, 168)], ids=str)
def test_warp_shapes_change_nothing(plan):
    layers = actor(51, (128, 64), scale=3.0)
    games = [game(EVERYTHING, 83, 40) for _ in range(2)]
    for (groups, warps, registers), played in zip(((1, 1, 0), plan), games, strict=True):
        Launcher(Plan(None, tiles_of(51, (128, 64)), groups, warps, registers or None), played, layers).play()
    for name in ("actions", "bars", "ends", "finals", "window", "clock"):
        np.testing.assert_array_equal(getattr(games[0], name), getattr(games[1], name))
    np.testing.assert_allclose(games[0].log_probs, games[1].log_probs, rtol=0, atol=1e-6)
    np.testing.assert_allclose(games[0].rewards, games[1].rewards, rtol=1e-4, atol=1e-4)


def _mine(equity_before, equity_after, price_before, price_after, exposure_before, exposure_after, cost, drawdown, step):
    return np.float32(100) * (equity_after / equity_before - np.float32(1)) - cost * np.float32(1e-4) + step + drawdown + exposure_after - exposure_before


@pytest.mark.parametrize("form", ["block", "warp"])
def test_users_reward_given_actions_and_broken_logits(form):
    base = user_base(njit(_mine))
    found, truth = (game({}, 20, 40, base=base) for _ in range(2))
    layers = actor(51, (128, 64), scale=3.0)
    Launcher(plan_of(form, 51, (128, 64)), found, layers, base).play()
    check(found, truth, layers, **TOLERANCE[form])
    found, truth = (game({}, 20, 40) for _ in range(2))
    launcher = Launcher(plan_of(form, 51, (128, 64)), found, layers)
    found.actions[:] = np.random.default_rng(1).integers(0, 45, found.actions.shape)
    truth.replay(found.actions)
    launcher.play(given=1)
    np.testing.assert_allclose(found.rewards, truth.rewards, rtol=1e-4, atol=1e-4)
    assert np.array_equal(found.ends, truth.ends) and not found.log_probs.any()
    for place in (0, 2, 4):  # a NaN in any layer
        broken = [layer.copy() for layer in layers]
        broken[place][3, 1] = np.nan
        played = game({}, 20, 5)
        Launcher(plan_of(form, 51, (128, 64)), played, broken).play()
        assert (played.status == 1).all() and (played.actions == 19).all()


def test_certain_and_impossible_actions():
    for form in ("block", "warp"):
        layers = actor(51, (128, 64), scale=0.0)
        layers[5][:] = -np.inf
        layers[5][[3, 17, 44]] = 0.0
        played = game({}, 64, 64)
        Launcher(plan_of(form, 51, (128, 64)), played, layers).play()
        counts = np.bincount(played.actions.ravel(), minlength=45)
        assert counts[[3, 17, 44]].sum() == played.actions.size and (np.abs(counts[[3, 17, 44]] / played.actions.size - 1 / 3) < 0.03).all()
        np.testing.assert_allclose(played.log_probs, -np.log(3), atol=1e-5)


def _collectors(count, steps, form="auto", **sections):
    settings = Config(episodes=EpisodeConfig(count=count, launch=steps, length=80), **sections)
    market = load_market(settings, generate("mean_reverting", 4000, 5).bars)
    return market, settings, FusedCollector(market, settings, form=form), BatchedCollector(market, settings, device="cuda")


@pytest.mark.parametrize("form", ["block", "warp"])
def test_the_fused_collector_is_the_batched_one(form):
    _, settings, fused, batched = _collectors(48, 60, form)
    network = build_actor(settings, 51, torch.Generator().manual_seed(2)).cuda()
    with torch.no_grad():
        network.policy_output.weight.mul_(200)
    for _ in range(2):
        found = fused.collect(network)
        truth = batched.collect(network) if form == "block" else batched.collect(network, actions=found.actions)
        assert (found.actions != truth.actions).float().mean() < 1e-3
        if not torch.equal(found.actions, truth.actions):
            return  # a draw at an edge: from there on the games differ
        assert torch.equal(found.ends, truth.ends) and torch.equal(found.bars, truth.bars)
        torch.testing.assert_close(found.states, truth.states, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found.rewards, truth.rewards, rtol=1e-4, atol=1e-4)
        if form == "block":
            torch.testing.assert_close(found.log_probs, truth.log_probs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", ["block", "warp"])
def test_a_captured_launch_and_a_resumed_one_go_on_alike(form):
    market, settings, fused, _ = _collectors(40, 30, form)
    network = build_actor(settings, 51, torch.Generator().manual_seed(2)).cuda()
    fused.collect(network)
    saved = fused.state_dict()
    eager = FusedCollector(market, settings, form=form)
    eager.load_state_dict(saved)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        fused.launch(network)
    for _ in range(3):
        graph.replay()
        wanted = eager.collect(network)
        for name in ("account", "rows", "actions", "log_probs", "rewards", "ends", "finals"):
            assert torch.equal(getattr(fused.rollout, name), getattr(wanted, name)), name
    for name, tensor in fused.slots.items():
        assert torch.equal(tensor, eager.slots[name])


def test_many_episodes_and_other_actors_through_the_collector():
    _, settings, fused, _ = _collectors(20_000, 20, ppo=PpoConfig(actor=(64, 32), leaky_slope=0.01))
    assert fused.plan.form == "warp" and fused.plan.groups == 2
    network = build_actor(settings, 51, torch.Generator().manual_seed(2)).cuda()
    found = fused.collect(network)
    with torch.no_grad():
        wanted = torch.log_softmax(network(found.states[:-1]), -1).gather(-1, found.actions.long()[..., None])[..., 0]
    assert (wanted - found.log_probs).abs().max() < 1e-2 and not found.status.any()
