"""How much memory a training takes, by its settings alone, and what is made smaller where the machine has less.

All numbers are bytes of the memory of one device: a GPU's, or main memory on the CPU path. `estimate` counts the arrays that a trainer
keeps (tested against what it really allocates) and what an update needs for a moment. `fitted` goes by these rules: the
collector's share is half of what is free less 400 MB, but no less than an eighth of it, and episodes are reduced to it; a replay without a size takes up to
20% of the card's memory, or 1 GB where 20% is less, and never more than half of what is then free (on the CPU path 100,000
transitions, or half of what is free); a batch of DQN that has no room is cut into parts whose gradients are averaged.
"""

import bisect
import math
from itertools import pairwise
from typing import NamedTuple

import torch

from numba_rl.collect.batched import EPISODES, launch_steps
from numba_rl.config import Config
from numba_rl.errors import ConfigError
from numba_rl.host import main_memory
from numba_rl.kernels import first_gradient
from numba_rl.kernels.q_layout import q_layout
from numba_rl.kernels.replay_layout import choose_layout
from numba_rl.kernels.slots import CLOCK_FIELDS
from numba_rl.replay import auto_capacity, row_bytes
from numba_rl.replay.prioritized import HOST_CAPACITY
from numba_rl.rules.actions import ACTIONS
from numba_rl.rules.barrier import BARRIER_FIELDS
from numba_rl.rules.diversity import WINDOW_FIELDS
from numba_rl.rules.portfolio import PORTFOLIO_FIELDS
from numba_rl.rules.shaping import SHAPING_FIELDS
from numba_rl.settings import replace
from numba_rl.trainer import dqn_fused, fused_update
from numba_rl.trainer.curiosity import FEATURES, HIDDEN
from numba_rl.trainer.dqn_networks import HEADS, q_parameters
from numba_rl.trainer.networks import PORTFOLIO_FEATURES, dense_parameters
from numba_rl.trainer.ppo import CRITIC_ROWS

RESERVE = 400 * 10**6  # of the free memory, left out of the collector's share
SLOT = 8 * (PORTFOLIO_FIELDS + BARRIER_FIELDS + WINDOW_FIELDS + SHAPING_FIELDS + CLOCK_FIELDS)
ADAM = 4 * 4  # a parameter: weight, gradient, two moments
WORKSPACES = 4 * 32 * 2**20  # of matrix products on a GPU: the libraries keep one a stream
SIZES = ("episodes.count", "replay.capacity", "dqn.batch", "dqn.accumulate")  # settings that `fitted` may change


class DoesNotFit(ConfigError):
    """The training needs more memory than the device has."""


class Room(NamedTuple):
    """Memory of a device: what is free, and what it has in all."""

    free: int
    total: int


class Estimate(NamedTuple):
    """What a training takes, by part."""

    market: int  # prices, features and what is derived from them
    collector: int  # episode slots, a launch's steps, and what the trainer keeps of as many
    replay: int
    networks: int  # weights, gradients, moments, buffers of the written-out updates
    update: int  # for a moment, while collected steps are learned from

    @property
    def kept(self) -> int:
        """All but `update`."""
        return sum(self) - self.update

    @property
    def total(self) -> int:
        """At the peak."""
        return sum(self)


