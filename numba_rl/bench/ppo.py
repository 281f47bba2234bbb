"""Collecting with critic and advantages, and whole PPO iterations: fused on a GPU, batched on the CPU; beside plain torch on a simpler game."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from numba_rl.bench import games, plain
from numba_rl.bench.rows import Row, require
from numba_rl.bench.timing import Clock
from numba_rl.collect.batched import BatchedCollector
from numba_rl.collect.fused import FusedCollector, rebuilt
from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.errors import UserError
from numba_rl.trainer.building import why_not_fused
from numba_rl.trainer.fused_ppo import FusedPpo
from numba_rl.trainer.ppo import Ppo
from numba_rl.trainer.precision import tf32

SIZES = {"cuda": ((128, 500), (4096, 128), (8192, 500), (65_536, 128)), "cpu": ((128, 64),)}
COLLECT_GOALS = {(128, 500): 0.9e-3, (8192, 500): 10e-3, (65_536, 128): 18e-3}
ITERATION_GOALS = {(128, 500): 5.5e-3, (4096, 128): 20e-3}
UPDATE = {"ppo.epochs": 4, "ppo.minibatches": 4}  # that of the goals
LARGEST_UPDATE = 1_000_000  # samples of an iteration that is timed
TIMED = 5  # of each size
CHECKED_SLOTS = 128


class Collected(NamedTuple):
    """What is checked of a collection, of some slots n: states float32 [L + 1, n, F + 3], the rest [L, n] or, of final_values, [K, n]."""

    states: torch.Tensor
    actions: torch.Tensor
    log_probs: torch.Tensor
    rewards: torch.Tensor
    ends: torch.Tensor
    values: torch.Tensor  # [L + 1, n] or [L, n]
    final_values: torch.Tensor
    advantages: torch.Tensor


def run(clock: Clock, sizes: Sequence[tuple[int, ...]]) -> Iterator[Row]:
    """For each size (episodes, steps) its collection, and where it is not too large its update and whole iteration."""
    market = games.market()
    for episodes, steps in sizes:
        config = games.config(episodes, steps, UPDATE)
        size, samples, shape = f"{episodes:,} x {steps}", episodes * steps, (episodes, steps)
        naive = plain.PlainPpo(market, config.ppo, episodes, steps, clock.device)
        with tf32():
            naive_collect = clock.time(naive.collect)
        trainer, collect, update, checked = _fused(market, config) if clock.device.type == "cuda" else _batched(market, config)
        checks = check(trainer, checked(), config)
        yield Row(f"collect {size}", clock.time(collect), samples, "steps", naive_collect, COLLECT_GOALS.get(shape), checks)
        if samples <= LARGEST_UPDATE:
            seconds, plain_update, plain_whole = _updates(clock, update, naive)
            epochs = f"{config.ppo.epochs} x {config.ppo.minibatches}"
            yield Row(f"update {size}, {epochs}", seconds, samples, "samples", plain_update)
            whole = _iteration(clock, trainer)
            yield Row(f"iteration {size}, {epochs}", whole, samples, "steps", plain_whole, ITERATION_GOALS.get(shape), _sound(trainer))
        del trainer, collect, update, checked, naive
        if clock.device.type == "cuda":
            torch.cuda.empty_cache()


def _fused(market: Market, config: Config):
    """The fused trainer, its collection, its update, and what is checked of the collection."""
    device = torch.device("cuda")
    obstacle = why_not_fused(config, market, device)
    if obstacle:
        raise UserError(f"the fused iteration cannot be timed on this GPU: {obstacle}; --device cpu times the CPU path")
    trainer = FusedPpo(config, FusedCollector(market, config))
    trainer.collector.start()
    r, steps = trainer.collector.rollout, trainer.collector.steps

    @torch.no_grad()
    def collect():
        trainer.collect()

    def update():
        trainer.update.update(
            r.bars.reshape(-1),
            r.account[:steps].view(-1, 3),
            *(part.view(-1) for part in (r.actions, r.log_probs, trainer.advantages, trainer.returns)),
        )

    def checked():
        collect()
        some = torch.arange(0, trainer.collector.episodes, max(1, trainer.collector.episodes // CHECKED_SLOTS), device=device)
        states = rebuilt(r.features, r.rows[:, some], r.account[:, some])
        rest = (r.actions, r.log_probs, r.rewards, r.ends, trainer.values, trainer.final_values, trainer.advantages)
        return Collected(states, *(part[:, some] for part in rest))

    return trainer, collect, update, checked


def _batched(market: Market, config: Config):
    """The same of the CPU path's trainer."""
    trainer = Ppo(config, BatchedCollector(market, config))
    kept = []

    def collect():
        rollout = trainer.collector.collect(trainer.actor)
        kept[:] = rollout, trainer._batch(rollout, rollout.rewards)[0]

    def checked():
        collect()
        r, batch = kept
        final_values, advantages = trainer.values(r.final_states), batch.advantages.view_as(r.rewards)
        whole = (r.states, r.actions, r.log_probs, r.rewards, r.ends, trainer.values(r.states), final_values, advantages)
        return Collected(*(part[:, :CHECKED_SLOTS] for part in whole))

    return trainer, collect, lambda: trainer._update(kept[1]), checked


