"""Many windows of one policy on a GPU: in one launch for actors that a kernel holds (kernels.backtest_policy), else step by step."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from numba_rl import gpu
from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.data.windows import Range
from numba_rl.evaluate.backtest import bars_of, decision_range, evaluation_rules, require_choices, require_playable
from numba_rl.evaluate.stepped import SteppedWindows
from numba_rl.kernels.backtest_policy import TOTALS, WIDE_FROM, backtest_kernel, launch_backtest
from numba_rl.kernels.mma import tiles_of
from numba_rl.kernels.settled import pattern_of
from numba_rl.kernels.step import Launch
from numba_rl.rules.actions import ACTIONS

TENSOR_CORES = (8, 0)  # compute capability that the kernel needs


def layers_of(network) -> list[torch.Tensor] | None:
    """Weights and biases in order of a plain actor of two hidden layers and 45 outputs; None: another network."""
    parameters = list(network.parameters())
    shapes = [tuple(parameter.shape) for parameter in parameters]
    plain = len(shapes) == 6 and all(len(w) == 2 and b == w[:1] for w, b in zip(shapes[::2], shapes[1::2], strict=True))
    chained = plain and shapes[2][1] == shapes[0][0] and shapes[4][1] == shapes[2][0] and shapes[4][0] == ACTIONS
    return [parameter.detach() for parameter in parameters] if chained and hasattr(network, "leaky_slope") else None


def usable() -> bool:
    """Whether there is a GPU that torch and Numba can both use."""
    return not gpu.SIMULATED and torch.cuda.is_available() and gpu.available()


def can_play(network, device: str | torch.device = "cuda") -> bool:
    """Whether a network is an actor that the kernel holds, and there is a GPU with the tensor cores that it needs."""
    layers = layers_of(network)
    if layers is None or not usable():
        return False
    hidden = (layers[0].shape[0], layers[2].shape[0])
    return (
        torch.cuda.get_device_capability(device) >= TENSOR_CORES
        and tiles_of(layers[0].shape[1] - 3, hidden, slope=network.leaky_slope) is not None
    )


class Outputs(NamedTuple):
    """What a launch writes, on the device (W windows, S steps of the longest); rows past a window's steps are left alone."""

    equity: torch.Tensor  # float64 [S, W], net at each mark
    actions: torch.Tensor  # int8 [S, W]
    totals: torch.Tensor  # float64 [W, 6]: TOTALS
    steps: torch.Tensor  # int32 [W]
    status: torch.Tensor  # int32 [W]: 1 + the first step without a valid choice, or 0


