"""The losses against their definitions in float64, and at the edges."""

import math

import pytest
import torch

from numba_rl.trainer import losses


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_policy_loss_and_what_is_watched_match_the_definition():
    new, old, advantages = random(200, seed=1) * 0.3 - 3, random(200, seed=2) * 0.3 - 3, random(200, seed=3)
    found = losses.policy_loss(new, old, advantages, torch.tensor(0.2))
    total, kl, outside = 0.0, 0.0, 0
    for n, o, a in zip(new.double().tolist(), old.double().tolist(), advantages.double().tolist(), strict=True):
        ratio = math.exp(n - o)
        total -= min(ratio * a, min(max(ratio, 0.8), 1.2) * a)
        kl += ratio - 1 - (n - o)
        outside += abs(ratio - 1) > 0.2
    assert found.loss.item() == pytest.approx(total / 200, rel=1e-5)
    assert found.approx_kl.item() == pytest.approx(kl / 200, rel=1e-4)
    assert found.clip_fraction.item() == pytest.approx(outside / 200)
    assert found.overflows.item() == 0


@pytest.mark.parametrize(("ratio", "advantage", "moves"), [(1.5, 1.0, False), (1.5, -1.0, True), (0.5, 1.0, True), (0.5, -1.0, False)])
def test_the_clip_stops_the_gradient_on_one_side_only(ratio, advantage, moves):
    log_probs = torch.tensor([math.log(ratio)], requires_grad=True)
    losses.policy_loss(log_probs, torch.zeros(1), torch.tensor([advantage]), torch.tensor(0.2)).loss.backward()
    assert (log_probs.grad.item() != 0) == moves


def test_normalized_advantages_have_mean_0_and_deviation_1():
    found = losses.normalized(random(999) * 40 + 1000).double()
    assert found.mean().item() == pytest.approx(0, abs=1e-6)
    assert found.square().mean().item() == pytest.approx(1, rel=1e-6)


def test_explained_variance():
    returns = random(500, seed=4)
    assert losses.explained_variance(returns.clone(), returns).item() == 1.0
    assert losses.explained_variance(torch.zeros(500), returns).item() == pytest.approx(0, abs=1e-6)
    assert losses.explained_variance(-returns, returns).item() == pytest.approx(-3, rel=1e-5)
    assert losses.explained_variance(returns[:3], torch.ones(3)).item() == 0.0