def room(device: torch.device, limit_gb: float | None = None) -> Room:
    """What `device` has; limit_gb (train.memory_limit_gb) bounds both numbers."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch's own, and free for the next tensor
    else:
        free, total = main_memory()
    limit = math.inf if limit_gb is None else limit_gb * 1e9
    return Room(int(min(free, limit)), int(min(total, limit)))


# ------------------------------------------------------------------------------------------------ what is taken


def estimate(config: Config, bars: int, features: int, device: torch.device, *, fused: bool = False) -> Estimate:
    """Of a training by `config` on a market of `bars` with `features`; fused: by a fused collector (and, with PPO, its trainer).

    replay.capacity = None counts as no replay.
    """
    episodes, steps = _launch(config, device)
    width, samples = features + PORTFOLIO_FEATURES, episodes * steps
    finals = steps // min(config.episodes.length, max(bars - 1, 1)) + 2
    market = bars * (4 * 8 + 4 * features + 4)
    if fused:
        collector = episodes * (SLOT + 16 * (steps + 1 + finals) + 8) + 14 * samples
    else:
        collector = episodes * (SLOT + 4 * width * (steps + 1 + finals) + 8) + 18 * samples
    collector += 8 * steps + 8 * episodes  # sums of an epoch, and what open episodes have earned
    if config.algorithm == "dqn":
        networks, update = _dqn(config, width, device)
        if fused:  # states are built for the transitions, by way of their market features; the table in bf16, weights as packed
            update += 8 * width * episodes * (steps + 1 + finals)
            market += 2 * bars * (width + 32)
            networks += 32 * q_layout(features, config.dqn.hidden, config.dqn.head, ACTIONS).starts[-1]
        tail = max(config.dqn.n_step - 1, 1) * episodes * (8 * width + 10)
        collector += tail + samples * (8 * width + 16)
        market += bars * 12
    elif fused:
        table, networks, update = _fused_ppo(config, width, samples, device)
        market += bars * table
        collector += 4 * episodes * (steps + 1 + finals) + 8 * samples
    else:
        networks, update = _ppo(config, width, samples, episodes)
        collector += 8 * samples
    if config.reward.curiosity > 0:
        inputs = min(FEATURES, features)
        networks += ADAM * ((inputs + 3) * HIDDEN + HIDDEN + HIDDEN * inputs + inputs)
    workspaces = WORKSPACES if device.type == "cuda" else 0
    return Estimate(market, collector, _replay(config, width, device), networks, update + workspaces)


def _launch(config: Config, device: torch.device) -> tuple[int, int]:
    return config.episodes.count or EPISODES, launch_steps(config, device)


def _ppo(config: Config, width: int, samples: int, episodes: int) -> tuple[int, int]:
    ppo = config.ppo
    parameters = dense_parameters(width, *ppo.actor, ACTIONS) + dense_parameters(width, *ppo.critic, 1)
    batch = samples * (8 + 4 * 3) + 4 * episodes  # actions as indices, values, advantages, returns
    critic = min(samples + episodes, CRITIC_ROWS) * 4 * _two_widest(ppo.critic)
    rows = -(-samples // min(ppo.minibatches, samples))
    kept = width + sum(ppo.actor) + sum(ppo.critic) + 4 * ACTIONS
    return ADAM * parameters, batch + max(critic, rows * 4 * (kept + 2 * _two_widest((*ppo.actor, *ppo.critic))))


def _fused_ppo(config: Config, width: int, samples: int, device: torch.device) -> tuple[int, int, int]:
    """(bytes a bar of the table in bf16, networks, update)."""
    ppo, groups = config.ppo, fused_update.GROUPS
    inputs, logits = fused_update.padded(width), (ACTIONS + 15) // 16 * 16
    actor, critic = list(ppo.actor), list(ppo.critic)
    first = actor[0] + critic[0]
    layers = [(inputs, first), *zip(actor, [*actor[1:], logits], strict=True), *pairwise(critic)]
    matrices, tail = sum(a * b for a, b in layers), sum(actor) + sum(critic) + logits + critic[-1] + 1
    rows = samples // min(ppo.minibatches, samples)
    minibatch = inputs + logits + critic[-1] + first + sum(actor[1:]) + sum(critic[1:-1])  # bf16: inputs and gradients
    networks = (matrices + tail) * (4 * 4 + 2) + rows * (2 * minibatch + 28)
    networks += rows * (2 * inputs + 16)  # the next minibatch's samples
    networks += groups * (4 * tail + 32 * ppo.epochs * min(ppo.minibatches, samples))
    networks += 4 * (width * actor[0] + sum(a * b for a, b in zip(actor, [*actor[1:], ACTIONS], strict=True)) + sum(actor) + ACTIONS)
    if fused_update.takes_one_pass(rows, first, inputs, device):
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        networks += 4 * first_gradient.groups_for(rows, first, multiprocessors) * first * inputs
    values = min(samples, 2 * fused_update.VALUE_ROWS) * 2 * (inputs + _two_widest(critic))  # two passes side by side
    return 2 * inputs, networks, max(values, rows * (2 * (first + sum(actor[1:]) + sum(critic[1:])) + 4 * logits))


def _dqn(config: Config, width: int, device: torch.device) -> tuple[int, int]:
    dqn = config.dqn
    rows, buffers = dqn.batch, dqn.batch * 32
    if dqn_fused.fits(config, device):  # the batch's states, in bf16, are among the activations
        inputs, columns = -(-width // 8) * 8, dqn_fused.COLUMNS
        sizes = [*dqn.hidden, 2 * dqn.head]
        parameters = sum(a * b + b for a, b in zip([inputs, *sizes], [*sizes, columns], strict=True))
        tail = sum(sizes) + columns
        activations = 2 * rows * (2 * inputs + 4 * sum(sizes) + 6 * columns + columns) + 8 * rows
        return buffers + parameters * (6 * 4 + 2 * 2) + activations + dqn_fused.MOST_GROUPS * 4 * tail + 8 * dqn.head * columns, 0
    buffers += rows * 8 * (-(-width // 4) * 4)
    parameters = q_parameters(config, width - PORTFOLIO_FEATURES)
    quantiles = dqn.quantiles if dqn.variant == "iqn" else 1
    outputs = sum(HEADS[dqn.variant]) + 1
    layer = sum(dqn.hidden) + quantiles * (2 * dqn.head + 3 * outputs)
    return buffers + (ADAM + 4) * parameters, 4 * rows * 2 * layer


def _two_widest(sizes) -> int:
    """Floats of a state while one layer is computed from another."""
    return sum(sorted(sizes)[-2:])


def _replay(config: Config, width: int, device: torch.device) -> int:
    if config.algorithm != "dqn" or config.replay.capacity is None:
        return 0
    layout = choose_layout(config.replay.capacity, width)
    rank = 20 if device.type == "cuda" else 16  # the order, its sums, and on a GPU room for the sort
    ranks = rank * config.replay.capacity if config.replay.mode == "rank" else 0
    return 4 * (layout.capacity * layout.words + layout.leaves) + 12 * (layout.nodes + layout.padded_tops) + ranks


# ------------------------------------------------------------------------------------------------ what fits


def fitted(
    config: Config, bars: int, features: int, device: torch.device, has: Room, *, fused: bool = False, resumed: bool = False
) -> tuple[Config, list[str]]:
    """The settings of a training that `has` room, and what had to be reduced for it, in one line each.

    resumed: the episodes are those of a checkpoint, and stay. Raises DoesNotFit, in one line with what to do, where it
    cannot be made to fit.
    """

    def taken(settings: Config) -> Estimate:
        return estimate(settings, bars, features, device, fused=fused)

    def has_room(count: int) -> bool:
        found = taken(replace(config, {"episodes.count": count}))
        return found.collector <= share and (config.algorithm == "dqn" or found.total <= has.free)

    notices = []
    wanted, steps = _launch(config, device)
    share = max((has.free - RESERVE) // 2, has.free // 8)
    if not resumed and not has_room(wanted):
        most = bisect.bisect_left(range(1, wanted), True, key=lambda count: not has_room(count))
        if most < 1:
            one = taken(replace(config, {"episodes.count": 1}))
            raise DoesNotFit(
                f"one episode of episodes.launch = {steps} steps needs {describe(one, has)}; lower it, or raise --memory-limit"
            )
        notices.append(f"memory: {most} episodes instead of {wanted}, the most that {_size(has.free)} hold")
        config = replace(config, {"episodes.count": most})
    if config.algorithm == "dqn":
        config = _with_replay(config, has, taken(config), features + PORTFOLIO_FEATURES, device)
        given = config.dqn.batch
        while taken(config).total > has.free and config.dqn.batch % 2 == 0 and config.dqn.batch > 64:
            config = replace(config, {"dqn.batch": config.dqn.batch // 2, "dqn.accumulate": config.dqn.accumulate * 2})
        if config.dqn.batch < given:
            notices.append(f"memory: batches of {given} are cut into parts of {config.dqn.batch}, whose gradients are averaged")
    found = taken(config)
    if found.total > has.free:
        largest = max(found._fields, key=lambda part: getattr(found, part))
        raise DoesNotFit(f"training needs {describe(found, has)}; {_ADVICE[largest]}, or raise --memory-limit")
    return config, notices


_ADVICE = {
    "market": "give fewer bars or features",
    "collector": "lower episodes.count or episodes.launch",
    "replay": "lower replay.capacity",
    "networks": "make the networks smaller",
    "update": "raise ppo.minibatches or lower dqn.batch or episodes.count",
}


def _with_replay(config: Config, has: Room, others: Estimate, width: int, device: torch.device) -> Config:
    if config.replay.capacity is not None:
        return config
    row, free = row_bytes(width, config.replay.mode), max(0, has.free - others.total)
    try:
        capacity = auto_capacity(free, has.total, row)
    except ValueError as error:
        raise DoesNotFit(f"{error}; lower episodes.count, or raise --memory-limit") from None
    return replace(config, {"replay.capacity": capacity if device.type == "cuda" else min(capacity, HOST_CAPACITY)})


def describe(found: Estimate, has: Room) -> str:
    """One line: "1.2 GB of the 3.5 GB that are free (market 0.1 GB, ...)"."""
    parts = ", ".join(f"{name} {_size(size)}" for name, size in found._asdict().items() if size)
    return f"{_size(found.total)} of the {_size(has.free)} that are free ({parts})"


def _size(count: float) -> str:
    return f"{count / 1e9:.3g} GB" if count >= 1e8 else f"{count / 1e6:.3g} MB"
