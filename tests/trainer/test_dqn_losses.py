"""Targets and losses of Q-learning against hand-computed and float64 numbers."""

import numpy as np
import pytest
import torch
from reference import dqn as reference

from numba_rl.trainer import dqn_losses as losses
from numba_rl.trainer.dqn_networks import HEADS

RNG = np.random.default_rng(0)


def batch(rows):
    return {
        "rewards": torch.tensor(RNG.standard_normal(rows), dtype=torch.float32),
        "discounts": torch.tensor(0.9 ** RNG.integers(1, 4, rows), dtype=torch.float32),
        "terminated": torch.tensor(RNG.random(rows) < 0.3),
    }


@pytest.mark.parametrize("heads", [(45,), (5,), (5, 3, 3)])
def test_double_dqn_targets(heads):
    b = batch(50)
    online, target = (torch.tensor(RNG.standard_normal((50, sum(heads))), dtype=torch.float32) for _ in range(2))
    for picks, double in ((online, True), (target, False)):
        found = losses.q_targets(**b, online_next=online if double else None, target_next=target, heads=heads)
        wanted = [
            reference.target(r, g, d, p, t, heads)
            for r, g, d, p, t in zip(*(b[k].numpy() for k in ("rewards", "discounts", "terminated")), picks.numpy(), target.numpy(), strict=True)
        ]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_what_follows_a_ruin_cannot_be_seen():
    next_values = torch.tensor([float("nan"), float("inf"), 2.0])
    ruined = torch.tensor([True, True, False])
    found = losses.bellman(torch.tensor([1.0, -3.0, 0.5]), torch.full((3,), 0.9), ruined, next_values)
    torch.testing.assert_close(found, torch.tensor([1.0, -3.0, 2.3]))


@pytest.mark.parametrize("actions", [[0, 44, 17, 40]])
def test_places_are_those_of_the_parts(actions):
    exposure, order, urgency = np.array(actions) // 9, np.array(actions) // 3 % 3, np.array(actions) % 3
    found = losses.places(torch.tensor(actions, dtype=torch.int32), HEADS["branching"]).numpy()
    np.testing.assert_array_equal(found, np.stack([exposure, 5 + order, 8 + urgency], 1))
    np.testing.assert_array_equal(losses.places(torch.tensor(actions), HEADS["exposure"])[:, 0], exposure)
    np.testing.assert_array_equal(losses.places(torch.tensor(actions), HEADS["dueling"])[:, 0], actions)


@pytest.mark.parametrize("kind", ["huber", "squared"])
def test_losses_of_errors_of_every_size(kind):
    errors = torch.tensor([0.0, 0.3, -1.0, 1.0, -2.5, 1e6, -1e6], dtype=torch.float64)
    wanted = [reference.huber(e) if kind == "huber" else 0.5 * e * e for e in errors.tolist()]
    np.testing.assert_allclose(losses.element_loss(errors, kind), wanted, rtol=1e-12)


def test_the_gradient_reaches_the_values_of_the_actions_taken_alone():
    q = torch.zeros(2, 11, requires_grad=True)
    chosen = losses.places(torch.tensor([0, 44]), HEADS["branching"])
    loss, errors = losses.q_loss(q, chosen, torch.tensor([5.0, -0.5]), torch.tensor([1.0, 0.5]), "huber")
    loss.backward()
    wanted = torch.zeros(2, 11)
    wanted[0, [0, 5, 8]] = -1 / 6  # slope -1, a third of the mean over heads, half of the mean over samples
    wanted[1, [4, 7, 10]] = 0.5 * 0.5 / 6
    torch.testing.assert_close(q.grad, wanted)
    torch.testing.assert_close(errors, torch.tensor([5.0, 0.5]))


def test_quantile_regression():
    predicted, targets = torch.tensor(RNG.standard_normal((6, 4))), torch.tensor(3 * RNG.standard_normal((6, 5)))
    levels, weights = torch.tensor(RNG.random((6, 4))), torch.tensor(RNG.random(6))
    loss, errors = losses.quantile_loss(predicted, levels, targets, weights, "huber")
    wanted = [reference.quantile_huber(*row) for row in zip(predicted.numpy(), levels.numpy(), targets.numpy(), strict=True)]
    assert loss.item() == pytest.approx(np.mean(np.array(wanted) * weights.numpy()))
    np.testing.assert_allclose(errors, (targets[:, None] - predicted[:, :, None]).abs().mean((1, 2)))


def test_quantiles_of_a_ruin_are_its_reward_and_losses_stay_finite():
    rewards, ruined = torch.tensor([0.7, 0.7]), torch.tensor([True, False])
    targets = losses.bellman(rewards, torch.full((2,), 0.9), ruined, torch.randn(2, 8))
    assert (targets[0] == 0.7).all() and targets[1].std() > 0
    for size in (0.0, 1e6):
        predicted = torch.zeros(2, 8, requires_grad=True)
        loss, _ = losses.quantile_loss(predicted, torch.rand(2, 8), torch.full((2, 8), size), torch.ones(2), "huber")
        loss.backward()
        assert loss.isfinite() and predicted.grad.isfinite().all()


def test_quantile_regression_finds_the_quantiles():
    torch.manual_seed(0)
    sample, levels = torch.randn(4000), torch.tensor([[0.1, 0.5, 0.9]])
    predicted = torch.zeros(1, 3, requires_grad=True)
    optimizer = torch.optim.Adam([predicted], lr=0.02)
    for _ in range(600):
        optimizer.zero_grad()
        loss, _ = losses.quantile_loss(50 * predicted, levels, 50 * sample[None], torch.ones(1), "huber")
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(predicted[0].detach(), torch.quantile(sample, levels[0]), atol=0.05, rtol=0)
