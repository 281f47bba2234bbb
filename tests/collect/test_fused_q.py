"""The fused collector of a Q-network in the simulator beside the batched one: same episodes, choices and checkpoints; a trainer on it."""

from dataclasses import replace

import numpy as np
import pytest
import reference.kept_rules  # noqa: F401 - compiles once a machine, not once a run
import torch

from numba_rl import settings
from numba_rl.collect.batched import BatchedCollector
from numba_rl.collect.experience import Chooser, Experience
from numba_rl.collect.fused_q import FusedQCollector, why_not_fused
from numba_rl.config import Config
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.errors import ConfigError
from numba_rl.gpu import SIMULATED
from numba_rl.kernels.select import FLAT
from numba_rl.trainer import building
from numba_rl.trainer.dqn import Dqn
from numba_rl.trainer.dqn_networks import HEADS, build_q_network

pytestmark = pytest.mark.skipif(not SIMULATED, reason="tiny shapes of the simulator; kernels/test_rollout_q_gpu has the real ones")

CPU = torch.device("cpu")


def config_of(changes=None):
    small = {
        "algorithm": "dqn", "episodes.count": 3, "episodes.launch": 7, "episodes.length": 5, "dqn.hidden": (8, 6), "dqn.head": 4,
        "dqn.n_step": 3, "dqn.batch": 8, "dqn.updates": 2, "replay.capacity": 64,
    }  # fmt: skip
    return settings.replace(Config(), small | (changes or {}))


@pytest.fixture(scope="module")
def market():
    whole = load_market(config_of(), generate("mean_reverting", 900, 3).bars)
    return replace(whole, features=np.ascontiguousarray(whole.features[:, :5]))


@pytest.fixture(scope="module")
def network(market):
    network = build_q_network(config_of(), market.features.shape[1], torch.Generator().manual_seed(1))
    with torch.no_grad():
        network.advantage_output.weight.mul_(30)
    return network


def acting(states, network):
    """The batched collector's values by the arithmetic of the fused one: bf16 inputs, weights and activations."""
    x = states.bfloat16().float()
    layers = network.advantage_layers()
    for index in range(0, len(layers), 2):
        x = x @ layers[index].bfloat16().float().T + layers[index + 1]
        x = torch.relu(x).bfloat16().float() if index + 2 < len(layers) else x
    return x


def pair(market, config):
    fused, batched = FusedQCollector(market, config, device="cpu"), BatchedCollector(market, config)
    return [(collector, Chooser(collector, config.dqn, market.regime, FLAT, config.train.seed)) for collector in (fused, batched)]


