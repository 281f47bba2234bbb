"""Side streams of a GPU for work that does not depend on each other; a captured graph keeps them as branches. On a CPU there are none."""

import contextlib
from collections.abc import Iterator

import torch

from numba_rl.gpu import stream


class Branches:
    """`count` side streams of `device`, for work forked from torch's current stream and joined to it again."""

    def __init__(self, device: torch.device, count: int):
        self.device = device
        self._side = [torch.cuda.Stream(device) for _ in range(count)] if device.type == "cuda" else []
        self._forked: set[int] = set()

    def stream(self):
        """torch's current stream, as kernels take it."""
        return stream(torch.cuda.current_stream(self.device).cuda_stream) if self._side else 0

    @contextlib.contextmanager
    def fork(self, index: int) -> Iterator[None]:
        """Work that runs beside the current stream, after all that was put there and on this branch before."""
        if not self._side:
            yield
            return
        self._forked.add(index)
        side = self._side[index]
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            yield

    def join(self, *indices: int) -> None:
        """What comes next on the current stream waits for these branches; for those that are not forked there is nothing to wait for,
        and within a capture nothing that could be waited for."""
        for index in self._forked.intersection(indices):
            torch.cuda.current_stream(self.device).wait_stream(self._side[index])
        self._forked.difference_update(indices)
