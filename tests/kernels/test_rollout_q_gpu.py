"""The fused rollout of a Q-network at real sizes on a GPU: the game and the choices, repeatable bit for bit, capturable, in a trainer."""

import numpy as np
import pytest
import torch
from reference.games import EVERYTHING, config
from reference.games import MANY_PRICES as PRICES
from reference.games import MANY_SETTINGS as SETTINGS
from reference.rollout import SLOTS, Game, actor, check_game
from reference.rollout_q import OUTPUTS, check_choices, played

from numba_rl import settings
from numba_rl.collect.batched import BatchedCollector
from numba_rl.collect.experience import Chooser
from numba_rl.collect.fused_q import FusedQCollector
from numba_rl.config import Config
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.gpu import cuda
from numba_rl.kernels.q_layout import as_pairs, packed, q_layout
from numba_rl.kernels.rollout_q import QPlan, QRollout
from numba_rl.kernels.select import FLAT
from numba_rl.trainer.dqn import Dqn
from numba_rl.trainer.dqn_networks import build_q_network

pytestmark = pytest.mark.gpu

CHOICE = np.array([0.5, 0.1, 10_000.0, 0.0], np.float32)
TIE = 0.05  # of the spread of the advantages


def game(changes, slots, steps, features=51):
    table = np.random.default_rng(9).standard_normal((len(PRICES), features)).astype(np.float32)
    return Game(config(length=50, **changes), PRICES, table, slots, steps)


def play(found, layers, hidden, head, groups, choice=CHOICE, given=0):
    """One launch on device copies of a game's arrays."""
    features = found.features.shape[1]
    layout = q_layout(features, hidden, head, 45)
    plan = QPlan(layout, groups)
    assert plan.fits
    table = np.zeros((len(PRICES), layout.width), np.float32)
    table[:, :features] = found.features
    moved = {name: cuda.to_device(getattr(found, name)) for name in (*SLOTS, *OUTPUTS)}
    inputs = [cuda.to_device(array) for array in (*packed(layout, layers), as_pairs(table))]
    QRollout(plan, found.rules).launch(
        *inputs, [moved[name] for name in SLOTS], cuda.to_device(found.prices), [moved[name] for name in OUTPUTS], cuda.to_device(choice),
        found.launch._replace(given=given), found.rules,
    )  # fmt: skip
    for name, array in moved.items():
        array.copy_to_host(getattr(found, name))


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("settings", SETTINGS)
def test_launches_are_the_game_and_the_choices(settings, groups):
    found, truth = (game(SETTINGS[settings], 101, 64) for _ in range(2))  # no multiple of 16
    layers = actor(51, (256, 256, 128), scale=3.0)
    for _ in range(2):
        before = played(found)
        play(found, layers, (256, 256), 128, groups)
        check_game(found, truth)
        explored, ties = check_choices(found, truth, layers, CHOICE, before, TIE)
        assert 0.05 < explored / found.actions.size < 0.6 and ties < 0.05 * found.actions.size
        truth.next_launch()
    assert not found.status.any() and (found.ends > 0).any() and (settings != "ruin" or (found.ends < 0).any())


SIZES = [(51, (136,), 72, 2), (7, (64, 64), 64, 4), (124, (128, 200, 64), 128, 1), (51, (512, 512), 256, 2), (51, (1024,), 128, 1)]


@pytest.mark.parametrize(("features", "hidden", "head", "groups"), SIZES)
def test_other_sizes(features, hidden, head, groups):
    found, truth = (game({}, 37, 20, features) for _ in range(2))
    layers, before = actor(features, (*hidden, head), scale=3.0), played(found)
    play(found, layers, hidden, head, groups)
    check_game(found, truth)
    check_choices(found, truth, layers, CHOICE, before, TIE)


def test_reruns_are_bit_identical_and_blocks_and_launch_lengths_change_nothing():
    layers = actor(51, (256, 256, 128), scale=3.0)
    whole, again, wide, parts = (game(EVERYTHING, 150, steps) for steps in (60, 60, 60, 20))
    for found, groups in ((whole, 1), (again, 1)):
        play(found, layers, (256, 256), 128, groups)
    for name in (*SLOTS, *OUTPUTS):
        np.testing.assert_array_equal(getattr(again, name), getattr(whole, name), err_msg=name)
    play(wide, layers, (256, 256), 128, 4)
    assert (wide.actions != whole.actions).mean() < 1e-2  # sums of another order part where two values are equal
    for part in range(3):
        play(parts, layers, (256, 256), 128, 1)
        rows = slice(20 * part, 20 * part + 20)
        for name in ("actions", "rewards"):
            np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name)[rows])
    for name in SLOTS:
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))


