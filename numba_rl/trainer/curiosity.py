"""Curiosity: a forward model of the market features, whose surprise is paid (Pathak et al. 2017, without their encoder).

Input: the first m = min(32, F) market features of a bar and the three parts of the action, each scaled to [-1, 1]; output:
the same features of the next bar; m + 3 -> 64 (ReLU) -> m. Bonus = min(mean squared error, 0.1). It changes no state of the
game, so it is computed for a whole rollout at once, and added to the rewards before GAE.
"""

import torch

from numba_rl.config import Config
from numba_rl.rules.actions import EXPOSURES, ORDERS, URGENCIES
from numba_rl.trainer.networks import Network
from numba_rl.trainer.optimizer import FlatAdam

FEATURES, HIDDEN, CEILING = 32, 64, 0.1


class Curiosity:
    """The forward model, its optimizer and its bonus; features float32 [T, F] is the market's table on `device`."""

    def __init__(self, config: Config, features: torch.Tensor, generator: torch.Generator):
        self.features = features
        self.width = min(FEATURES, features.shape[1])
        self.model = Network("curiosity", self.width + 3, (HIDDEN,), self.width, output_gain=1.0, generator=generator)
        self.model.to(features.device)
        self.optimizer = FlatAdam({"curiosity": self.model}, config.reward.curiosity_lr, config.ppo.max_grad_norm)
        self.keep = torch.zeros((), device=features.device)

    def inputs(self, bars: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """float32 [S, m + 3] for bars and actions of shape [S]."""
        exposure = actions // (ORDERS * URGENCIES) * (2.0 / (EXPOSURES - 1)) - 1.0
        order = actions // URGENCIES % ORDERS - 1.0
        urgency = actions % URGENCIES - 1.0
        parts = torch.stack([exposure, order, urgency], 1)
        return torch.cat([self.features[bars, : self.width], parts], 1)

    def errors(self, bars: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Mean squared error of the prediction for each sample, [S]."""
        return (self.model(self.inputs(bars, actions)) - self.features[bars + 1, : self.width]).square().mean(1)

    @torch.no_grad()
    def bonus(self, bars: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """What each step of a rollout is paid for its surprise, before the weight: float32 of the shape of `bars`, at most 0.1."""
        return self.errors(bars.reshape(-1).long(), actions.reshape(-1)).clamp_max(CEILING).view(bars.shape)

    def train(self, bars: torch.Tensor, actions: torch.Tensor, parts) -> torch.Tensor:
        """One pass over a rollout's samples ([S]), a step for each index tensor of `parts`; the last loss, a scalar."""
        bars = bars.reshape(-1).long()
        actions = actions.reshape(-1)
        loss = self.keep
        for part in parts:
            self.optimizer.zero_grad()
            loss = self.errors(bars[part], actions[part]).mean()
            loss.backward()
            self.optimizer.step(self.keep, loss)
        return loss.detach()
