"""The written-out DQN update against autograd in float32, in the simulator with a small network; see test_dqn_gpu for the real one."""

import math

import numpy as np
import pytest
import torch
from reference import dqn as reference

from numba_rl import gpu, settings
from numba_rl.config import Config
from numba_rl.kernels.dqn_loss import STATS, make_dqn_loss
from numba_rl.replay import PrioritizedReplay
from numba_rl.trainer.dqn_fused import FusedLearner
from numba_rl.trainer.dqn_networks import build_q_network
from numba_rl.trainer.dqn_update import Learner
from numba_rl.trainer.optimizer import weight_decay_of

pytestmark = pytest.mark.skipif(not gpu.SIMULATED, reason="launches kernels on CPU arrays, which only the simulator can")
FEATURES, BATCH = 5, 8


def made(kind, changes=None, **block):
    config = settings.replace(
        Config(), {"algorithm": "dqn", "dqn.hidden": (16, 8), "dqn.head": 8, "dqn.batch": BATCH, "dqn.lr": 1e-3} | (changes or {})
    )
    torch.manual_seed(0)
    network = build_q_network(config, FEATURES, torch.Generator().manual_seed(0))
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            parameter.data.normal_()
        elif name.endswith("output.weight"):
            parameter.data.mul_(10)
    replay = PrioritizedReplay(60, FEATURES + 3, device="cpu", seed=1)
    flags = (torch.rand(50) < 0.3).int()
    rewards = 3 * torch.randn(50)
    replay.insert(torch.randn(50, 8), torch.randn(50, 8), torch.randint(0, 45, (50,)), rewards, 0.9 ** torch.randint(1, 4, (50,)), flags)
    learner = kind(network, config, replay, **block)
    for weight, noise in zip(learner.target.parameters(), torch.randn(len(list(network.parameters()))), strict=True):
        weight.data.add_(0.1 * noise)
    return learner


def fused(changes=None):
    learner = made(FusedLearner, changes, lanes=4, warps=1)
    learner.refresh()
    return learner


def plain(changes=None):
    return made(Learner, changes, precision="float32")


@pytest.mark.parametrize(
    "changes", [{}, {"dqn.double": False}, {"dqn.loss": "squared", "dqn.max_grad_norm": 1.0}, {"dqn.weight_decay": 100.0}]
)
def test_one_update_equals_autograd(changes):
    one, other = fused(changes), plain(changes)
    before = one.named(one.weights.clone())
    for learner in (one, other):
        learner.begin()
        learner.updates(1)
    found, wanted = one.figures(), other.figures()
    for name in ("td_loss", "td_error", "grad_norm"):
        assert found[name] == pytest.approx(wanted[name], rel=0.03), name
    assert found["q_mean"] == pytest.approx(wanted["q_mean"], abs=0.05)
    scale = min(1.0, one.config.max_grad_norm / (wanted["grad_norm"] + 1e-6))
    first = one.named(one.first_moment)
    moments = other.optimizer.state()["exp_avg"]
    place, all_found, all_wanted = 0, [], []
    for part in first:
        all_found.append(part.reshape(-1) / 0.1)
        all_wanted.append(moments[place : place + part.numel()] / 0.1)
        place += part.numel()
    all_found, all_wanted = torch.cat(all_found), torch.cat(all_wanted)
    assert (all_found - all_wanted).norm() < 0.03 * all_wanted.norm()
    assert all_wanted.norm() == pytest.approx(scale * wanted["grad_norm"], rel=1e-3)
    for old, new, target, kept in zip(before, one.named(one.weights), one.named(one.target_weights), other.target.parameters(), strict=True):
        assert ((new - old * (1.0 - 1e-3 * weight_decay_of(one.config))).abs() <= 1.01e-3).all()
        torch.testing.assert_close(target, kept, atol=2e-4, rtol=0)
    torch.testing.assert_close(one.replay.priorities, other.replay.priorities, rtol=0.05, atol=0.02)
    torch.testing.assert_close(one.shadow, one.weights.bfloat16())
    torch.testing.assert_close(one.target_shadow, one.target_weights.bfloat16())


