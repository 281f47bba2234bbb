"""What an epoch looked like (12 figures) and what lasts between epochs (8 floats), beside either collector, on its device.

`begin` before a launch and `end` after it are two and three small kernels: nothing is allocated and nothing waits for the
host, so that both can be captured with the launch. See kernels.monitor and kernels.epoch_state for the numbers.
"""

import numpy as np
import torch

from numba_rl.gpu import SIMULATED, stream, view
from numba_rl.kernels import epoch_state as state_kernels
from numba_rl.kernels import monitor as monitor_kernels


class Epochs:
    """The persistent state of a collector's epochs and the figures of its last one.

    state float32 [8], exact int64 [2] (episodes, steps), figures float32 [12], reset int32 [1] (bits asked for): on the device.
    """

    def __init__(self, collector, returns, *, simulate=False):
        """collector: fused or batched; returns float32 [T]: log close return of each bar (column 0 of market.regime). simulate:
        on the CPU, by the kernels in the simulator."""
        self.collector, self.device = collector, collector.device
        self._on_cpu = self.device.type == "cpu" and not simulate

        def zeros(*shape, dtype=torch.float32):
            return torch.zeros(shape, dtype=dtype, device=self.device)

        self.returns = torch.as_tensor(np.ascontiguousarray(returns, np.float32)).to(self.device)
        self.state = torch.tensor([0.01, 0.01, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0], device=self.device)
        self.exact = zeros(2, dtype=torch.int64)
        self.reset = zeros(1, dtype=torch.int32)
        self.figures = zeros(12)
        self._ticket = zeros(2, dtype=torch.int32)
        self._per_step, self._ended = zeros(collector.steps), zeros(collector.steps, dtype=torch.int32)
        self._threads = 4 if SIMULATED else state_kernels.THREADS
        samples = collector.steps * collector.episodes
        blocks = min(monitor_kernels.BLOCKS, -(-samples // self._threads))
        self._partial, self._counts = zeros(blocks, 5), zeros(blocks, 7, dtype=torch.int32)

    def ask_reset(self, bits: int):
        """Ask the next `begin` for a reset: 1 volatility, 2 portfolios, 4 shaping, or a sum of them."""
        self.reset.fill_(bits)

    def _where(self):
        handle = 0 if SIMULATED else stream(torch.cuda.current_stream(self.device).cuda_stream)
        return {"stream": handle, "threads": self._threads}

    def begin(self):
        """Carry out the resets asked for."""
        slots = self.collector.slots
        arrays = (self.state, *(slots[name] for name in ("portfolio", "barrier", "window", "shaping")))
        if self._on_cpu:
            state_kernels.begin_cpu(self.reset.numpy(), *(array.numpy() for array in arrays), self.collector.rules)
            return
        views = [view(array) for array in (self.reset, self._ticket[:1], *arrays)]
        state_kernels.launch_begin(*views, self.collector.rules, **self._where())

    def end(self, rollout):
        """Bring state and figures up to date with a rollout (its `bars`, `ends`, `rewards` and `actions`)."""
        slots = self.collector.slots
        source = (self.state, self.exact, self.returns, rollout.bars, rollout.ends, slots["portfolio"], slots["shaping"])
        multiplier = self.collector.rules.multiplier
        if self._on_cpu:
            arrays = [array.numpy() for array in source]
            state_kernels.update_cpu(*arrays, multiplier, self._per_step.numpy(), self._ended.numpy())
            self.figures.copy_(torch.from_numpy(monitor_kernels.monitor_host(rollout.rewards.numpy(), rollout.actions.numpy())))
            return
        state_kernels.launch_update(
            *(view(array) for array in source), multiplier, view(self._per_step), view(self._ended), **self._where()
        )
        monitor_kernels.launch_monitor(
            view(rollout.rewards.view(-1)), view(rollout.actions.view(-1)), rollout.rewards.numel(), view(self._partial),
            view(self._counts), view(self._ticket[1:]), view(self.figures), **self._where(),
        )  # fmt: skip

    def state_dict(self) -> dict:
        """What a resume needs."""
        return {"state": self.state.cpu().numpy().copy(), "exact": self.exact.cpu().numpy().copy()}

    def load_state_dict(self, saved: dict):
        """Take up where `state_dict` left off."""
        self.state.copy_(torch.as_tensor(np.asarray(saved["state"])))
        self.exact.copy_(torch.as_tensor(np.asarray(saved["exact"])))
