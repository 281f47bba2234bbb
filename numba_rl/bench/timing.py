"""How long a function takes: medians of CUDA events around replays of a captured graph on a GPU, of wall time on the CPU."""

import statistics
import time
from collections.abc import Callable

import torch

from numba_rl.trainer.capture import captured

FEWEST, MOST = 3, 200  # repeats that a median is taken of


class Clock:
    """Times functions on `device`, each for about `seconds`."""

    def __init__(self, device: torch.device, seconds: float) -> None:
        self.device, self.seconds = device, seconds

    def time(self, function: Callable[[], object], *, repeat: int = 1, warm: int = 1) -> float:
        """Median seconds of one call of `function`, after `warm` calls that are not counted.

        On a GPU, `repeat` calls are captured in one CUDA graph and the graph is replayed, so `function` may not wait for the host.
        """
        if self.device.type == "cpu":
            return self.time_host(function, warm=warm)
        replay = repeated(function, repeat=repeat, warm=warm).replay
        for _ in range(2):
            replay()
        return self._median(lambda: event_seconds(replay)) / repeat

    def time_host(self, function: Callable[[], object], *, warm: int = 1) -> float:
        """Median seconds of wall time of one call, uncaptured, the GPU's work included."""
        for _ in range(warm):
            function()
        return self._median(lambda: self._wall_seconds(function))

    def _wall_seconds(self, function: Callable[[], object]) -> float:
        self.wait()
        begun = time.perf_counter()
        function()
        self.wait()
        return time.perf_counter() - begun

    def wait(self) -> None:
        """Until the device has done all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _median(self, once: Callable[[], float]) -> float:
        times, begun = [], time.perf_counter()
        while len(times) < FEWEST or (len(times) < MOST and time.perf_counter() - begun < self.seconds):
            times.append(once())
        return statistics.median(times)


def event_seconds(function: Callable[[], object]) -> float:
    """Seconds between two CUDA events around one call."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    function()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def repeated(function: Callable[[], object], *, repeat: int = 1, warm: int = 1) -> torch.cuda.CUDAGraph:
    """A CUDA graph of `repeat` calls of `function`, which first runs `warm` times on the capture's stream to load its kernels."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm):
            function()
    return captured(lambda: [function() for _ in range(repeat)], stream=side)