class GpuWindows:
    """Windows of one policy, laid out on a GPU: `launch` plays them all into `outputs`.

    The network is one that `can_play` accepts; its choices are those of its fp16 form. In the simulator device is "cpu". groups:
    16 or 32 windows a warp (1 or 2); None: by how many there are.
    """

    def __init__(
        self, market: Market, ranges: Sequence[Range], network, config: Config, device: str | torch.device = "cuda", *, groups=None
    ):
        require_playable(market, ranges)
        self.device = torch.device(device)
        layers = layers_of(network)
        features = market.features.shape[1]
        self.tiles = tiles_of(features, (layers[0].shape[0], layers[2].shape[0]), slope=network.leaky_slope)
        self.rules = evaluation_rules(config, market)
        greedy = config.evaluate.policy == "greedy"
        self._temperature = 1.0 if greedy else config.evaluate.temperature
        played = [decision_range(window) for window in ranges]
        first, last = bars_of(played)
        starts, stops = ([getattr(window, end) - first for window in played] for end in ("start", "stop"))
        longest, count = max(window.stop - 1 - window.start for window in played), len(played)

        def put(values, dtype):
            return torch.as_tensor(values, dtype=dtype, device=self.device).contiguous()

        def zeros(*shape, dtype):
            return torch.zeros(shape, dtype=dtype, device=self.device)

        self.layers = [torch.empty_like(layer, dtype=torch.float32, device=self.device) for layer in layers]
        self.load(network)
        self.prices = put(market.prices[first:last], torch.float64)
        table = zeros(last - first, self.tiles.width, dtype=torch.float16)
        table[:, :features] = put(market.features[first:last], torch.float32)
        self.table = table.view(torch.int32)
        self.starts, self.stops = put(starts, torch.int32), put(stops, torch.int32)
        self.outputs = Outputs(
            zeros(longest, count, dtype=torch.float64),
            zeros(longest, count, dtype=torch.int8),
            zeros(count, len(TOTALS), dtype=torch.float64),
            *(zeros(count, dtype=torch.int32) for _ in range(2)),
        )
        self.words, self.biases = zeros(self.tiles.words, dtype=torch.int64), zeros(self.tiles.biases, dtype=torch.float32)
        self.groups = groups or (2 if count >= WIDE_FROM * _multiprocessors(self.device) else 1)
        self.warps, registers = (4, 128) if self.groups == 2 else (1, None)
        self.kernel = backtest_kernel(self.tiles, pattern_of(self.rules), greedy, registers)
        self.settings = Launch(config.train.seed, 0, 0, int(greedy), 0, 1.0)
        self._outputs = [gpu.view(tensor) for tensor in self.outputs]
        self._inputs = [gpu.view(tensor) for tensor in (self.table.view(torch.uint32), self.prices, self.starts, self.stops)]
        self._layers = [gpu.view(layer) for layer in self.layers]
        self._packed = gpu.view(self.words.view(torch.uint64)), gpu.view(self.biases)

    @torch.no_grad()
    def load(self, network) -> None:
        """Play this network of the same sizes from now on."""
        for k, (layer, weights) in enumerate(zip(self.layers, layers_of(network), strict=True)):
            layer.copy_(weights / self._temperature if k >= 4 else weights)

    def prepare(self) -> None:
        """Compile what `launch` needs, by playing a few steps."""
        self._launch([gpu.view(self.outputs.equity[:2]), *self._outputs[1:]])

    def launch(self) -> None:
        """Play all windows; nothing waits for the host."""
        self._launch(self._outputs)

    def _launch(self, outputs) -> None:
        stream = 0 if gpu.SIMULATED else gpu.stream(torch.cuda.current_stream(self.device).cuda_stream)
        launch_backtest(
            self.kernel, self.tiles, self._layers, self._packed, *self._inputs, outputs, self.settings, self.rules,
            groups=self.groups, warps=self.warps, stream=stream,
        )  # fmt: skip


def _multiprocessors(device: torch.device) -> int:
    return 1 if gpu.SIMULATED else torch.cuda.get_device_properties(device).multi_processor_count


def lay_out(market: Market, ranges: Sequence[Range], network, config: Config, device="cuda") -> GpuWindows | SteppedWindows:
    """Windows of one policy whose network has a form (evaluate.acting), ready to be launched. UserError: they cannot be played."""
    return (GpuWindows if can_play(network, device) else SteppedWindows)(market, ranges, network, config, device)


def actions_of(windows: GpuWindows | SteppedWindows) -> np.ndarray:
    """The actions int32 [S, W] of a launch, 0 after a window's end. UserError: the policy gives NaN."""
    require_choices(windows.outputs.status.cpu().numpy())
    actions, steps = windows.outputs.actions.cpu().numpy(), windows.outputs.steps.cpu().numpy()
    return np.where(np.arange(len(actions))[:, None] < steps, actions, 0).astype(np.int32)


def equity_of(windows: GpuWindows | SteppedWindows) -> np.ndarray:
    """The first window's equity in a launch, float64 [n + 1]: at the decision bar, then at each mark. UserError: the policy gives NaN."""
    require_choices(windows.outputs.status.cpu().numpy())
    marks = windows.outputs.equity[: int(windows.outputs.steps[0]), 0].cpu().numpy()
    return np.concatenate([[windows.rules.initial_capital], marks])
