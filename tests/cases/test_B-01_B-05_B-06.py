"""B-01 (one sample, equal samples), B-05 (0 log 0) and B-06 (exp overflow): losses stay finite, in value and gradient."""

import json
from pathlib import Path

import pytest
import torch

from numba_rl import settings
from numba_rl.collect.batched import BatchedCollector
from numba_rl.config import Config
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.trainer import losses
from numba_rl.trainer.ppo import Ppo

HERE = Path(__file__).parent
B01, B05, B06 = (json.loads((HERE / name / "input.json").read_text()) for name in ("B-01", "B-05", "B-06"))


@pytest.fixture(scope="module")
def market():
    return load_market(Config(), generate("mean_reverting", 1200, 5).bars)


def ppo(market, **changes):
    sizes = {"episodes.count": 5, "episodes.launch": 13, "ppo.actor": (8,), "ppo.critic": (8,)}  # 65 samples
    config = settings.replace(Config(), sizes | {f"ppo.{name}": value for name, value in changes.items()})
    return Ppo(config, BatchedCollector(market, config))


@pytest.mark.parametrize("name", ["advantages_single", "advantages_equal"])
def test_b01_one_advantage_or_equal_ones_are_normalised_to_zero(name):
    assert losses.normalized(torch.tensor(B01[name])).tolist() == [0.0] * len(B01[name])


@pytest.mark.parametrize("minibatches", [2, 64, 65])
def test_b01_every_sample_is_used_whatever_the_minibatches(market, minibatches):
    trainer = ppo(market, minibatches=minibatches, epochs=2)
    sizes = [len(part) for part in trainer._parts()]
    assert sum(sizes) == B01["rollout"]
    assert max(sizes) - min(sizes) <= 1
    trainer.epoch()
    figures = trainer.statistics()
    assert figures["losses/samples"] == 2 * B01["rollout"]
    assert figures["losses/skipped"] == 0
    assert all(weight.isfinite().all() for weight in trainer.networks().values())
    assert all(torch.isfinite(torch.tensor(figures[f"losses/{name}"])) for name in ("policy_loss", "value_loss", "entropy"))


def logits(text):
    return torch.tensor([float(value) for value in text.strip("[]").split(",")], requires_grad=True)


@pytest.mark.parametrize(("row", "expected"), [*zip(B05["rows"][:4], [0.693147, 0.0, 0.832396, 0.0], strict=True)])
def test_b05_entropy_and_its_gradient(row, expected):
    x = logits(row)
    found = losses.entropy(losses.log_probabilities(x[None]))
    assert found.item() == pytest.approx(expected, abs=1e-6)
    found.sum().backward()
    assert x.grad.isfinite().all()


def test_b05_no_legal_action_is_not_hidden():
    """It shows as NaN, which the update's guard skips and counts."""
    assert losses.entropy(losses.log_probabilities(logits(B05["rows"][4])[None])).isnan().all()


def test_b05_entropies_of_branches_add_up():
    branches = ([0.0] * 5, [1.0, 0.0, 0.0], [0.0, float("-inf"), 0.0])
    joint = sum(losses.entropy(losses.log_probabilities(torch.tensor([branch]))) for branch in branches)
    assert joint.item() == pytest.approx(3.277913, abs=1e-6)


def clipped(rows):
    log_ratios, advantages = (torch.tensor(column, dtype=torch.float32) for column in zip(*rows, strict=True))
    log_ratios.requires_grad_()
    found = losses.policy_loss(log_ratios, torch.zeros(len(rows)), advantages, torch.tensor(B06["clip"]))
    found.loss.backward()
    return found, log_ratios.grad


def test_b06_overflowing_ratios():
    found, gradient = clipped(B06["rows"])
    assert found.loss.item() == pytest.approx(-0.55, abs=1e-6)
    assert gradient.isfinite().all()
    assert found.overflows.item() == 3


def test_b06_an_unbounded_term_is_bounded_and_counted():
    found, gradient = clipped([*B06["rows"], B06["extra"]])
    assert found.loss.isfinite()
    assert gradient.isfinite().all()
    assert found.overflows.item() == 4


@pytest.mark.parametrize("precision", ["auto", "float32"])
def test_b06_the_first_ratios_are_1(market, precision):
    """The policy that is updated gives the log-probabilities that were collected: the actor is float32 in every precision."""
    changes = {"train.precision": precision, "episodes.count": 64, "episodes.launch": 8}
    config = settings.replace(Config(), changes)
    trainer = Ppo(config, BatchedCollector(market, config))
    rollout = trainer.collector.collect(trainer._act)
    new = losses.log_probabilities(trainer.actor(rollout.states[:-1].reshape(-1, rollout.states.shape[-1])))
    ratio = (new.gather(1, rollout.actions.reshape(-1, 1).long()).squeeze(1) - rollout.log_probs.reshape(-1)).exp()
    assert (ratio - 1).abs().max().item() < 1e-5