@torch.no_grad()
def check(trainer, found: Collected, config: Config) -> dict[str, float]:
    """Raises OutputError unless log-probabilities are the actor's in float64, values the critic's, and advantages their definition."""
    wanted = games.log_policy(trainer.actor, found.states[:-1]).gather(-1, found.actions.long()[..., None])[..., 0]
    error = (wanted - found.log_probs).abs()
    direct = trainer.critic(found.states)[..., 0]
    value_error = ((found.values - direct).norm() / direct.norm()).item()
    rewards, ends, value, finals, advantages = (
        part.double().cpu().numpy() for part in (found.rewards, found.ends, found.values, found.final_values, found.advantages)
    )
    gamma, decay = config.ppo.gamma, config.ppo.gamma * config.ppo.gae_lambda
    slots = np.arange(rewards.shape[1])
    running, worst = np.zeros(len(slots)), 0.0
    for t in range(len(rewards) - 1, -1, -1):
        end = ends[t].astype(int)
        following = np.where(end == 0, value[t + 1], np.where(end > 0, finals[np.maximum(end - 1, 0), slots], 0.0))
        running = rewards[t] + gamma * following - value[t] + decay * np.where(end == 0, running, 0.0)
        worst = max(worst, float(np.abs(running - advantages[t]).max()))
    checks = {
        "log_prob_error": error.max().item(),
        "log_prob_error_mean": error.mean().item(),
        "value_error": value_error,
        "advantage_error": worst,
    }
    sound = checks["log_prob_error_mean"] < 1e-3 and value_error < 0.03 and worst < 1e-2
    return require(sound, "the collection", checks)


def _updates(clock, update, naive) -> tuple[float, float, float]:
    """Seconds of an update, of plain torch's, and of plain torch's whole iteration."""
    seconds = clock.time(update)
    with tf32():
        batch = naive.collect()
        return seconds, clock.time(lambda: naive.update(*batch), warm=2), clock.time(naive.iteration, warm=2)


def _iteration(clock, trainer) -> float:
    if clock.device.type == "cpu":
        return clock.time(trainer.epoch)
    for _ in range(3):  # the first compiles, the second captures
        trainer.epoch()
    return clock.time_host(trainer.epoch)


def _sound(trainer) -> dict[str, float]:
    figures = trainer.statistics()
    found = {"skipped": figures["losses/skipped"], "broken_slots": figures["rollout/broken_slots"]}
    return require(not any(found.values()) and np.isfinite(figures["losses/value_loss"]), "the iteration", found)
