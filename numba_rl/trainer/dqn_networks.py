"""Action-value networks: dueling (Wang et al. 2016) and its variants.

States pass through the hidden layers, then one layer whose first half feeds the value and whose second half the advantages;
q = value + advantage - mean advantage of its head. With 51 features: 54-256-256, then value 128-1 and advantage 128-45.

  dueling    one head of 45
  noisy      the same, its last two layers noisy (Fortunato et al. 2018, factorised): weight + sigma x noise
  iqn        the same over quantiles (Dabney et al. 2018): hidden state x embedding of the level tau, then the two streams
  branching  heads of 5, 3 and 3 over a common value (Tavakoli et al. 2018)
  exposure   one head of 5; order type and urgency are routed (numba_rl.rules.routing)

Whether there is noise is said at each call, not by train() and eval(); without it a network is a fixed function.
"""

import math

import torch
from torch import nn
from torch.nn import functional

from numba_rl.config import Config
from numba_rl.kernels import route
from numba_rl.kernels.select import BRANCHING, EXPOSURE, FLAT
from numba_rl.rules.actions import ACTIONS, EXPOSURES, MARKET, NORMAL, ORDERS, URGENCIES, compose
from numba_rl.trainer.networks import PORTFOLIO_FEATURES, dense_parameters

HEADS = {
    "dueling": (ACTIONS,), "noisy": (ACTIONS,), "iqn": (ACTIONS,), "branching": (EXPOSURES, ORDERS, URGENCIES), "exposure": (EXPOSURES,),
}  # fmt: skip
KINDS = {"branching": BRANCHING, "exposure": EXPOSURE}
COSINES = 64  # of the embedding of a level
SIGMA = 0.5  # initial sigma x sqrt(inputs)


def kind_of(variant: str) -> int:
    """How actions are chosen from the values of a variant (numba_rl.kernels.select)."""
    return KINDS.get(variant, FLAT)


def joined(q: torch.Tensor) -> torch.Tensor:
    """Logits float32 [N, 45] from the values [N, 11] of branching: the mean over the heads' parts of an action."""
    exposure, order, urgency = q.split(HEADS["branching"], -1)
    return (exposure[:, :, None, None] + order[:, None, :, None] + urgency[:, None, None, :]).reshape(len(q), ACTIONS) / 3.0


class NoisyLinear(nn.Linear):
    """A linear layer whose weights are weight + weight_sigma * (noise_out x noise_in), and biases alike, where noise is asked for.

    The noise lies in buffers that are neither trained nor saved; who owns the layer fills them (see `Noise` in trainer.dqn).
    """

    def __init__(self, inputs: int, outputs: int):
        super().__init__(inputs, outputs)
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), SIGMA / math.sqrt(inputs)))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), SIGMA / math.sqrt(inputs)))
        self.register_buffer("noise_in", torch.zeros(inputs), persistent=False)
        self.register_buffer("noise_out", torch.zeros(outputs), persistent=False)

    def forward(self, x: torch.Tensor, noise: bool = False) -> torch.Tensor:
        if not noise:
            return functional.linear(x, self.weight, self.bias)
        weight = self.weight + self.weight_sigma * torch.outer(self.noise_out, self.noise_in)
        return functional.linear(x, weight, self.bias + self.bias_sigma * self.noise_out)


