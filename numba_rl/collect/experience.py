"""From launches of a collector to transitions for a replay: actions by epsilon-greedy or softmax, returns of n steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from numba_rl.collect.batched import PORTFOLIO_FEATURES, BatchedCollector, Rollout
from numba_rl.config import DqnConfig
from numba_rl.gpu import stream, view
from numba_rl.kernels.n_step import launch_transitions, transitions_cpu
from numba_rl.kernels.select import launch_select, select_cpu

if TYPE_CHECKING:  # importing it costs more than half a second, which the CPU path need not wait for
    from numba_rl.collect.fused import CompactCollector, CompactRollout


def epsilon_range(config: DqnConfig) -> tuple[float, float]:
    """Share of random actions at the start and at the end; in the end noisy networks explore by themselves."""
    start, end = config.epsilon_start, config.epsilon_end
    return start, min(start, 0.0 if config.variant == "noisy" else 0.05) if end is None else end


class Chooser:
    """Chooses the actions of a collector's slots from action values, step by step, on its device.

    A fused collector chooses by itself and takes the `settings` alone.
    """

    def __init__(self, collector: BatchedCollector | CompactCollector, config: DqnConfig, regime: np.ndarray, kind: int, seed: int):
        """regime: float32 [T, 3] of the market. kind: numba_rl.kernels.select."""
        self.collector, self.kind, self.seed = collector, kind, seed
        device = collector.device
        inverse_temperature = 1.0 / config.temperature if config.selection == "softmax" else 0.0
        values = [*epsilon_range(config), config.epsilon_steps, inverse_temperature]
        self.settings = torch.tensor(values, dtype=torch.float32, device=device)
        self.regime = torch.from_numpy(np.ascontiguousarray(regime, np.float32)).to(device)
        self._arrays = [collector.slots["clock"], collector.slots["portfolio"], self.regime, collector.rollout.actions, self.settings]
        wrap = (lambda tensor: tensor.numpy()) if device.type == "cpu" else view
        self._views = [wrap(tensor) for tensor in self._arrays]

    def __call__(self, t: int, q: torch.Tensor) -> None:
        """Write the actions of step t, from q float32 [N, A]."""
        q = q.float().contiguous()
        if self.collector.device.type == "cpu":
            select_cpu(np.array([t], np.int32), q.numpy(), *self._views, self.seed, self.kind)
        else:
            handle = stream(torch.cuda.current_stream(self.collector.device).cuda_stream)
            launch_select(view(self.collector.t), view(q), *self._views, self.seed, self.kind, stream=handle)

    def epsilon(self) -> float:
        """Share of random actions now, from the steps played."""
        start, end, steps, inverse_temperature = self.settings.tolist()
        return float("nan") if inverse_temperature else start + (end - start) * min(1.0, self.collector.played / steps)


class Experience:
    """Transitions of n steps, in preallocated arrays; steps whose return is not complete wait for the next launch.

    `held` rows of the tail are in use: n - 1 once that many steps were played.
    """

    def __init__(self, collector: BatchedCollector | CompactCollector, n: int, gamma: float):
        self.n, self.gamma, self.device = n, gamma, collector.device
        self.steps, self.slots = collector.steps, collector.episodes
        width = collector.features.shape[1] + PORTFOLIO_FEATURES
        rows, waiting = self.steps * self.slots, max(n - 1, 1)  # kernels take no empty arrays

        def zeros(*shape, dtype=torch.float32):
            return torch.zeros(shape, dtype=dtype, device=self.device)

        self.held = 0
        self.tail = {
            "states": zeros(waiting, self.slots, width),
            "next_states": zeros(waiting, self.slots, width),
            "actions": zeros(waiting, self.slots, dtype=torch.int32),
            "rewards": zeros(waiting, self.slots),
            "ends": zeros(waiting, self.slots, dtype=torch.int16),
        }
        self.out = (
            zeros(rows, width), zeros(rows, width), zeros(rows, dtype=torch.int32), zeros(rows), zeros(rows), zeros(rows, dtype=torch.int32),
        )  # fmt: skip

    @property
    def count(self) -> int:
        """Transitions that the next launch completes."""
        return max(0, self.held + self.steps - (self.n - 1)) * self.slots

    @torch.no_grad()
    def add(self, rollout: Rollout | CompactRollout, rewards: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The transitions that this launch completes, time-major: states, next states, actions, rewards, discounts, flags.

        rewards float32 [L, N]. The tensors are written anew by the next call.
        """
        count = self.count
        states, final_states = rollout.states, rollout.final_states  # a compact rollout builds them now
        launch = (states, final_states, rollout.actions, rewards, rollout.ends)
        tail = tuple(self.tail.values())
        if self.device.type == "cpu":
            arrays = [tuple(tensor.numpy() for tensor in group) for group in (tail, launch, self.out)]
            transitions_cpu(count, self.n, self.gamma, self.held, *arrays)
        else:
            arrays = [tuple(view(tensor) for tensor in group) for group in (tail, launch, self.out)]
            handle = stream(torch.cuda.current_stream(self.device).cuda_stream)
            launch_transitions(count, self.n, self.gamma, self.held, *arrays, stream=handle)
        self._keep(*launch)
        return tuple(tensor[:count] for tensor in self.out)

    def _keep(self, states, final_states, actions, rewards, ends):
        """The last n - 1 steps of the launch become the tail."""
        wanted = min(self.n - 1, self.held + self.steps)
        fresh = min(wanted, self.steps)
        if wanted == 0:
            return
        ends = ends[self.steps - fresh :]
        row = (ends.long().clamp_min(1) - 1)[..., None].expand(-1, -1, states.shape[2])
        new = {
            "states": states[self.steps - fresh : self.steps],
            "next_states": final_states.gather(0, row),
            "actions": actions[self.steps - fresh :],
            "rewards": rewards[self.steps - fresh :],
            "ends": ends,
        }
        for name, tensor in self.tail.items():
            kept = tensor[self.held - (wanted - fresh) : self.held].clone()
            tensor[: wanted - fresh].copy_(kept)
            tensor[wanted - fresh : wanted].copy_(new[name])
        self.held = wanted

    def state(self) -> dict[str, torch.Tensor]:
        """What waits, by name."""
        return {**self.tail, "held": torch.tensor([self.held])}

    def load(self, state) -> None:
        """Take over what `state` gave."""
        for name, tensor in self.tail.items():
            tensor.copy_(state[name])
        self.held = int(state["held"])
