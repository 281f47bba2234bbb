"""The guard of a trainer: kernels.guard on its device, and what the host makes of it, one update late and without waiting.

`check` is one launch and can be captured in a graph. `read` looks at the row that was written last: host-mapped memory on a GPU, two
rows written in turn, so that the host never waits for the device nor the device for the host. `halted` is a device scalar, 1 once
nothing must be learned any more; the optimizers take it as a predicate.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from numba_rl.config import GuardConfig
from numba_rl.gpu import SIMULATED, cuda, stream, view
from numba_rl.kernels import guard as kernel

_FRESH = [0.0, 0.0] + [np.nan] * 4  # averages, and statistics of values that nobody has seen yet
_WHY = {
    kernel.BROKEN: "{0.skipped_in_a_row} updates in a row had to be skipped",
    kernel.COLLAPSED: "the gradient's norm stayed below guard.collapse_norm for {0.collapsed_in_a_row} updates: nothing is learned any more",
    kernel.DIVERGED: "values diverged (mean {0.figures[q_mean]:.3g}, beyond guard.q_divergence): lower the learning rate or the reward's scale",
}


class Reading(NamedTuple):
    """The state after one update: figures by the names of kernels.guard.FIGURES, nan where there is none yet."""

    updates: int  # judged so far
    skipped: int
    skipped_in_a_row: int
    collapsed_in_a_row: int
    clipped: int  # losses beyond guard.loss_clip
    reason: int  # to halt; kernels.guard.NONE: none
    figures: dict[str, float]

    @property
    def why(self) -> str | None:
        """The reason to halt, in words."""
        return _WHY[self.reason].format(self) if self.reason else None


class Guard:
    """Thresholds of `config`, counters on `device`."""

    def __init__(self, config: GuardConfig, device: torch.device, *, simulate: bool = False, threads: int = kernel.THREADS):
        """simulate: on the CPU, by the kernel in the simulator."""
        self.enabled, self.device, self._threads = config.enabled, device, threads
        self._on_cpu = device.type == "cpu" and not simulate

        def given(values, dtype):
            return torch.tensor(values, dtype=dtype, device=device)

        self.thresholds = given([config.loss_clip, config.collapse_norm, config.q_divergence], torch.float32)
        self.limits = given([config.collapse_steps, config.max_skipped, config.q_interval], torch.int64)
        self.counts = given([0] * kernel.COUNTS, torch.int64)
        self.running, self.halted = given(_FRESH, torch.float32), given([0.0], torch.float32)
        self._never, self._none = given([0.0], torch.float32), given([0.0], torch.float32)
        shapes = ((2, len(kernel.FIGURES)), np.float32), ((2, kernel.RECORD), np.int64)
        if device.type == "cuda":
            self.figures, self.record = (cuda.mapped_array(shape, dtype) for shape, dtype in shapes)
        else:
            self.figures, self.record = (np.zeros(shape, dtype) for shape, dtype in shapes)
        self.figures[:], self.record[:] = np.nan, 0

    @torch.no_grad()
    def check(self, loss: torch.Tensor, norms: torch.Tensor, values: torch.Tensor | None = None, stop: torch.Tensor | None = None) -> None:
        """Judge one update: loss (scalar), gradient norms [k], values of its batch, stop (scalar): 1 where it was not to be made."""
        if not self.enabled:
            return
        parts = [loss, norms, self._none if values is None else values, self._never if stop is None else stop]
        loss, norms, seen, stop = (part.detach().float().reshape(-1).contiguous() for part in parts)
        count = 0 if values is None else len(seen)
        state = (self.thresholds, self.limits, self.counts, self.running, self.halted)
        if self._on_cpu:
            arrays = [part.numpy() for part in (loss, norms, seen)]
            kernel.guard_cpu(*arrays, count, stop.numpy(), *(part.numpy() for part in state), self.figures, self.record)
            return
        handle = 0 if SIMULATED else stream(torch.cuda.current_stream(self.device).cuda_stream)
        shown = (view(self.figures), view(self.record)) if SIMULATED else (self.figures, self.record)
        kernel.launch_guard(
            view(loss), view(norms), view(seen), count, view(stop), *map(view, state), *shown, stream=handle, threads=self._threads
        )

    def read(self) -> Reading:
        """What the device wrote last, without waiting for it. Before the first update all is 0."""
        while True:
            row = int(np.argmax(self.record[:, -1]))
            record, figures = self.record[row].copy(), self.figures[row].copy()
            if record[-1] == self.record[row, -1] and record[kernel.JUDGED] == record[-1]:  # nobody wrote meanwhile
                return Reading(*(int(value) for value in record[: kernel.COUNTS]), dict(zip(kernel.FIGURES, figures.tolist(), strict=True)))

    def reset(self) -> None:
        """Forget all, as after an earlier checkpoint was restored."""
        self.counts.zero_()
        self.halted.zero_()
        self.running.copy_(torch.tensor(_FRESH))
        self.figures[:], self.record[:] = np.nan, 0

    def state(self) -> dict[str, torch.Tensor]:
        """What an exact resume needs."""
        return {"counts": self.counts, "running": self.running}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take over what `state` gave; nothing where a checkpoint has none."""
        self.reset()
        for name, part in self.state().items():
            if name in state:
                part.copy_(state[name])
        self.halted.fill_(float(self.counts[kernel.REASON] != 0))
