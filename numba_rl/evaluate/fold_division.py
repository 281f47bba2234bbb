"""How many trainings of a walk-forward go side by side, and the threads of each."""

import os
from typing import NamedTuple

import torch

from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.replay import auto_capacity, row_bytes
from numba_rl.replay.prioritized import HOST_CAPACITY
from numba_rl.settings import replace
from numba_rl.trainer import memory
from numba_rl.trainer.building import pick_device, why_not_fused
from numba_rl.trainer.networks import PORTFOLIO_FEATURES

# A training in a process of its own, beside what trainer.memory counts: Python, torch, Numba and what they compiled where nothing was
# cached; on a GPU the context. These and the next two bound the peaks of resident memory that were measured (profiles/README.md).
BASE_BYTES = {"cpu": 770_000_000, "cuda": 800_000_000}
ARRIVALS = 2  # copies of a market as it comes in: the message, and what is read from it
UPDATES = {"cpu": 1.6, "cuda": 1.0}  # of the estimated update: what the libraries keep for themselves while products of matrices run


class Division(NamedTuple):
    """Trainings side by side; threads of each (None: all cores); a warning in one line, or ""."""

    jobs: int
    threads: int | None
    warning: str = ""


def divide(config: Config, market: Market, trainings: int) -> Division:
    """evaluate.jobs trainings at a time, or with 0 as many as cores and free memory allow; never more than there are.

    The cores are divided among them, unless train.threads says otherwise.
    """
    asked, threads = config.evaluate.jobs, config.train.threads
    if asked == 1 or trainings <= 1:
        return Division(1, threads)
    cores = len(os.sched_getaffinity(0))
    device = pick_device(config, lambda line: None)
    free = memory.room(device).free
    need = training_bytes(config, market, device)
    room = max(int(free // need), 1)
    count = min(asked or min(max(cores // (threads or 1), 1), room), trainings)
    if count == 1:
        return Division(1, threads)
    warning = ""
    if count > room:
        warning = (
            f"{count} trainings side by side need about {count * need / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; fewer --jobs are safer"
        )
    return Division(count, threads or max(cores // count, 1), warning)


def training_bytes(config: Config, market: Market, device: torch.device) -> int:
    """About how much memory one training takes on `device` at its peak: `trainer.memory.estimate`, and what a process adds."""
    bars, features = market.features.shape
    if config.algorithm == "dqn" and config.replay.capacity is None:
        row = row_bytes(features + PORTFOLIO_FEATURES, config.replay.mode)
        room = memory.room(device, config.train.memory_limit_gb)
        config = replace(config, {"replay.capacity": auto_capacity(*room, row) if device.type == "cuda" else HOST_CAPACITY})
    fused = config.train.collector != "batched" and why_not_fused(config, market, device) is None
    found = memory.estimate(config, bars, features, device, fused=fused)
    arrays = (market.timestamp, market.prices, market.features, market.raw_features, market.regime, market.volume)
    sent = sum(array.nbytes for array in arrays if array is not None) if device.type == "cpu" else 0
    return BASE_BYTES[device.type] + ARRIVALS * sent + found.kept + round(UPDATES[device.type] * found.update)
