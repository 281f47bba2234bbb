"""Adam (Kingma and Ba 2015), with decoupled weight decay (Loshchilov and Hutter 2019) if wanted, over several networks whose parameters lie in one flat tensor, a step without a host read.

Gradients lie flat too, so that the norm, the clipping and the step are each one operation. Gradients are clipped for each
network by itself: the actor's step does not shrink because the critic's gradient is large. A step whose gradient or loss is not
finite, or that is told to `skip`, leaves weights, moments and step count untouched, bit for bit; the former is counted.
"""

from collections.abc import Mapping

import torch
from torch import nn

from numba_rl.config import DqnConfig, PpoConfig

BETAS = (0.9, 0.999)
EPSILON = 1e-5  # as PPO implementations use it; 1e-8 lets rarely used weights jump


def learning_rate(agent: PpoConfig | DqnConfig, steps: int, total: int) -> float:
    """Of the epoch after `steps` of `total`: a function of the steps played alone, so that a resumed run goes on where it was."""
    left = max(0.0, 1.0 - steps / total) if agent.lr_schedule == "linear" else 1.0
    return agent.lr * left


def weight_decay_of(agent: DqnConfig) -> float:
    """Weight decay of a Q-network, by its variant where it is not set.

    Decay keeps a network from learning the noise of single bars by heart; too much of it hides what tells like choices apart, so that an
    agent ends at half exposures. The quantile network earned a quarter to a half less with it than without.
    """
    if agent.weight_decay is not None:
        return agent.weight_decay
    return 0.0 if agent.variant == "iqn" else 10.0


class FlatAdam:
    """Owns the parameters of `networks`: their tensors become views of `weights` float32 [P]."""

    def __init__(self, networks: Mapping[str, nn.Module], lr: float, max_norm: float, weight_decay: float = 0.0):
        parameters = [parameter for network in networks.values() for parameter in network.parameters()]
        device = parameters[0].device
        self.names = list(networks)
        self.max_norm, self.weight_decay = max_norm, weight_decay
        self.weights = nn.Parameter(torch.cat([parameter.detach().reshape(-1) for parameter in parameters]))
        self.weights.grad = torch.zeros_like(self.weights)
        self.parts = []  # the gradient of each network
        at = 0
        for network in networks.values():
            start = at
            for parameter in network.parameters():
                end = at + parameter.numel()
                parameter.data = self.weights.data[at:end].view_as(parameter)
                parameter.grad = self.weights.grad[at:end].view_as(parameter)
                at = end
            self.parts.append(self.weights.grad[start:at])
        self.lr = torch.tensor(lr, dtype=torch.float32, device=device)
        self.skipped = torch.zeros((), device=device)  # steps left out because a gradient was not finite
        self.skipped_in_a_row = torch.zeros((), device=device)
        self.moments = torch.zeros_like(self.weights.data), torch.zeros_like(self.weights.data)
        self.made = torch.zeros((), device=device)  # steps
        self.left_out = torch.zeros((), device=device)  # 1 where the last step was not made

    def zero_grad(self) -> None:
        """Set all gradients to 0; backward passes then add to them."""
        self.weights.grad.zero_()

    @torch.no_grad()
    def step(self, skip: torch.Tensor, loss: torch.Tensor | None = None) -> torch.Tensor:
        """Clip and step; nothing changes where the scalar `skip` is 1, or a gradient or the scalar `loss` is not finite.

        Returns the gradient norms before clipping, [networks], NaN or infinity included.
        """
        norms = torch.stack([torch.linalg.vector_norm(part) for part in self.parts])
        scales = (self.max_norm / (norms + 1e-6)).clamp_max(1.0)
        for index, part in enumerate(self.parts):
            part.mul_(scales[index])
        sound = norms.isfinite().all() if loss is None else norms.isfinite().all() & loss.isfinite()
        broken = 1.0 - sound.float()
        counted = broken * (1.0 - skip)
        self.skipped += counted
        self.skipped_in_a_row.copy_((self.skipped_in_a_row + counted) * torch.maximum(broken, skip))
        self.left_out.copy_(torch.maximum(broken, skip))
        self.made += 1.0
        # torch.optim would import torch's compiler for this one call, which takes seconds at every start
        torch._fused_adamw_(
            [self.weights.data], [self.weights.grad], *([moment] for moment in self.moments), [], [self.made], lr=self.lr, beta1=BETAS[0],
            beta2=BETAS[1], weight_decay=self.weight_decay, eps=EPSILON, amsgrad=False, maximize=False, grad_scale=None, found_inf=self.left_out,
        )  # fmt: skip
        self.made -= self.left_out
        return norms

    def state(self) -> dict[str, torch.Tensor]:
        """Moments, step count and counters (not the weights), by name."""
        return {
            "exp_avg": self.moments[0],
            "exp_avg_sq": self.moments[1],
            "step": self.made,
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
        }

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take over what `state` gave."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
