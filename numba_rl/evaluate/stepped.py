"""Many windows of one policy of any network on a GPU, all of them one step at a time: a forward pass of all rows, then a kernel.

Some tens of steps are one CUDA graph, which is replayed until the longest window is over; nothing is read back before. The choices are
those of the float32 network, the account that of the CPU path, in float64 (kernels.backtest).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from numba_rl import gpu
from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.data.windows import Range
from numba_rl.evaluate.acting import Acting
from numba_rl.evaluate.backtest import bars_of, decision_range, evaluation_rules, require_playable
from numba_rl.kernels.backtest import COLUMNS, THREADS, launch_open, launch_step
from numba_rl.kernels.route import launch_route
from numba_rl.kernels.slots import BAR, CLOCK_FIELDS
from numba_rl.kernels.step import Launch
from numba_rl.rules.actions import ACTIONS
from numba_rl.rules.barrier import BARRIER_FIELDS
from numba_rl.rules.diversity import WINDOW_FIELDS
from numba_rl.rules.portfolio import PORTFOLIO_FIELDS
from numba_rl.rules.shaping import SHAPING_FIELDS
from numba_rl.trainer.capture import captured
from numba_rl.trainer.precision import exact

STEPS_A_GRAPH = 64


class Outputs(NamedTuple):
    """What a launch writes, on the device (W windows, S steps of the longest); rows past a window's steps mean nothing."""

    equity: torch.Tensor  # float64 [S, W], net at each mark
    actions: torch.Tensor  # int32 [S, W]
    steps: torch.Tensor  # int32 [W]
    status: torch.Tensor  # int32 [W]: 1 + the first step without a valid choice, or 0


class SteppedWindows:
    """Windows of one policy, laid out on a GPU: `launch` plays them all into `outputs`. In the simulator device is "cpu".

    The network has a form (evaluate.acting).
    """

    def __init__(self, market: Market, ranges: Sequence[Range], network, config: Config, device: str | torch.device = "cuda"):
        require_playable(market, ranges)
        self.device = torch.device(device)
        self.acting = Acting(network, self.device)
        self.rules = evaluation_rules(config, market)
        softmax = config.evaluate.policy == "softmax"
        self.settings = Launch(config.train.seed, 0, 0, int(not softmax), 0, 1.0 / config.evaluate.temperature)
        played = [decision_range(window) for window in ranges]
        self.count, self.longest = len(played), max(window.stop - 1 - window.start for window in played)
        first, last = bars_of(played)

        def zeros(*shape, dtype=torch.float32):
            return torch.zeros(shape, dtype=dtype, device=self.device)

        def put(values, dtype):
            return torch.as_tensor(values, dtype=dtype, device=self.device).contiguous()

        count = self.count
        self.outputs = Outputs(
            zeros(self.longest, count, dtype=torch.float64),
            zeros(self.longest, count, dtype=torch.int32),
            *(zeros(count, dtype=torch.int32) for _ in range(2)),
        )
        self.starts = put([window.start - first for window in played], torch.int64)
        self.clock = zeros(count, CLOCK_FIELDS, dtype=torch.int64)
        self.states = zeros(1, count, market.features.shape[1] + 3)
        held, volatility = zeros(count, dtype=torch.float64), zeros(count)
        slots = (
            zeros(count, PORTFOLIO_FIELDS, dtype=torch.float64),
            zeros(count, BARRIER_FIELDS, dtype=torch.float64),
            zeros(count, WINDOW_FIELDS, dtype=torch.int64),
            zeros(count, SHAPING_FIELDS, dtype=torch.float64),
            self.clock,
        )
        tables = (put(market.prices[first:last], torch.float64), put(market.features[first:last], torch.float32), self.states)
        routing = (put(market.regime[first:last], torch.float32), held, volatility)
        results = (
            self.outputs.equity,
            self.outputs.actions,
            zeros(1, count),  # rewards
            zeros(1, count, len(COLUMNS), dtype=torch.float64),
            put([window.stop - first for window in played], torch.int64),
            self.outputs.steps,
            self.outputs.status,
        )
        self._game = [gpu.view(tensor) for tensor in (*slots, *tables, *routing)]
        self._results = [gpu.view(tensor) for tensor in results]
        self._routing = [gpu.view(tensor) for tensor in (held, volatility, zeros(count, ACTIONS))]  # the last: routed logits
        self._graph = None

    def load(self, network) -> None:
        """Play this network of the same form from now on."""
        self.acting.load(network)

    def prepare(self) -> None:
        """Compile and capture what `launch` needs, by playing a step."""
        if self._graph is None:
            self._open()
            self._step()
            if self.device.type == "cuda":
                self._graph = captured(lambda: [self._step() for _ in range(STEPS_A_GRAPH)])

    def launch(self) -> None:
        """Play all windows; once it was prepared, nothing waits for the host."""
        self.prepare()
        self._open()
        if self._graph is None:
            for _ in range(self.longest):
                self._step()
        else:
            for _ in range(gpu.blocks_for(self.longest, STEPS_A_GRAPH)):
                self._graph.replay()

    def _open(self) -> None:
        self.clock.zero_()
        self.clock[:, BAR] = self.starts
        self.outputs.steps.zero_()
        self.outputs.status.zero_()
        launch_open(*self._game, self.rules, windows=self.count, stream=self._stream())

    def _step(self) -> None:
        """The next step of every window."""
        stream = self._stream()
        with exact():
            logits = self.acting(self.states[0])
        shown = gpu.view(logits)
        if self.acting.routed:
            launch_route(shown, *self._routing, stream=stream, threads=min(THREADS, self.count))
            shown = self._routing[-1]
        launch_step(shown, *self._game, *self._results, self.settings, self.rules, windows=self.count, stream=stream)

    def _stream(self):
        return 0 if gpu.SIMULATED else gpu.stream(torch.cuda.current_stream(self.device).cuda_stream)
