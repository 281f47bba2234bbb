"""The written-out PPO update against autograd: in the simulator with tiny networks, on a GPU with the real ones."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from numba_rl import gpu
from numba_rl.config import GuardConfig, PpoConfig
from numba_rl.rules.permutation import permuted
from numba_rl.trainer import fused_update
from numba_rl.trainer.fused_update import FusedUpdate, fits
from numba_rl.trainer.guard import Guard


def layers(sizes, device):
    return [nn.Linear(a, b).to(device) for a, b in zip(sizes[:-1], sizes[1:], strict=True)]


def forward(network, x):
    for layer in network[:-1]:
        x = torch.relu(layer(x))
    return network[-1](x)


def rollout(features, bars, samples, actions, device, seed=0):
    random = torch.Generator().manual_seed(seed)
    table = torch.randn(bars, features, generator=random)
    bar = torch.randint(0, bars, (samples,), generator=random, dtype=torch.int32)
    account = torch.stack([1 + 0.1 * torch.randn(samples, generator=random), torch.randn(samples, generator=random), torch.full((samples,), 1e-4)], 1)
    taken = torch.randint(0, actions, (samples,), generator=random, dtype=torch.int32)
    old = -torch.log(torch.tensor(float(actions))) + 0.1 * torch.randn(samples, generator=random)
    advantages, returns = torch.randn(samples, generator=random), torch.randn(samples, generator=random)
    return [part.to(device).contiguous() for part in (table, bar, account, taken, old, advantages, returns)]


def autograd_step(actor, critic, x, taken, old, advantages, returns, config):
    a = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    log_pi = torch.log_softmax(forward(actor, x), -1)
    log_ratio = (log_pi.gather(1, taken.long()[:, None])[:, 0] - old).clamp(-20, 20)
    ratio = log_ratio.exp()
    policy = -torch.minimum(ratio * a, ratio.clamp(1 - config.clip, 1 + config.clip) * a).mean()
    entropy = -(log_pi.exp() * log_pi).sum(-1).mean()
    value = (forward(critic, x)[:, 0] - returns).square().mean()
    (policy + config.value_coef * value - config.entropy_coef * entropy).backward()
    return policy, value, entropy


def check_first_step(device, actor_sizes, critic_sizes, features, samples, actions, tolerance, **block):
    config = PpoConfig(actor=tuple(actor_sizes), critic=tuple(critic_sizes), epochs=1, minibatches=2, value_coef=0.5, max_grad_norm=1e9)
    torch.manual_seed(0)
    actor, critic = layers([features + 3, *actor_sizes, actions], device), layers([features + 3, *critic_sizes, 1], device)
    table, *data = rollout(features, 50, samples, actions, device)
    update = FusedUpdate(actor, critic, table, config, samples, seed=5, **block)
    bars, account, taken, old, advantages, returns = data
    order = torch.tensor([permuted(w, samples, 5, 0) for w in range(samples // 2)], device=device)
    x = torch.cat([table[bars.long()], account], 1).bfloat16().float()[order]
    reference = [[nn.Linear(l.in_features, l.out_features).to(device) for l in network] for network in (actor, critic)]
    for network, copies in zip((actor, critic), reference, strict=True):
        for layer, copy in zip(network, copies, strict=True):
            copy.load_state_dict({name: value.detach().clone() for name, value in layer.state_dict().items()})
    values = torch.zeros(samples, device=device)
    update.critic_values((bars, account, values))
    direct = forward(reference[1], torch.cat([table[bars.long()], account], 1))[:, 0]
    assert (values - direct).norm() / direct.norm() < tolerance
    in_passes = torch.zeros_like(values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_update, "VALUE_ROWS", samples // 3)
        update.critic_values((bars[:1], account[:1], in_passes[:1]), (bars[1:], account[1:], in_passes[1:]))
    assert (in_passes - values).norm() / direct.norm() < tolerance / 10
    policy, value, entropy = autograd_step(*reference, x, taken[order], old[order], advantages[order], returns[order], config)
    source = [gpu.view(part) for part in data]
    update._begin(source)
    update._minibatch(source, 0)
    gradients = update.named(torch.cat([update.weight_gradient, update.tail_gradient]))
    for kind, network in zip(("actor", "critic"), reference, strict=True):
        wrong, whole = 0.0, 0.0
        for k, layer in enumerate(network):
            for got, parameter in zip(gradients[kind, k], (layer.weight, layer.bias), strict=True):
                error, size = float((got - parameter.grad).norm()), float(parameter.grad.norm())
                assert error < 2 * tolerance * size, (kind, k, parameter.shape, error / size)
                wrong, whole = wrong + error**2, whole + size**2
        assert wrong < tolerance**2 * whole, kind
    sums = update.sums[0].sum(0) / (samples // 2)
    for got, expected in zip(sums, (policy, value, entropy), strict=False):
        assert float(got) == pytest.approx(float(expected.detach()), rel=tolerance, abs=tolerance)
    assert int(update.counts[1]) == 1


@pytest.mark.skipif(not gpu.SIMULATED, reason="tiny networks in the simulator")
def test_gradients_in_the_simulator():
    check_first_step("cpu", (8, 8), (16, 8), 5, 24, 6, 0.05, lanes=4, warps=1, groups=2)


@pytest.mark.skipif(not gpu.SIMULATED, reason="tiny networks in the simulator")
def test_weight_decay_takes_its_share_of_the_weights_beside_the_step():
    stepped = []
    for decay in (20.0, 0.0):
        torch.manual_seed(0)
        networks = layers([8, 8, 8, 6], "cpu"), layers([8, 16, 8, 1], "cpu")
        table, *data = rollout(5, 50, 24, 6, "cpu")
        config = PpoConfig(actor=(8, 8), critic=(16, 8), epochs=1, minibatches=1, lr=1e-3, weight_decay=decay)
        update = FusedUpdate(*networks, table, config, 24, seed=5, lanes=4, warps=1, groups=2)
        before = update.weights.clone()
        update.update(*data)
        stepped.append(update.weights.clone())
    assert before.any()
    torch.testing.assert_close(stepped[1] - stepped[0], 0.02 * before, rtol=1e-3, atol=1e-6)


@pytest.mark.gpu
def test_gradients_on_a_gpu():
    check_first_step("cuda", (128, 64), (512, 384, 256, 128, 64), 51, 8192, 45, 0.05)


@pytest.mark.gpu
def test_a_rerun_is_identical():
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        config = PpoConfig()
        actor, critic = layers([54, 128, 64, 45], "cuda"), layers([54, 512, 384, 256, 128, 64, 1], "cuda")
        table, *data = rollout(51, 1000, 64_000, 45, "cuda")
        update = FusedUpdate(actor, critic, table, config, 64_000, seed=1)
        update.update(*data)
        assert int(update.made) == config.epochs * config.minibatches and int(update.counts[2]) == 0
        results.append(update.weights.clone())
    assert torch.equal(*results)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1000, 16_000, 131_072])
def test_the_first_layer_s_backward_in_one_pass_makes_the_same_step(rows):
    found = []
    config = PpoConfig(epochs=1, minibatches=1)
    for one_pass in (False, True):
        torch.manual_seed(0)
        actor, critic = layers([54, 128, 64, 45], "cuda"), layers([54, 512, 384, 256, 128, 64, 1], "cuda")
        table, *data = rollout(51, 1000, rows, 45, "cuda")
        update = FusedUpdate(actor, critic, table, config, rows, seed=1, one_pass=one_pass)
        assert (update.first_parts is not None) == one_pass
        before = update.weights.clone()
        update.update(*data)
        assert int(update.made) == 1
        found.append((torch.cat([update.weight_gradient, update.tail_gradient]), update.weights - before))
    (gradient, step), (other_gradient, other_step) = found
    assert (gradient - other_gradient).norm() < 1e-4 * gradient.norm()
    # Adam's first step is the sign of the gradient, which is open where that is next to nothing
    assert (step - other_step).norm() < 0.05 * step.norm()


@pytest.mark.gpu
def test_one_pass_is_taken_where_it_pays():
    actor, critic = layers([54, 128, 64, 45], "cuda"), layers([54, 512, 384, 256, 128, 64, 1], "cuda")
    for rows, taken in ((1000, False), (131_072, True)):
        table, *_ = rollout(51, 50, rows, 45, "cuda")
        update = FusedUpdate(actor, critic, table, PpoConfig(minibatches=1), rows, seed=1)
        assert (update.first_parts is not None) == taken
    actor, critic = layers([103, 128, 64, 45], "cuda"), layers([103, 512, 64, 1], "cuda")
    table, *_ = rollout(100, 50, 131_072, 45, "cuda")
    wide = PpoConfig(minibatches=1, critic=(512, 64))
    assert FusedUpdate(actor, critic, table, wide, 131_072, seed=1).first_parts is None, "too many inputs"
    with pytest.raises(ValueError, match="at most 64 inputs, got 104"):
        FusedUpdate(actor, critic, table, wide, 131_072, seed=1, one_pass=True)


@pytest.mark.skipif(not gpu.SIMULATED, reason="tiny networks in the simulator")
def test_without_a_gpu_the_first_layer_s_backward_takes_two_steps():
    actor, critic = layers([8, 8, 8, 6], "cpu"), layers([8, 8, 8, 1], "cpu")
    table, *_ = rollout(5, 20, 16, 6, "cpu")
    config = PpoConfig(actor=(8, 8), critic=(8, 8), minibatches=1)
    assert FusedUpdate(actor, critic, table, config, 16, seed=0, lanes=4, warps=1, groups=2).first_parts is None
    with pytest.raises(ValueError, match="needs a GPU"):
        FusedUpdate(actor, critic, table, config, 16, seed=0, lanes=4, warps=1, groups=2, one_pass=True)


def test_what_fits():
    assert fits(PpoConfig())
    assert not fits(PpoConfig(actor=(64,)))
    assert not fits(PpoConfig(critic=(64, 60)))
    assert not fits(PpoConfig(leaky_slope=0.01))


@pytest.mark.skipif(not gpu.SIMULATED, reason="tiny networks in the simulator")
def test_kl_stop_and_padding_stay_untouched():
    config = PpoConfig(actor=(8, 8), critic=(8, 8), epochs=3, minibatches=1, target_kl=1e-6, lr=0.1)
    torch.manual_seed(0)
    actor, critic = layers([8, 8, 8, 6], "cpu"), layers([8, 8, 8, 1], "cpu")
    table, *data = rollout(5, 20, 16, 6, "cpu")
    update = FusedUpdate(actor, critic, table, config, 16, seed=0, lanes=4, warps=1, groups=2)
    update.update(*data)
    assert int(update.stop[0]) == 1 and int(update.made) == 1, "the passes after the first are left out"
    assert update.guard.read().updates == 1, "and not judged"
    inside = torch.zeros_like(update.weights)
    for weight, bias in update.named(inside).values():
        weight.fill_(1)
        bias.fill_(1)
    assert not update.weights[inside == 0].any(), "padding stays zero"
    assert np.isfinite(update.weights.numpy()).all()


@pytest.mark.skipif(not gpu.SIMULATED, reason="tiny networks in the simulator")
def test_a_step_that_is_not_finite_leaves_everything_as_it_was_and_after_a_halt_none_is_made():
    config, guard = PpoConfig(actor=(8, 8), critic=(8, 8), epochs=1, minibatches=1), Guard(GuardConfig(max_skipped=2), torch.device("cpu"))
    torch.manual_seed(0)
    actor, critic = layers([8, 8, 8, 6], "cpu"), layers([8, 8, 8, 1], "cpu")
    table, *data = rollout(5, 20, 16, 6, "cpu")
    update = FusedUpdate(actor, critic, table, config, 16, seed=0, guard=guard, lanes=4, warps=1, groups=2)
    update.update(*data)
    figures = guard.read().figures
    assert figures["loss"] == pytest.approx(float((update.sums[0].sum(0)[:3] * update.shares).sum()), rel=1e-5)
    assert figures["grad_norm"] == pytest.approx(float(update.norms.norm()), rel=1e-5)
    assert figures["q_mean"] == pytest.approx(float(update.values.mean()), rel=1e-4) and figures["q_max"] == float(update.values.max())
    before = [part.clone() for part in (update.weights, update.first_moment, update.second_moment, update.shadow)]
    broken = [*data[:-1], torch.full_like(data[-1], math.inf)]
    for given, judged, why in ((broken, 2, None), (broken, 3, "2 updates in a row had to be skipped"), (data, 3, "2 updates in a row had to be skipped")):
        update.update(*given)
        assert (guard.read().updates, guard.read().why) == (judged, why)
        for part, was in zip((update.weights, update.first_moment, update.second_moment, update.shadow), before, strict=True):
            assert torch.equal(part.view(torch.int16), was.view(torch.int16)), "bit for bit"
