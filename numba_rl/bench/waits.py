"""What makes the host wait for a GPU: refused within a block, or counted.

torch knows its own (`torch.cuda.set_sync_debug_mode`); Numba's driver calls are watched at the driver.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

import torch

from numba_rl.gpu import cuda

NUMBA_WAITS = (
    "cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemAlloc", "cuMemFree",
)  # fmt: skip


class HostWaited(RuntimeError):
    """The host waited for the GPU where it must not."""


@contextlib.contextmanager
def refused(driver=None) -> Iterator[None]:
    """Within it, whatever makes the host wait for the GPU raises: RuntimeError by torch, HostWaited by Numba."""

    def refuse(name):
        raise HostWaited(f"Numba called {name}")

    torch.cuda.set_sync_debug_mode("error")
    try:
        with _watched(refuse, driver):
            yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@contextlib.contextmanager
def counted(driver=None) -> Iterator[Counter]:
    """Numba's driver calls that make the host wait, by name, filled while the block runs. torch's are in a trace."""
    calls: Counter = Counter()

    def count(name):
        calls[name] += 1

    with _watched(count, driver):
        yield calls


@contextlib.contextmanager
def _watched(called: Callable[[str], None], driver) -> Iterator[None]:
    """driver: Numba's, or another object with its functions."""
    driver = driver or cuda.cudadrv.driver.driver
    real = {name: getattr(driver, name) for name in NUMBA_WAITS}

    def watch(name):
        def call(*arguments):
            called(name)
            return real[name](*arguments)

        return call

    for name in real:
        setattr(driver, name, watch(name))
    try:
        yield
    finally:
        for name, function in real.items():
            setattr(driver, name, function)
