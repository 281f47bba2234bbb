"""One epoch of PPO: advantages from the critic's values, passes over every sample, schedules, stops and skips."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from numba_rl.trainer.ppo import FIGURES

_spec = importlib.util.spec_from_file_location("reference_gae", Path(__file__).parents[1] / "reference" / "gae.py")
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)


def copied(ppo):
    return {name: torch.as_tensor(value).clone() for name, value in ppo.state().items()}


def learned(ppo):
    """Weights, moments and step count: what a skipped update must not touch."""
    return {name: value for name, value in copied(ppo).items() if name.startswith(("policy", "value", "optimizer")) and "skipped" not in name}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_an_epoch_moves_both_networks_and_reports_every_figure(trainer):
    ppo = trainer()
    before = learned(ppo)
    ppo.epoch()
    figures = ppo.statistics()
    assert set(figures) | {"losses/curiosity_loss", "rollout/curiosity_bonus"} == set(FIGURES)
    assert not any(torch.equal(before[name], learned(ppo)[name]) for name in ("policy_output.weight", "value_output.weight"))
    assert (ppo.steps, figures["losses/updates"], figures["losses/samples"]) == (64, 12, 4 * 64)
    assert figures["losses/entropy"] == pytest.approx(math.log(45), abs=0.05)


def test_advantages_are_gae_of_the_critic_with_true_next_states_where_cut(trainer):
    ppo = trainer({"episodes.length": 5, "train.precision": "float32"})
    rollout = ppo.collector.collect(ppo._act)
    batch, values = ppo._batch(rollout, rollout.rewards)
    critic = lambda states: ppo.critic(states)[..., 0].detach().numpy()
    ends = rollout.ends.numpy()
    assert (ends > 0).sum() == 12
    gamma, gae_lambda = ppo.config.ppo.gamma, ppo.config.ppo.gae_lambda
    wanted = reference.gae(rollout.rewards.numpy(), critic(rollout.states), ends, critic(rollout.final_states), gamma, gae_lambda)
    for found, its in zip((batch.advantages, batch.returns), wanted, strict=True):
        np.testing.assert_allclose(found.reshape(ends.shape).numpy(), its, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(values.numpy(), critic(rollout.states[:-1]).ravel(), rtol=1e-5, atol=1e-6)


def test_each_pass_has_an_order_of_its_own(trainer):
    ppo = trainer()
    orders = []
    for _ in range(3):
        ppo._shuffle()
        orders.append(ppo.order.tolist())
    assert all(sorted(order) == list(range(64)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


def test_a_linear_schedule_is_a_function_of_the_steps_played(trainer):
    ppo = trainer({"ppo.lr_schedule": "linear", "ppo.lr": 1e-3, "train.steps": 256})
    rates = []
    for _ in range(4):
        ppo.epoch()
        rates.append(ppo.statistics()["charts/learning_rate"])
    assert rates == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])


def test_weight_decay_takes_its_share_of_the_weights_beside_the_step(trainer):
    one_step = {"ppo.epochs": 1, "ppo.minibatches": 1, "ppo.lr": 1e-3, "ppo.lr_schedule": "constant"}
    before = copied(trainer(one_step))
    with_decay, without = (trainer(one_step | {"ppo.weight_decay": decay}) for decay in (20.0, 0.0))
    for ppo in (with_decay, without):
        ppo.epoch()
    decayed, plain = copied(with_decay), copied(without)
    for name in (name for name in before if name.startswith(("policy", "value"))):
        torch.testing.assert_close(plain[name] - decayed[name], 0.02 * before[name], rtol=1e-3, atol=1e-6)


def test_an_update_ends_when_the_policy_has_moved_too_far(trainer):
    far = trainer({"ppo.target_kl": 1e-6, "ppo.lr": 0.01, "ppo.minibatches": 4})
    far.epoch()
    near = trainer({"ppo.target_kl": 1e6, "ppo.lr": 0.01, "ppo.minibatches": 4})
    near.epoch()
    assert far.statistics()["losses/updates"] == 4, "the first pass alone"
    assert near.statistics()["losses/updates"] == 16


def test_a_stopped_update_is_no_skipped_one(trainer):
    ppo = trainer({"ppo.target_kl": 1e-6, "ppo.lr": 0.01})
    ppo.epoch()
    assert ppo.statistics()["losses/skipped"] == 0
    assert ppo.guard.read().skipped_in_a_row == 0


def test_rewards_that_are_not_finite_leave_everything_learned_as_it_was(trainer, monkeypatch):
    ppo = trainer()
    ppo.epoch()
    before = learned(ppo)
    monkeypatch.setattr(ppo, "_rewards", lambda rollout: torch.full_like(rollout.rewards, math.nan))
    ppo.epoch()
    assert same(before, learned(ppo))
    assert ppo.guard.read().skipped_in_a_row == ppo.statistics()["losses/skipped"] == 12
    monkeypatch.undo()
    ppo.epoch()
    assert ppo.guard.read().skipped_in_a_row == 0
    assert not same(before, learned(ppo))


def test_logits_that_are_not_finite_are_played_flat_and_counted(trainer):
    ppo = trainer()
    with torch.no_grad():
        ppo.actor.policy_output.bias[3] = math.nan
    before = learned(ppo)
    ppo.epoch()
    figures = ppo.statistics()
    assert figures["rollout/broken_slots"] == 4
    assert figures["losses/skipped"] == 12
    assert all(torch.equal(before[name], learned(ppo)[name]) for name in before if "policy_output.bias" not in name)
    assert (ppo.collector.rollout.actions // 9 == 2).all()


@pytest.mark.parametrize(
    "changes", [{}, {"reward.curiosity": 1.0, "reward.diversity": 1.0, "reward.barrier": 0.5, "reward.shaping": "ema", "ppo.lr_schedule": "linear"}]
)
def test_a_loaded_state_goes_on_bit_for_bit(trainer, changes):
    changes = changes | {"episodes.length": 40}
    straight, first, second = trainer(changes), trainer(changes), trainer(changes)
    for _ in range(4):
        straight.epoch()
    for _ in range(2):
        first.epoch()
    second.load(copied(first))
    for _ in range(2):
        second.epoch()
    assert same(copied(straight), copied(second))
    assert straight.statistics() == pytest.approx(second.statistics(), nan_ok=True, rel=0, abs=0)


def test_seeds_differ_and_repeat(trainer):
    runs = []
    for seed in (1, 1, 2):
        ppo = trainer({"train.seed": seed})
        ppo.epoch()
        runs.append(copied(ppo))
    assert same(runs[0], runs[1])
    assert not torch.equal(runs[0]["policy_output.weight"], runs[2]["policy_output.weight"])
