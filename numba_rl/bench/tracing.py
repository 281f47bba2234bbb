"""Where the time of a training's epochs goes: a table of kernels or operators, and what the host did and had to wait for.

On a GPU host calls are counted from torch's trace of the CUDA runtime, and what Numba's driver waits for at the driver.
"""

import contextlib
import json
import re
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

from numba_rl.bench import waits
from numba_rl.bench.ranges import Ranges
from numba_rl.bench.rows import machine
from numba_rl.collect.epoch import Epochs
from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.errors import UserError
from numba_rl.files import atomic_write
from numba_rl.trainer.building import build

WARM = 4  # epochs before anything is looked at: they compile, load and capture
EPOCH, FIGURES = "epoch", "figures"  # the ranges of an epoch, and of the reading of its figures after it
SYNCHRONISATIONS = {"cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cuStreamSynchronize", "cuCtxSynchronize"}
KERNEL_LAUNCHES = {"cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx"}
GRAPH_LAUNCHES = {"cudaGraphLaunch", "cuGraphLaunch"}
TABLE, TRACE, SUMMARY = "table.txt", "trace.json.gz", "summary.json"


class Part(NamedTuple):
    """A kernel (GPU) or an operator (CPU path): calls and microseconds of an epoch."""

    name: str
    calls: float
    us: float


class Host(NamedTuple):
    """What the host did in a range, an epoch: waits for the GPU, copies that do not return at once, launches."""

    synchronisations: float
    blocking_copies: float
    kernel_launches: float
    graph_launches: float


@dataclass(frozen=True)
class Trace:
    """Of a training: what it ran on, wall seconds of an epoch with its figures (median, untraced), its steps, and, while traced,
    wall seconds of each range, parts by time, and on a GPU the host by range. parts and host are empty where only ranges were laid."""

    device: str
    on_gpu: bool
    trainer: str
    seconds: float
    steps: int
    ranges: dict[str, float]
    parts: list[Part]
    host: dict[str, Host]


def trace(config: Config, market: Market, epochs: int, folder: Path, *, ranges_only: bool = False) -> Trace:
    """Train WARM epochs, time `epochs`, and look at as many more. Writes SUMMARY and, unless ranges_only, TABLE and TRACE into `folder`.

    ranges_only: torch's profiler stays out, so that nsys or ncu can watch, from cudaProfilerStart to cudaProfilerStop.
    Raises UserError where train.device is cuda and the training could only go on on the CPU path.
    """
    trainer = build(config, market)
    if config.train.device == "cuda" and trainer.device.type != "cuda":
        raise UserError("train.device = cuda: the GPU cannot be used, the warning above says why; --device cpu profiles the CPU path")
    trainer.observe = Epochs(trainer.collector, market.regime[:, 0]).end  # as in a training
    seconds = _seconds(trainer, epochs)
    ranges = Ranges(trainer.device)
    with ranges.within(trainer):
        if ranges_only:
            events, numba_waits = [], {}
            _watched_from_outside(trainer, epochs, ranges)
        else:
            events, numba_waits = _traced(trainer, epochs, ranges, folder)
    on_gpu = trainer.device.type == "cuda"
    found = Trace(
        machine(trainer.device)["device"],
        on_gpu,
        f"{type(trainer).__name__}, {type(trainer.collector).__name__}, {trainer.precision}",
        seconds,
        trainer.steps_per_epoch,
        {name: total / epochs for name, total in ranges.wall.items()},
        parts_of(events, epochs, DeviceType.CUDA if on_gpu else DeviceType.CPU),
        {name: host_in(events, name, epochs, numba_waits.get(name, 0)) for name in (EPOCH, FIGURES)} if on_gpu and events else {},
    )
    text = json.dumps({"machine": machine(trainer.device), "epochs": epochs, **asdict(found)}, indent=1)
    atomic_write(folder / SUMMARY, text + "\n")
    return found


