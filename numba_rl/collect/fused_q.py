"""The fused collector of a Q-network: one kernel launch chooses and plays, for dueling networks that fit kernels.rollout_q, on a GPU.

Its episodes, choices and checkpoints are those of the batched collector with a `Chooser`, but for choices between values that
are equal within the error of bf16. Weights are packed anew for each launch from those of the network.
"""

from collections.abc import Sequence

import numpy as np
import torch

from numba_rl.collect.batched import EPISODES
from numba_rl.collect.fused import CompactCollector, CompactRollout, card, check_shapes
from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.data.windows import Range
from numba_rl.errors import ConfigError
from numba_rl.gpu import view
from numba_rl.kernels import rollout_q as kernels
from numba_rl.kernels.q_layout import packing


class FusedQCollector(CompactCollector):
    """Plays N episodes for L steps a launch, the advantages' layers inside the kernel."""

    def __init__(self, market: Market, config: Config, *, device="cuda", base=None, range: Range | None = None, plan=None):
        """market, base and range as for the batched collector; plan: a kernels.rollout_q.QPlan instead of the fitting one.

        Raises ConfigError where no kernel fits the network, UserError where the range is too short to play a step.
        """
        super().__init__(market, config, device, base, range, log_probs=False)
        obstacle = why_not_fused(config, market.features.shape[1], self.device)
        self.plan = plan or plan_for(config, market.features.shape[1], self.device, self.episodes)
        if obstacle or self.plan is None:
            raise ConfigError(f"train.collector = fused: {obstacle}; use auto or batched")
        self._kernel = kernels.QRollout(self.plan, self.rules, base)
        layout = self.plan.layout
        table = self._zeros(len(self.features), layout.width, dtype=torch.bfloat16)
        table[:, : layout.features] = self.features
        self._table = table.view(torch.int32)
        sizes = [int(np.prod(shape)) for shape in layout.shapes]
        self._weights = self._zeros(sum(sizes) + 1)  # all layers flat, and the 0 of what is padded
        self._places = [part.view(shape) for part, shape in zip(self._weights[:-1].split(sizes), layout.shapes, strict=True)]
        self._word_order, self._bias_order = (torch.from_numpy(order).to(self.device) for order in packing(layout))
        self._picked, self._biases = self._zeros(len(self._word_order)), self._zeros(len(self._bias_order))
        self._words = self._zeros(len(self._word_order), dtype=torch.bfloat16)
        self._inputs = (view(self._words.view(torch.int32).view(torch.uint32)), view(self._biases), view(self._table.view(torch.uint32)))

    @torch.no_grad()
    def launch(self, layers: Sequence[torch.Tensor], choice: torch.Tensor, given=False) -> None:
        """The device's work of one launch, nothing else: this can be captured. `played` is the caller's to move on.

        layers: weights float32 [out, in] and biases in order: hidden layers, the advantages' half of the streams, the advantages.
        choice: float32 [4] on the device, epsilon's schedule and temperature (see kernels.select).
        """
        check_shapes(layers, self.plan.layout.shapes)
        for place, layer in zip(self._places, layers, strict=True):
            place.copy_(layer)
        torch.index_select(self._weights, 0, self._word_order, out=self._picked)
        torch.index_select(self._weights, 0, self._bias_order, out=self._biases)
        self._words.copy_(self._picked)
        self.rollout.status.zero_()
        self._kernel.launch(
            *self._inputs, self._slot_views, self._prices, self._outputs, view(choice, np.float32), self._launch(given), self.rules,
            self._stream(),
        )  # fmt: skip

    def collect(self, layers: Sequence[torch.Tensor], choice: torch.Tensor, *, actions=None) -> CompactRollout:
        """Play one launch; layers and choice as for `launch`. actions: int32 [L, N] to play instead of the network's choices."""
        return self._collect(actions, lambda given: self.launch(layers, choice, given))


def plan_for(config: Config, features: int, device, episodes: int):
    """The kernel plan of the network of config.dqn on a device, or None where the batched collector must play it."""
    found = card(torch.device(device))
    if found is None:
        return None
    capability, multiprocessors = found
    dqn = config.dqn
    return kernels.plan_q(features, dqn.hidden, dqn.head, episodes, capability=capability, multiprocessors=multiprocessors)


def why_not_fused(config: Config, features: int, device: torch.device) -> str | None:
    """What keeps the network of config.dqn from this collector, or None where it can be used."""
    if config.dqn.variant != "dueling":
        return f"dqn.variant = {config.dqn.variant} has no fused rollout, only dueling has"
    if plan_for(config, features, device, config.episodes.count or EPISODES) is None:
        sizes = f"dqn.hidden = {list(config.dqn.hidden)}, dqn.head = {config.dqn.head} and {features} features"
        return f"{sizes} have no fused rollout on this device"
    return None
