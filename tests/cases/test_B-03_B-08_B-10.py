"""B-03 (whose argmax double DQN takes), B-08 (noise of noisy layers), B-10 (when the target network moves)."""

import json
from pathlib import Path

import pytest
import torch

from numba_rl import settings
from numba_rl.collect.batched import BatchedCollector
from numba_rl.config import Config
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.trainer.dqn import Dqn
from numba_rl.trainer.dqn_losses import q_targets
from numba_rl.trainer.dqn_networks import HEADS

HERE = Path(__file__).parent
B03, B10 = (json.loads((HERE / name / "input.json").read_text()) for name in ("B-03", "B-10"))


@pytest.fixture(scope="module")
def market():
    return load_market(Config(), generate("mean_reverting", 1200, 5).bars)


def dqn(market, **changes):
    sizes = {
        "algorithm": "dqn", "episodes.count": 4, "episodes.launch": 8, "dqn.hidden": (8,), "dqn.head": 8, "dqn.batch": 8, "dqn.n_step": 2, "replay.capacity": 64,
    }  # fmt: skip
    config = settings.replace(Config(), sizes | {f"dqn.{name}": value for name, value in changes.items()})
    return Dqn(config, BatchedCollector(market, config), market.regime)


def row(values):
    return torch.tensor([values["h0"] + values["h1"] + values["h2"]])


@pytest.mark.parametrize(("double", "steps", "flag", "wanted"), [(True, 1, 0, 0.29), (False, 1, 0, 1.46), (True, 3, 0, 0.2 + 0.729 * 0.1), (True, 1, 1, 0.2)])
def test_b03_the_online_network_picks_and_the_target_network_values(double, steps, flag, wanted):
    """The heads share one target, the mean over the heads of the three of expected.txt."""
    online, target = row(B03["online_next_q"]), row(B03["target_next_q"])
    reward, discount = torch.tensor([B03["reward"]]), torch.tensor([B03["gamma"] ** steps])
    found = q_targets(reward, discount, torch.tensor([bool(flag)]), online if double else None, target, HEADS["branching"])
    assert found.item() == pytest.approx(wanted, abs=1e-6)


def test_b03_each_head_for_itself():
    expected = [0.425, 0.335, 0.11]
    for head, name in enumerate(("h0", "h1", "h2")):
        online, target = (torch.tensor([B03[f"{which}_next_q"][name]]) for which in ("online", "target"))
        found = q_targets(torch.tensor([0.2]), torch.tensor([0.9]), torch.tensor([False]), online, target, (online.shape[1],))
        assert found.item() == pytest.approx(expected[head], abs=1e-6)


def test_b08_evaluation_knows_no_noise(market):
    trainer = dqn(market, variant="noisy")
    trainer.epoch()
    policy, states = trainer.policy(market), torch.randn(5, 54)
    trainer.learner.noise.reset()
    before = policy(states).clone()
    trainer.learner.noise.reset()
    trainer.network.train()
    assert torch.equal(policy(states), before)
    assert not torch.equal(trainer.network.values(states, noise=True), before)
    trainer.network.eval()  # the framework's switch changes nothing: noise is asked for, or not
    assert not torch.equal(trainer.network.values(states, noise=True), before)


def test_b08_online_and_target_noise_are_drawn_apart_at_every_update(market):
    trainer = dqn(market, variant="noisy")
    trainer._collect()
    learner, states = trainer.learner, torch.randn(3, 54)
    learner.target_weights.copy_(learner.optimizer.weights.detach())
    online, target = set(), set()
    for _ in range(50):
        learner.updates(1)
        assert not torch.equal(learner.noise.values, learner.target_noise.values)
        online.add(learner.network.values(states, noise=True).sum().item())
        target.add(learner.target_noise.values.sum().item())
    assert len(online) == len(target) == 50


def test_b08_mu_and_sigma_are_averaged_and_noise_is_not(market):
    trainer = dqn(market, variant="noisy", target_rate=0.1)
    trainer.epoch()
    learner = trainer.learner
    learner.optimizer.weights.data.fill_(1.0)
    learner.target_weights.zero_()
    learner.optimizer.lr.zero_()  # the online weights stay
    for wanted in (0.1, 0.19):
        learner.optimizer.zero_grad()
        parts = [learner._part(learner._drawn())]
        noise = learner.target_noise.values.clone()
        learner._step(parts)
        assert (learner.optimizer.weights == 1.0).all()
        for name, weight in learner.target.named_parameters():
            torch.testing.assert_close(weight.detach(), torch.full_like(weight, wanted))
        assert {"stream_layer.weight", "stream_layer.weight_sigma"} <= {name for name, _ in learner.target.named_parameters()}
        assert torch.equal(learner.target_noise.values, noise)


def test_b08_a_resume_repeats_the_noise(market):
    one, other = dqn(market, variant="noisy"), dqn(market, variant="noisy")
    one.epoch()
    other.load({name: torch.as_tensor(value).clone() for name, value in one.state().items()})
    assert torch.equal(one.network.stream_layer.weight_sigma, other.network.stream_layer.weight_sigma)
    for trainer in (one, other):
        trainer.learner.noise.reset()
    assert torch.equal(one.learner.noise.values, other.learner.noise.values)


@pytest.mark.parametrize("envs", B10["envs"])
def test_b10_the_target_moves_with_every_gradient_step_whatever_the_number_of_episodes(market, envs):
    """The unit here: the target moves after each update, and updates are counted by steps of all episodes together."""
    sizes = {"episodes.count": envs, "episodes.launch": 2048 // envs, "dqn.hidden": (8,), "dqn.head": 8, "dqn.batch": 8}
    config = settings.replace(Config(), {"algorithm": "dqn", "dqn.target_rate": 0.005} | sizes)
    trainer = Dqn(config, BatchedCollector(market, config), market.regime)
    assert trainer.updates == 2048 // 128
    moved, weights = 0, trainer.learner.target_weights
    lerp = weights.lerp_

    class Counting:
        def lerp_(self, *arguments):
            nonlocal moved
            moved += 1
            return lerp(*arguments)

    trainer.learner.target_weights = Counting()
    trainer.epoch()
    assert moved == 16
    state = {name: torch.as_tensor(value).clone() for name, value in (trainer.state()).items()}
    for _ in range(5):
        again = Dqn(config, BatchedCollector(market, config), market.regime)
        again.load(state)
        state = {name: torch.as_tensor(value).clone() for name, value in again.state().items()}
        assert (again.updates, again.config.dqn.target_rate) == (16, 0.005)
