"""The networks of the settings: sizes, names, first weights."""

import math

import pytest
import torch

from numba_rl import settings
from numba_rl.config import Config
from numba_rl.trainer.networks import build_actor, build_critic, dense_parameters, parameter_count


def seeded(build, changes=None, features=51, seed=0):
    return build(settings.replace(Config(), changes or {}), features, torch.Generator().manual_seed(seed))


def test_sizes_and_names_of_the_default_networks():
    actor, critic = seeded(build_actor), seeded(build_critic)
    assert (parameter_count(actor), parameter_count(critic)) == (18_221, 364_929)
    assert (dense_parameters(54, 128, 64, 45), dense_parameters(54, 512, 384, 256, 128, 64, 1)) == (18_221, 364_929)
    shapes = {name: tuple(weight.shape) for name, weight in (actor.state_dict() | critic.state_dict()).items() if name.endswith("weight")}
    assert shapes == {
        "policy_layer_0.weight": (128, 54), "policy_layer_1.weight": (64, 128), "policy_output.weight": (45, 64),
        "value_layer_0.weight": (512, 54), "value_layer_1.weight": (384, 512), "value_layer_2.weight": (256, 384),
        "value_layer_3.weight": (128, 256), "value_layer_4.weight": (64, 128), "value_output.weight": (1, 64),
    }  # fmt: skip


def test_sizes_follow_the_settings_and_the_features():
    actor = seeded(build_actor, {"ppo.actor": (8,)}, features=2)
    assert [tuple(weight.shape) for weight in actor.parameters()] == [(8, 5), (8,), (45, 8), (45,)]


@pytest.mark.parametrize(("build", "prefix", "gain"), [(build_actor, "policy", 0.01), (build_critic, "value", 1.0)])
def test_weights_are_orthogonal_with_their_gains(build, prefix, gain):
    for name, weight in seeded(build).state_dict().items():
        if name.endswith("bias"):
            assert not weight.any()
            continue
        wanted = gain if name.startswith(f"{prefix}_output") else math.sqrt(2)
        torch.testing.assert_close(torch.linalg.svdvals(weight), torch.full((min(weight.shape),), wanted), rtol=1e-4, atol=1e-5)


def test_a_seed_gives_the_same_weights_and_another_seed_others():
    one, same, other = (seeded(build_actor, seed=seed).policy_output.weight for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("slope", [0.0, 0.25])
def test_the_slope_of_the_negative_side(slope):
    actor = seeded(build_actor, {"ppo.actor": (3,), "ppo.leaky_slope": slope}, features=1)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    hidden = x @ actor.policy_layer_0.weight.T + actor.policy_layer_0.bias
    hidden = torch.where(hidden > 0, hidden, slope * hidden)
    assert (hidden < 0).any() == (slope > 0)
    torch.testing.assert_close(actor(x), hidden @ actor.policy_output.weight.T + actor.policy_output.bias)