def test_blocks_of_the_last_matrix_that_are_no_part_of_the_network_stay_zero():
    learner = fused()
    learner.updates(1)
    last = learner._matrix(learner.weights, 3)
    inside = learner.mask.bool()
    assert (last[~inside] == 0).all() and (last[inside] != 0).any()
    assert (learner._matrix(learner.weights, 0)[:, 8:] == 0).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_step_that_is_not_finite_leaves_everything_as_it_was(bad):
    learner = fused()
    learner.updates(1)
    names = ("weights", "first_moment", "second_moment", "shadow", "target_weights", "target_shadow")
    before = [getattr(learner, name).clone() for name in names] + [learner.replay.priorities.clone()]
    learner.replay.backend.rows[::2, -3] = np.float32(bad).view(np.int32)  # every second reward
    learner.updates(1)
    after = [getattr(learner, name) for name in names] + [learner.replay.priorities]
    for name, one, other in zip((*names, "priorities"), before, after, strict=True):
        assert torch.equal(one.view(torch.int16), other.view(torch.int16)), f"{name}, bit for bit"
    assert (learner.figures()["skipped"], learner.guard.read().skipped_in_a_row, int(learner.counts[0])) == (1, 1, 1)
    assert learner.replay.rejected()["nan"] == 0, "the guard has skipped the step already"


def test_the_guard_judges_as_it_does_for_autograd_and_halts_all():
    changes = {"guard.q_divergence": 5.0, "guard.q_interval": 1}
    one, other = fused(changes), plain(changes)
    for learner in (one, other):
        learner.updates(1)
    found, wanted = one.guard.read(), other.guard.read()
    assert (found.updates, found.skipped, found.reason) == (wanted.updates, wanted.skipped, wanted.reason) == (1, 0, 0)
    for name, value in wanted.figures.items():
        assert found.figures[name] == pytest.approx(value, rel=0.03, abs=0.05), name
    for learner in (one, other):
        learner.replay.backend.rows[:, -3] = np.float32(100.0).view(np.int32)
        head = learner.network.value_output
        head.bias.data.fill_(50.0)
        learner.updates(1)
        assert "values diverged" in learner.guard.read().why
        before = learner.target_weights.clone(), learner.replay.priorities.clone(), head.bias.clone()
        learner.updates(1)
        assert all(torch.equal(*pair) for pair in zip(before, (learner.target_weights, learner.replay.priorities, head.bias), strict=True))
        assert learner.guard.read().updates == 2, "nothing is judged after a halt"


def test_actions_are_chosen_by_the_advantages():
    learner = fused()
    learner.updates(2)
    states = torch.randn(6, FEATURES + 3)
    found, values = learner.acting(states).clone(), learner.network.values(states)
    gap = found - values
    assert (gap - gap.mean(1, keepdim=True)).abs().max() < 0.03 * values.std()
    assert found.shape == (6, 45) and learner.acting(states[:2]).shape == (2, 45)


def test_warming_up_changes_nothing():
    one, other = fused(), fused()
    one.warm_up()
    for learner in (one, other):
        learner.begin()
        learner.updates(1)
    assert torch.equal(one.weights, other.weights) and torch.equal(one.target_weights, other.target_weights)
    assert one.figures() == other.figures()


def test_either_goes_on_where_the_other_stopped():
    one = fused()
    one.updates(1)
    state = {name: tensor.clone() for name, tensor in one.state().items()}
    other, again = plain(), fused()
    other.load(state)
    assert float(other.optimizer.state()["step"]) == 1
    back = {name: tensor.clone() for name, tensor in other.state().items()}
    assert back.keys() == state.keys()
    for name, value in state.items():
        torch.testing.assert_close(back[name], value, rtol=0, atol=0, equal_nan=True, msg=name)
    again.load(back)
    for name in ("weights", "target_weights", "first_moment", "second_moment", "shadow", "target_shadow"):
        assert torch.equal(getattr(again, name), getattr(one, name)), name
    assert torch.equal(again.counts[:1], one.counts[:1])
    again.replay.load_state_dict(one.replay.state_dict())
    for learner in (one, again):
        learner.updates(1)
    assert str(again.guard.read()) == str(one.guard.read()) and one.guard.read().updates == 2


