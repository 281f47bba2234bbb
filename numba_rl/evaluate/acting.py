"""Networks as they choose step by step on a GPU: float32 as on the CPU path, in as few launches as the layers take.

Of action values the advantages alone are computed (see `QNetwork.advantage_layers`): what a value adds to all choices of a head alike
changes neither the best of them nor a softmax over them.
"""

import math

import torch

from numba_rl.rules.actions import ACTIONS
from numba_rl.trainer.dqn_networks import QNetwork, joined
from numba_rl.trainer.networks import Network


def dense_layers(network: Network | QNetwork) -> list[torch.Tensor]:
    """Weights and biases in order of the dense layers that a choice takes."""
    if isinstance(network, QNetwork):
        return [part.detach() for part in network.advantage_layers()]
    return [part.detach() for name in network.layers for part in (getattr(network, name).weight, getattr(network, name).bias)]


def form_of(network) -> tuple | None:
    """Kind and sizes: networks of one form can take each other's place. None: one that `Acting` does not know."""
    if isinstance(network, QNetwork):
        kind = (network.variant, network.quantiles)
    elif isinstance(network, Network):
        kind = ("actor", network.leaky_slope)
    else:
        return None
    shapes = tuple(tuple(part.shape) for part in dense_layers(network))
    return None if kind[0] == "actor" and shapes[-1] != (ACTIONS,) else (*kind, shapes)


class Acting:
    """A network's choices on a device: states float32 [N, F + 3] -> logits float32 [N, 45], or [N, 5] to be routed where `routed`.

    The weights lie in memory of its own, so that a captured call plays whatever `load` put there last.
    """

    def __init__(self, network: Network | QNetwork, device: torch.device):
        self.slope = getattr(network, "leaky_slope", 0.0)
        self.variant = getattr(network, "variant", None)
        self.routed = getattr(network, "routed", False)
        parts = [torch.empty(part.shape, device=device) for part in dense_layers(network)]
        self.layers = list(zip(parts[::2], parts[1::2], strict=True))
        self.levels = None  # iqn: float32 [K, hidden], what a hidden state is multiplied by at each level
        if self.variant == "iqn":
            self.levels = torch.empty(network.quantiles, self.layers[-2][0].shape[1], device=device)
        self.load(network)

    @torch.no_grad()
    def load(self, network: Network | QNetwork) -> None:
        """Take over the weights of a network of the same form."""
        parts = [part for layer in self.layers for part in layer]
        for part, weights in zip(parts, dense_layers(network), strict=True):
            part.copy_(weights)
        if self.levels is not None:
            ones = torch.ones(1, self.levels.shape[1], device=network.midpoints.device)
            self.levels.copy_(network.at_levels(ones, network.midpoints[None])[0])
        if isinstance(network, QNetwork):
            value = [network.value_output, network.stream_layer]
            if not all(part.isfinite().all() for layer in value for part in (layer.weight, layer.bias)):
                parts[-1].fill_(math.nan)  # the values are NaN, though the advantages need not be

    @torch.no_grad()
    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        x = states
        for weight, bias in self.layers[:-2]:
            x = self._hidden(x, weight, bias)
        if self.levels is not None:
            x = (x[:, None, :] * self.levels).flatten(0, 1)
        x = self._hidden(x, *self.layers[-2]) if len(self.layers) > 1 else x
        weight, bias = self.layers[-1]
        x = torch.addmm(bias, x, weight.t())
        if self.levels is not None:
            x = x.unflatten(0, (-1, len(self.levels))).mean(1)
        return joined(x) if self.variant == "branching" else x

    def _hidden(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        if self.slope:
            return torch.nn.functional.leaky_relu_(torch.addmm(bias, x, weight.t()), self.slope)
        return torch._addmm_activation(bias, x, weight.t())  # product, bias and ReLU in one launch