@pytest.mark.parametrize("changes", [{}, {"dqn.epsilon_start": 0.3, "dqn.selection": "softmax"}], ids=["epsilon", "softmax"])
def test_rollouts_and_transitions_are_those_of_the_batched_collector(market, network, changes):
    config = config_of({"dqn.epsilon_start": 0.5, "dqn.epsilon_end": 0.1, "dqn.epsilon_steps": 50} | changes)
    (fused, chooser), (batched, other) = pair(market, config)
    experiences = Experience(fused, 3, 0.9), Experience(batched, 3, 0.9)
    for _ in range(2):
        found = fused.collect(network.advantage_layers(), chooser.settings)
        truth = batched.collect(lambda states: acting(states, network), choose=other)
        for name in ("actions", "bars", "ends", "finals", "terminated", "truncated", "status"):
            assert torch.equal(getattr(found, name), getattr(truth, name)), name
        torch.testing.assert_close(found.states, truth.states, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(found.equities, truth.equities)
        torch.testing.assert_close(found.rewards, truth.rewards, rtol=1e-4, atol=1e-4)
        for one, another in zip(experiences[0].add(found, found.rewards), experiences[1].add(truth, truth.rewards), strict=True):
            torch.testing.assert_close(one, another, rtol=1e-4, atol=1e-4)
    assert fused.played == batched.played == 2 * 3 * 7 and (chooser.epsilon() == other.epsilon() or config.dqn.selection == "softmax")
    assert len(found.actions.unique()) > 3


def test_either_collector_resumes_the_others_checkpoint(market, network):
    config = config_of({"dqn.epsilon_steps": 1000})
    (fused, chooser), (batched, other) = pair(market, config)
    batched.collect(lambda states: acting(states, network), choose=other)
    fused.load_state_dict(batched.state_dict())
    for _ in range(2):
        found = fused.collect(network.advantage_layers(), chooser.settings).actions
        assert torch.equal(found, batched.collect(lambda states: acting(states, network), choose=other).actions)
    again, chooser = pair(market, config)[1]
    again.load_state_dict(fused.state_dict())
    found = again.collect(lambda states: acting(states, network), choose=chooser).actions
    assert torch.equal(found, batched.collect(lambda states: acting(states, network), choose=other).actions)


def test_given_actions_are_played(market, network):
    fused, chooser = pair(market, config_of())[0]
    actions = torch.randint(0, 45, (7, 3), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(fused.collect(network.advantage_layers(), chooser.settings, actions=actions).actions, actions)


def test_networks_without_a_kernel_and_wrong_layers_are_told_apart(market, network):
    for variant in set(HEADS) - {"dueling"}:
        config = config_of({"dqn.variant": variant})
        with pytest.raises(ConfigError, match=rf"^train\.collector = fused: dqn\.variant = {variant} has no fused rollout"):
            FusedQCollector(market, config, device="cpu")
    wide = config_of({"dqn.hidden": (40_000,)})
    assert "dqn.hidden = [40000]" in why_not_fused(wide, 5, CPU) and why_not_fused(config_of(), 5, CPU) is None
    fused, chooser = pair(market, config_of())[0]
    with pytest.raises(ValueError, match="built for layers"):
        fused.collect(network.advantage_layers()[:4], chooser.settings)


def test_a_trainer_on_either_collector_learns_the_same_from_the_same_play(market):
    """With every action random the two play the same, so that replay, updates and checkpoints agree, and either goes on for the other."""
    config = config_of({"dqn.epsilon_start": 1.0, "dqn.epsilon_end": 1.0, "train.precision": "float32"})
    fused = Dqn(config, FusedQCollector(market, config, device="cpu"), market.regime)
    batched = Dqn(config, BatchedCollector(market, config), market.regime)
    for _ in range(2):
        fused.epoch()
        batched.epoch()
    _agree(fused, batched)
    one, other = fused.statistics(), batched.statistics()
    for name, value in one.items():
        assert value == pytest.approx(other[name], rel=1e-3, abs=1e-5, nan_ok=True), name
    swapped = Dqn(config, BatchedCollector(market, config), market.regime)
    swapped.load({name: torch.as_tensor(value) for name, value in fused.state().items()})
    swapped.replay.load_state_dict(fused.replay.state_dict())
    swapped.epoch()
    batched.epoch()
    _agree(swapped, batched)


def _agree(one, other):
    a, b = one.state(), other.state()
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(torch.as_tensor(a[name]), torch.as_tensor(b[name]), rtol=1e-4, atol=1e-5, msg=name)


def test_a_training_takes_the_fused_collector_where_it_fits(market, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    gpu = torch.device("cuda")
    assert building.why_not_fused(config_of(), market, gpu) is None
    assert building.why_not_fused(config_of({"reward.curiosity": 1.0}), market, gpu) is None
    assert building.why_not_fused(config_of({"dqn.variant": "iqn"}), market, gpu).startswith("dqn.variant = iqn")
    assert building.why_not_fused(config_of({"train.precision": "float32"}), market, gpu) == "its products are bf16, not float32"
    assert building.why_not_fused(config_of(), market, CPU) == "it needs a GPU"
    with pytest.raises(ConfigError, match="its products are bf16"):
        building._trainer(config_of({"train.precision": "float32", "train.collector": "fused"}), market, gpu, None)