@pytest.mark.parametrize(("actions", "columns", "lanes", "warps", "blocks"), [(45, 48, 8, 1, 2), (3, 4, 2, 1, 3), (5, 8, 8, 1, 1)])
def test_the_loss_kernel(actions, columns, lanes, warps, blocks):
    rng = np.random.default_rng(0)
    batch, offset = 7, 2

    def heads(rows):
        values = np.zeros((rows, columns), np.float32)
        values[:, : actions + 1] = rng.standard_normal((rows, actions + 1))
        return values

    online, target = heads(2 * batch), heads(batch)
    bias, target_bias = heads(1)[0], heads(1)[0]
    taken, flags = rng.integers(0, actions, batch).astype(np.int32), np.array([0, 1, 2, 0, 1, 0, 0], np.int32)
    rewards, discounts, weights = (rng.uniform(0.2, 4, batch).astype(np.float32) for _ in range(3))
    rewards[3] = np.nan
    errors, values, gradient = np.zeros(batch, np.float32), np.zeros(batch, np.float32), np.zeros((batch, columns // 2), np.uint32)
    losses = np.zeros((blocks, 1), np.float32)
    partial, stats = np.full((blocks, offset + columns + 1), 9, np.float32), np.ones((blocks, STATS), np.float32)
    kernel = make_dqn_loss(actions, columns, lanes, warps)
    kernel[blocks, lanes * warps](online, bias, target, target_bias, taken, rewards, discounts, flags, weights,
                                  np.array([1 / batch, 1.0], np.float32), 1, errors, values, gradient, partial, offset, losses,
                                  stats)  # fmt: skip

    def q_of(values, shift):
        full = values.astype(float)[:, : actions + 1] + shift[: actions + 1]
        return reference.dueling(full[:, :1], full[:, 1:])

    q, following, worth = q_of(online[:batch], bias), q_of(online[batch:], bias), q_of(target, target_bias)
    out = np.empty((batch, columns), np.uint32)
    out[:, ::2], out[:, 1::2] = (gradient & 0xFFFF) << 16, gradient & 0xFFFF0000
    found, total = out.view(np.float32), np.zeros(3)
    assert np.isnan(losses.sum()) and np.isfinite(losses).sum() == blocks - 1
    for i in range(batch):
        y = reference.target(rewards[i], discounts[i], flags[i] & 1, following[i], worth[i], (actions,))
        error = q[i, taken[i]] - y
        assert values[i] == pytest.approx(q[i, taken[i]], rel=1e-5, abs=1e-5)
        if i == 3:
            assert math.isnan(errors[i]) and np.isnan(found[i, : actions + 1]).all()
            continue
        assert errors[i] == pytest.approx(error, rel=1e-4, abs=1e-5)
        slope = np.clip(error, -1, 1) * weights[i] / batch
        wanted = np.zeros(columns)
        wanted[0] = slope
        wanted[1 : actions + 1] = slope * ((np.arange(actions) == taken[i]) - 1 / actions)
        np.testing.assert_allclose(found[i], wanted, rtol=0.01, atol=1e-6)
        total += weights[i] * reference.huber(error), abs(error), q[i, taken[i]]
    np.testing.assert_allclose(stats.sum(0) - blocks, total, rtol=1e-4, atol=1e-4)
    assert np.isnan(partial[:, offset].sum()) and (partial[:, :offset] == 9).all() and (partial[:, -1] == 9).all()
    if columns > actions + 1:
        assert (partial[:, offset + actions + 1 : -1] == 0).all()
