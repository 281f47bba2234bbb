"""Capturing work on a GPU in a CUDA graph."""

import gc
from collections.abc import Callable

import torch


def captured(
    function: Callable[[], object], *, stream: torch.cuda.Stream | None = None, after: torch.cuda.CUDAGraph | None = None
) -> torch.cuda.CUDAGraph:
    """A CUDA graph of one call of `function`, all of whose kernels have run before; on `stream`, or on one of its own.

    after: a graph that is replayed before this one every time; they share their memory.

    Objects are not collected meanwhile: destroying an earlier graph in the middle of a capture breaks it.
    """
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, stream=stream, pool=None if after is None else after.pool()):
            function()
    finally:
        if collecting:
            gc.enable()
    return graph