def _seconds(trainer, epochs):
    """Median wall seconds of an epoch and its figures; reading them waits for the device."""
    times = []
    for _ in range(WARM + epochs):
        begun = time.perf_counter()
        trainer.epoch()
        trainer.statistics()
        times.append(time.perf_counter() - begun)
    return statistics.median(times[WARM:])


def _play(trainer, epochs, ranges, numba_calls):
    """Epochs in their ranges; Numba's waits in each range, by name, from the running count of all calls."""
    found = Counter()
    for _ in range(epochs):
        for name, call in ((EPOCH, trainer.epoch), (FIGURES, trainer.statistics)):
            before = numba_calls.total()
            with ranges.range(name):
                call()
            found[name] += numba_calls.total() - before
    return found


def _watched_from_outside(trainer, epochs, ranges):
    on_gpu = trainer.device.type == "cuda"
    if on_gpu:
        torch.cuda.profiler.start()
    _play(trainer, epochs, ranges, Counter())
    if on_gpu:
        torch.cuda.profiler.stop()


def _traced(trainer, epochs, ranges, folder):
    """The events of torch's trace, and Numba's waits by range; the trace and its table are written."""
    on_gpu = trainer.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "Warning: Profiler clears events", UserWarning)  # said of the profiler's schedules; this has none
        numba_calls = stack.enter_context(waits.counted()) if on_gpu else Counter()
        profile = stack.enter_context(torch.profiler.profile(activities=activities))
        numba_waits = _play(trainer, epochs, ranges, numba_calls)
    profile.export_chrome_trace(str(folder / TRACE))
    by = "cuda_time_total" if on_gpu else "self_cpu_time_total"
    atomic_write(folder / TABLE, profile.key_averages().table(sort_by=by, row_limit=60, max_name_column_width=80) + "\n")
    return list(profile.events()), numba_waits


def parts_of(events: Iterable, epochs: int, device: DeviceType) -> list[Part]:
    """Kernels (DeviceType.CUDA) or operators (CPU) of a trace, the longest first; the ranges are left out."""
    calls, us = Counter(), Counter()
    for event in events:
        if event.device_type == device and not event.is_user_annotation:
            name = plain_name(event.name)
            calls[name] += 1
            us[name] += event.time_range.elapsed_us() if device == DeviceType.CUDA else event.self_cpu_time_total
    return [Part(name, calls[name] / epochs, total / epochs) for name, total in us.most_common()]


def plain_name(name: str) -> str:
    """What the source calls one of this package's kernels, such as "minibatch.rows", from Numba's name for it; others as they are."""
    if name.startswith("_ZN"):
        parts, rest = [], name[3:]
        while (found := re.match(r"\d+", rest)) is not None:
            end = found.end() + int(found[0])
            parts.append(rest[found.end() : end])
            rest = rest[end:]
    else:
        parts = name.partition("[abi")[0].split("::")
    if parts[:2] != ["numba_rl", "kernels"] or len(parts) < 4:
        return name
    module, kernel = parts[2], parts[-1].removesuffix(" ")
    return module if kernel.startswith(module) else f"{module}.{kernel}"


def host_in(events: Iterable, name: str, epochs: int, numba_waits: int = 0) -> Host:
    """What the host called while a range `name` was open, an epoch; numba_waits: waits that the trace does not know, in all epochs."""
    events = [event for event in events if event.device_type == DeviceType.CPU]
    spans = [event.time_range for event in events if event.is_user_annotation and event.name == name]
    names = Counter(event.name for event in events if any(span.start <= event.time_range.start <= span.end for span in spans))

    def each(wanted):
        return sum(count for called, count in names.items() if wanted(called)) / epochs

    return Host(
        each(lambda called: called in SYNCHRONISATIONS) + numba_waits / epochs,
        each(lambda called: called.startswith(("cudaMemcpy", "cuMemcpy")) and "Async" not in called),
        each(lambda called: called in KERNEL_LAUNCHES),
        each(lambda called: called in GRAPH_LAUNCHES),
    )
