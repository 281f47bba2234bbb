"""The actor and the critic: fully connected, ReLU between, sizes from the settings.

With 51 features and the default sizes: actor 54-128-64-45 (18,221 parameters), critic 54-512-384-256-128-64-1 (364,929).
Layers are called policy_layer_0, policy_layer_1, ..., policy_output and value_layer_0, ..., value_output.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from numba_rl.config import Config
from numba_rl.rules.actions import ACTIONS

PORTFOLIO_FEATURES = 3


class Network(nn.Module):
    """inputs -> hidden... -> outputs with (leaky) ReLU between. float32 [rows, inputs] -> float32 [rows, outputs].

    Orthogonal weights (Saxe et al. 2014) with gain sqrt(2), `output_gain` in the last layer, zero biases, drawn from
    `generator` on the CPU, so that a seed gives the same network on every device.
    """

    def __init__(
        self, prefix: str, inputs: int, hidden: Sequence[int], outputs: int, *, output_gain: float, leaky_slope: float = 0.0, generator=None
    ):
        super().__init__()
        self.leaky_slope = leaky_slope
        sizes = (inputs, *hidden, outputs)
        self.layers = []
        for index, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            last = index == len(hidden)
            layer = nn.Linear(fan_in, fan_out)
            nn.init.orthogonal_(layer.weight, output_gain if last else math.sqrt(2.0), generator=generator)
            nn.init.zeros_(layer.bias)
            name = f"{prefix}_output" if last else f"{prefix}_layer_{index}"
            self.add_module(name, layer)
            self.layers.append(name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.layers[:-1]:
            x = getattr(self, name)(x)
            # in place: the backward of both needs the result alone
            x = functional.leaky_relu_(x, self.leaky_slope) if self.leaky_slope else functional.relu_(x)
        with torch.autocast(x.device.type, enabled=False):  # the last layer is float32 whatever the hidden ones are
            return getattr(self, self.layers[-1])(x.float())


def build_actor(config: Config, features: int, generator=None) -> Network:
    """The policy over 45 actions for a state of `features` + 3. Its first logits are close to equal (output gain 0.01)."""
    ppo = config.ppo
    return Network(
        "policy",
        features + PORTFOLIO_FEATURES,
        ppo.actor,
        ACTIONS,
        output_gain=0.01,
        leaky_slope=ppo.leaky_slope,
        generator=generator,
    )


def build_critic(config: Config, features: int, generator=None) -> Network:
    """The value of a state of `features` + 3, float32 [rows, 1]."""
    ppo = config.ppo
    return Network(
        "value", features + PORTFOLIO_FEATURES, ppo.critic, 1, output_gain=1.0, leaky_slope=ppo.leaky_slope, generator=generator
    )


def parameter_count(network: nn.Module) -> int:
    """Number of trained numbers."""
    return sum(parameter.numel() for parameter in network.parameters())


def dense_parameters(*sizes: int) -> int:
    """Weights and biases of fully connected layers of these sizes, inputs first."""
    return sum((inputs + 1) * outputs for inputs, outputs in pairwise(sizes))
