"""The fused collector in the simulator beside the batched one: same episodes, checkpoints that either takes up, errors in one line."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import reference.kept_rules  # noqa: F401 - compiles once a machine, not once a run
import torch
from reference.epoch_state import update as state_reference
from reference.monitor import monitor as monitor_reference

from numba_rl.collect.batched import BatchedCollector
from numba_rl.collect.epoch import Epochs
from numba_rl.collect.fused import FusedCollector, rebuilt
from numba_rl.config import Config, EpisodeConfig, PpoConfig
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.errors import ConfigError, UserError
from numba_rl.gpu import SIMULATED
from numba_rl.trainer.networks import build_actor

pytestmark = pytest.mark.skipif(not SIMULATED, reason="tiny shapes of the simulator; kernels/test_rollout_gpu has the real ones")

CONFIG = Config(episodes=EpisodeConfig(count=3, launch=7, length=5), ppo=PpoConfig(actor=(6, 4)))


@pytest.fixture(scope="module")
def market():
    whole = load_market(CONFIG, generate("mean_reverting", 900, 3).bars)
    return replace(whole, features=np.ascontiguousarray(whole.features[:, :5]))


@pytest.fixture(scope="module")
def network(market):
    actor = build_actor(CONFIG, market.features.shape[1], torch.Generator().manual_seed(1))
    with torch.no_grad():
        actor.policy_output.weight.mul_(200)
    return actor


@pytest.mark.parametrize("form", ["block", "warp"])
def test_rollouts_are_those_of_the_batched_collector(market, network, form):
    fused, batched = FusedCollector(market, CONFIG, device="cpu", form=form), BatchedCollector(market, CONFIG)
    for _ in range(2):
        found = fused.collect(network)
        truth = batched.collect(network) if form == "block" else batched.collect(network, actions=found.actions)
        for name in ("actions", "bars", "ends", "finals", "terminated", "truncated"):
            assert torch.equal(getattr(found, name), getattr(truth, name)), name
        torch.testing.assert_close(found.states, truth.states, rtol=1e-6, atol=1e-6)
        for e, count in enumerate(found.finals):
            torch.testing.assert_close(found.final_states[:count, e], truth.final_states[:count, e], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(found.rewards, truth.rewards, rtol=1e-4, atol=1e-4)
        if form == "block":
            torch.testing.assert_close(found.log_probs, truth.log_probs, rtol=0, atol=1e-5)
    assert fused.played == batched.played == 2 * 3 * 7


def test_either_collector_resumes_the_others_checkpoint(market, network):
    first = BatchedCollector(market, CONFIG)
    first.collect(network)
    saved = first.state_dict()
    fused = FusedCollector(market, CONFIG, device="cpu", form="block")
    fused.load_state_dict(saved)
    assert torch.equal(fused.collect(network).actions, first.collect(network).actions)
    again = BatchedCollector(market, CONFIG)
    again.load_state_dict(fused.state_dict())
    assert torch.equal(again.collect(network).actions, first.collect(network).actions)
    other = FusedCollector(market, msgspec.structs.replace(CONFIG, episodes=EpisodeConfig(count=2, launch=7, length=5)), device="cpu")
    with pytest.raises(UserError, match=r"episodes\.count"):
        other.load_state_dict(saved)


def test_states_are_rebuilt_in_any_width_and_type():
    features = torch.arange(12.0).view(4, 3)
    rows, account = torch.tensor([[2], [0]], dtype=torch.int32), torch.tensor([[[1.0, 0.5, 1e-4]], [[2.0, -1.0, 2e-4]]])
    assert torch.equal(rebuilt(features, rows, account)[0, 0], torch.tensor([6.0, 7.0, 8.0, 1.0, 0.5, 1e-4]))
    wide = rebuilt(features, rows, account, width=8, dtype=torch.bfloat16)
    assert wide.shape == (2, 1, 8) and wide.dtype == torch.bfloat16 and not wide[..., 6:].any()


def test_actors_without_a_kernel_and_wrong_layers_are_told_apart(market, network):
    deep = msgspec.structs.replace(CONFIG, ppo=PpoConfig(actor=(8, 8, 8)))
    with pytest.raises(ConfigError, match=r"ppo\.actor"):
        FusedCollector(market, deep, device="cpu")
    with pytest.raises(ValueError, match="built for layers"):
        FusedCollector(market, CONFIG, device="cpu").collect(list(network.parameters())[:4])


@pytest.mark.parametrize("kind", ["fused", "batched on the CPU path"])
def test_epoch_state_and_figures_follow_the_rollouts(market, network, kind):
    if kind == "fused":
        collector = FusedCollector(market, CONFIG, device="cpu", form="warp")
    else:
        collector = BatchedCollector(market, CONFIG)
    epochs = Epochs(collector, market.regime[:, 0], simulate=kind == "fused")
    state, exact = epochs.state.numpy().copy(), epochs.exact.numpy().copy()
    for _ in range(2):
        epochs.begin()
        rollout = collector.collect(network)
        epochs.end(rollout)
        slots = {name: tensor.numpy() for name, tensor in collector.slots.items()}
        arguments = market.regime[:, 0], rollout.bars.numpy(), rollout.ends.numpy(), slots["portfolio"], slots["shaping"]
        state, exact = state_reference(state, exact, *arguments)
        np.testing.assert_allclose(epochs.state.numpy(), state, rtol=1e-5, atol=1e-7)
        assert np.array_equal(epochs.exact.numpy(), exact)
        figures = monitor_reference(rollout.rewards.numpy().ravel(), rollout.actions.numpy().ravel())
        np.testing.assert_allclose(epochs.figures.numpy(), figures, rtol=1e-4, atol=1e-6)
    epochs.ask_reset(2)
    epochs.begin()
    assert (collector.slots["portfolio"][:, 0] == collector.rules.initial_capital).all() and epochs.state[4] == 1
    other = Epochs(collector, market.regime[:, 0], simulate=kind == "fused")
    other.load_state_dict(epochs.state_dict())
    assert torch.equal(other.state, epochs.state) and torch.equal(other.exact, epochs.exact)