class QNetwork(nn.Module):
    """inputs -> hidden... -> value and advantage streams of `head` units -> one value a choice of each head."""

    def __init__(self, inputs: int, hidden: tuple[int, ...], head: int, variant: str, quantiles: int, generator=None):
        super().__init__()
        self.variant, self.heads, self.head, self.inputs = variant, HEADS[variant], head, inputs
        self.quantiles = quantiles if variant == "iqn" else None
        self.noisy = variant == "noisy"
        linear = NoisyLinear if self.noisy else nn.Linear
        sizes = (inputs, *hidden)
        self.hidden = [f"hidden_layer_{index}" for index in range(len(hidden))]
        for name, fan_in, fan_out in zip(self.hidden, sizes[:-1], sizes[1:], strict=True):
            self.add_module(name, nn.Linear(fan_in, fan_out))
        if self.quantiles:
            self.quantile_layer = nn.Linear(COSINES, hidden[-1])
            self.register_buffer("frequencies", math.pi * torch.arange(COSINES, dtype=torch.float32), persistent=False)
            self.register_buffer("midpoints", (torch.arange(quantiles) + 0.5) / quantiles, persistent=False)
        self.stream_layer = linear(hidden[-1], 2 * head)  # the value's stream, then the advantages'
        self.value_output = linear(head, 1)
        self.advantage_output = linear(head, sum(self.heads))
        with torch.no_grad():
            for name, layer in self.named_children():
                blocks = layer.weight.split(head) if name == "stream_layer" else [layer.weight]
                gain = 0.1 if name.endswith("output") else math.sqrt(2.0)
                for block in blocks:
                    nn.init.orthogonal_(block, gain, generator=generator)
                nn.init.zeros_(layer.bias)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """States float32 [N, inputs] -> [N, hidden]."""
        for name in self.hidden:
            x = functional.relu_(getattr(self, name)(x))
        return x

    def streams(self, h: torch.Tensor, noise: bool) -> torch.Tensor:
        """[..., hidden] -> values [..., A], float32."""
        extra = (noise,) if self.noisy else ()
        h = functional.relu_(self.stream_layer(h, *extra))
        with torch.autocast(h.device.type, enabled=False):  # the last layer is float32 whatever the hidden ones are
            h = h.float()
            value = self.value_output(h[..., : self.head], *extra)
            advantage = self.advantage_output(h[..., self.head :], *extra)
            return torch.cat([value + part - part.mean(-1, keepdim=True) for part in advantage.split(self.heads, -1)], -1)

    def values(self, states: torch.Tensor, *, noise: bool = False) -> torch.Tensor:
        """Action values float32 [N, A]; of iqn the mean over evenly spaced levels."""
        h = self.body(states)
        if self.quantiles is None:
            return self.streams(h, noise)
        levels = self.midpoints.expand(len(states), -1)
        return self.streams(self.at_levels(h, levels), noise).mean(1)

    def advantage_layers(self) -> list[torch.Tensor]:
        """Weights and biases, in order, of the layers that make the advantages, without noise: what is best, and a softmax, is theirs alone."""
        parts = [part for name in self.hidden for part in (getattr(self, name).weight, getattr(self, name).bias)]
        parts += [self.stream_layer.weight[self.head :], self.stream_layer.bias[self.head :]]
        return [*parts, self.advantage_output.weight, self.advantage_output.bias]

    def at_levels(self, h: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
        """Hidden states [N, H] seen at levels [N, K] of (0, 1): [N, K, H]."""
        embedded = functional.relu(self.quantile_layer(torch.cos(levels[..., None] * self.frequencies)))
        return h[:, None, :] * embedded

    def quantile_values(self, states: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
        """iqn: float32 [N, K, 45], the value of each action at levels [N, K]."""
        return self.streams(self.at_levels(self.body(states), levels), False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Logits float32 [N, 45] of a policy, without noise. Of `exposure` for callers that know no account: market orders."""
        self._check(states)
        q = self.values(states)
        if self.variant == "branching":
            return joined(q)
        if self.variant == "exposure":
            logits = torch.full((len(q), ACTIONS), -math.inf, device=q.device)
            logits[:, [int(compose(exposure, MARKET, NORMAL)) for exposure in range(EXPOSURES)]] = q
            return logits
        return q

    @property
    def routed(self) -> bool:
        """Whether actions depend on the exposure held and the volatility beside the state."""
        return self.variant == "exposure"

    def routed_logits(self, states: torch.Tensor, held, volatility) -> torch.Tensor:
        """Logits float32 [N, 45] on the CPU, each exposure's value at the action it is routed to.

        held float64 [N]: exposures held; volatility float32 [N]: regime feature 41, unscaled; NumPy arrays.
        """
        self._check(states)
        q = self.values(states).float().cpu()
        logits = torch.empty(len(q), ACTIONS)
        route.route_cpu(q.contiguous().numpy(), held, volatility, logits.numpy())
        return logits

    def _check(self, states):
        if states.dim() != 2 or states.shape[1] != self.inputs:
            raise ValueError(f"states have shape {tuple(states.shape)}, this network takes (rows, {self.inputs})")
        if len(states) == 0:
            raise ValueError("there is nothing to choose for: the batch is empty")


def build_q_network(config: Config, features: int, generator=None) -> QNetwork:
    """The network of config.dqn for a state of `features` + 3."""
    dqn = config.dqn
    return QNetwork(features + PORTFOLIO_FEATURES, dqn.hidden, dqn.head, dqn.variant, dqn.quantiles, generator)


def q_parameters(config: Config, features: int) -> int:
    """Trained numbers of `build_q_network`'s network, without building it."""
    dqn = config.dqn
    hidden, head, outputs = dense_parameters(features + PORTFOLIO_FEATURES, *dqn.hidden), dqn.head, sum(HEADS[dqn.variant])
    ends = dense_parameters(dqn.hidden[-1], 2 * head) + dense_parameters(head, 1) + dense_parameters(head, outputs)
    levels = dense_parameters(COSINES, dqn.hidden[-1]) if dqn.variant == "iqn" else 0
    return hidden + levels + ends * (2 if dqn.variant == "noisy" else 1)  # noisy: a sigma for each weight
