"""How many trainings of a walk-forward go side by side, and the threads of each."""

import os
from typing import NamedTuple

import torch

from numba_rl.collect.batched import EPISODES, LAUNCH_ON_GPU
from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.kernels.replay_layout import row_bytes
from numba_rl.replay import auto_capacity
from numba_rl.replay.prioritized import HOST_CAPACITY
from numba_rl.trainer import memory
from numba_rl.trainer.session import pick_device

# bytes that a training takes beside its data, measured as the process's peak: Python, torch, Numba and what they compiled; on a GPU the context
BASE_BYTES = {"cpu": 650_000_000, "cuda": 800_000_000}
MARKETS = 3  # the market as it was sent, and as the collector and the trainer lay it out
ROLLOUTS = 4  # states, shuffled states, and the networks' activations over them


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
        warning = f"{count} trainings side by side need about {count * need / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; fewer --jobs are safer"
    return Division(count, threads or max(cores // count, 1), warning)


def training_bytes(config: Config, market: Market, device: torch.device) -> int:
    """About how much memory one training takes on `device`."""
    width = market.features.shape[1] + 3
    arrays = (market.timestamp, market.prices, market.features, market.raw_features, market.regime)
    states = (config.episodes.launch or LAUNCH_ON_GPU) * (config.episodes.count or EPISODES) * width * 4
    replay = 0
    if config.algorithm == "dqn":
        row = row_bytes(width, config.replay.mode)
        capacity = config.replay.capacity
        if capacity is None:
            capacity = auto_capacity(*torch.cuda.mem_get_info(device), row) if device.type == "cuda" else HOST_CAPACITY
        replay = capacity * row
    return BASE_BYTES[device.type] + MARKETS * sum(array.nbytes for array in arrays) + ROLLOUTS * states + replay
