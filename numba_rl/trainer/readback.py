"""An epoch's figures on their way to the host: one copy into pinned memory, on a stream of its own, with an event to wait for.

Reading tensors one by one waits for the device once each. Here they are packed into one vector on the device, which can be captured
with the epoch, copied once, and the host waits for that copy alone. On the CPU path it is all plain memory.
"""

from collections.abc import Mapping

import torch


class Readback:
    """Named tensors of any shape and number type, as float64 numbers on the host."""

    def __init__(self, device: torch.device):
        self.device = device
        self._sizes: dict[str, int] = {}
        self._on_gpu = device.type == "cuda"
        if self._on_gpu:
            self._stream, self._arrived = torch.cuda.Stream(device), torch.cuda.Event()

    @torch.no_grad()
    def pack(self, figures: Mapping[str, torch.Tensor]) -> None:
        """Gather on the device; can be captured once it was called with tensors of these names and sizes."""
        packed = torch.cat([tensor.reshape(-1).double() for tensor in figures.values()])
        sizes = {name: tensor.numel() for name, tensor in figures.items()}
        if sizes != self._sizes:
            self._sizes = sizes
            self._packed = torch.empty_like(packed)
            self._host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=self._on_gpu)
        self._packed.copy_(packed)

    def send(self) -> None:
        """Start the copy of what was packed. Nothing waits but what is put on the current stream later, which may pack anew."""
        if not self._on_gpu:
            self._host.copy_(self._packed)
            return
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self._host.copy_(self._packed, non_blocking=True)
        self._arrived.record(self._stream)
        current.wait_event(self._arrived)

    def read(self) -> dict[str, list[float]]:
        """What was sent last, by name, once it has arrived."""
        if self._on_gpu:
            self._arrived.synchronize()
        parts = self._host.split(list(self._sizes.values()))
        return {name: part.tolist() for name, part in zip(self._sizes, parts, strict=True)}
