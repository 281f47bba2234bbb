"""Named ranges around the parts of a training, for torch's profiler and, on a GPU, as NVTX ranges for nsys and ncu."""

import contextlib
import functools
import time
from collections import defaultdict
from collections.abc import Iterator

import torch

from numba_rl.trainer.dqn import Dqn
from numba_rl.trainer.ppo import Ppo


class Ranges:
    """Opens ranges, and adds up the host's wall seconds in each: `wall`, by name."""

    def __init__(self, device: torch.device) -> None:
        self.nvtx = device.type == "cuda"
        self.wall: dict[str, float] = defaultdict(float)

    @contextlib.contextmanager
    def range(self, name: str) -> Iterator[None]:
        """A range that lasts as long as the block."""
        begun = time.perf_counter()
        with torch.profiler.record_function(name), torch.cuda.nvtx.range(name) if self.nvtx else contextlib.nullcontext():
            yield
        self.wall[name] += time.perf_counter() - begun

    @contextlib.contextmanager
    def within(self, trainer) -> Iterator[None]:
        """Ranges around the parts of a trainer's epochs, while the block lasts. An epoch that is one CUDA graph has none."""
        places = parts_of_epochs(trainer)
        for name, (owner, method) in places.items():
            setattr(owner, method, self._around(name, getattr(owner, method)))
        try:
            yield
        finally:
            for owner, method in places.values():
                delattr(owner, method)  # the class's own is seen again

    def _around(self, name, function):
        @functools.wraps(function)
        def call(*arguments, **options):
            with self.range(name):
                return function(*arguments, **options)

        return call


def parts_of_epochs(trainer) -> dict[str, tuple[object, str]]:
    """Name -> (object, method) of what an epoch calls, in its order."""
    if isinstance(trainer, Ppo):
        return {"collect": (trainer.collector, "collect"), "values and advantages": (trainer, "_batch"), "update": (trainer, "_update")}
    if isinstance(trainer, Dqn):
        return {"collect and store": (trainer, "_collect"), "updates": (trainer, "_learn")}
    return {}