def test_given_actions_softmax_and_values_that_are_no_numbers():
    layers = actor(51, (256, 256, 128), scale=3.0)
    found, truth = (game({}, 20, 40) for _ in range(2))
    found.actions[:] = np.random.default_rng(1).integers(0, 45, found.actions.shape)
    truth.replay(found.actions)
    play(found, layers, (256, 256), 128, 1, given=1)
    np.testing.assert_allclose(found.rewards, truth.rewards, rtol=1e-4, atol=1e-4)
    assert np.array_equal(found.ends, truth.ends)
    layers[-2][:], layers[-1][:] = 0.0, -1e9
    layers[-1][[3, 17, 44]] = 1.0
    found = game({}, 64, 64)
    play(found, layers, (256, 256), 128, 1, choice=np.array([0.0, 0.0, 1.0, 0.5], np.float32))
    counts = np.bincount(found.actions.ravel(), minlength=45)
    assert counts[[3, 17, 44]].sum() == found.actions.size and (np.abs(counts[[3, 17, 44]] / found.actions.size - 1 / 3) < 0.03).all()
    for place in (0, 2, 4, 6):  # a NaN in any layer
        broken = [layer.copy() for layer in layers]
        broken[place][3, 1] = np.nan
        found = game({}, 20, 5)
        play(found, broken, (256, 256), 128, 1)
        assert (found.status == 1).all() and (found.actions == 19).all()


def made(count, steps, changes=None):
    config = settings.replace(Config(), {
        "algorithm": "dqn", "episodes.count": count, "episodes.launch": steps, "episodes.length": 80, "dqn.epsilon_steps": 10_000,
        "dqn.updates": 4, "dqn.batch": 256, "replay.capacity": 20_000,
    } | (changes or {}))  # fmt: skip
    return config, load_market(config, generate("mean_reverting", 4000, 5).bars)


def sharp(config):
    network = build_q_network(config, 51, torch.Generator().manual_seed(2)).cuda()
    with torch.no_grad():
        network.advantage_output.weight.mul_(30)
    return network


def test_the_fused_collector_is_the_batched_one():
    config, market = made(48, 60)
    network = sharp(config)
    fused, batched = FusedQCollector(market, config), BatchedCollector(market, config, device="cuda")
    chooser = Chooser(fused, config.dqn, market.regime, FLAT, config.train.seed)
    for _ in range(2):
        found = fused.collect(network.advantage_layers(), chooser.settings)
        truth = batched.collect(None, actions=found.actions)
        assert torch.equal(found.ends, truth.ends) and torch.equal(found.bars, truth.bars)
        torch.testing.assert_close(found.states, truth.states, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found.rewards, truth.rewards, rtol=1e-4, atol=1e-4)
        for name, tensor in fused.slots.items():
            torch.testing.assert_close(tensor, batched.slots[name], rtol=1e-9, atol=1e-9, msg=name)


def test_a_captured_launch_and_a_resumed_one_go_on_alike():
    config, market = made(40, 30)
    network = sharp(config)
    fused, eager = FusedQCollector(market, config), FusedQCollector(market, config)
    chooser = Chooser(fused, config.dqn, market.regime, FLAT, config.train.seed)
    fused.collect(network.advantage_layers(), chooser.settings)
    eager.load_state_dict(fused.state_dict())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fused.launch(network.advantage_layers(), chooser.settings)
    for _ in range(3):
        graph.replay()
        wanted = eager.collect(network.advantage_layers(), chooser.settings)
        for name in ("account", "rows", "actions", "rewards", "ends", "finals"):
            assert torch.equal(getattr(fused.rollout, name), getattr(wanted, name)), name
    for name, tensor in fused.slots.items():
        assert torch.equal(tensor, eager.slots[name])


def test_a_trainer_captures_its_play_and_plays_what_the_batched_one_would():
    config, market = made(64, 50)
    trainer = Dqn(config, FusedQCollector(market, config), market.regime)
    for _ in range(5):
        trainer.epoch()
    assert "play" in trainer._graphs
    figures = trainer.statistics()
    assert figures["rollout/broken_slots"] == 0 and figures["losses/updates"] == 4 and trainer.steps == 5 * 64 * 50
    batched = Dqn(config, BatchedCollector(market, config, device="cuda"), market.regime)
    batched.load({name: torch.as_tensor(value) for name, value in trainer.state().items()})
    trainer._collect()
    batched._collect()
    same = (trainer.collector.rollout.actions == batched.collector.rollout.actions).float().mean()
    assert same > 0.9  # from the first two equal values on, a slot's games differ
