"""Every kernel once, at tiny sizes, for compute-sanitizer.

    compute-sanitizer --tool memcheck --error-exitcode 9 python profiles/sanitize.py kernels
    RLTRAIN_WHOLE_BARRIERS=1 compute-sanitizer --tool racecheck --error-exitcode 9 python profiles/sanitize.py kernels
    python profiles/sanitize.py --device cpu kernels graphs        # the same script on the CPU path, to see that it runs

`kernels` plays and trains without CUDA graphs; PYTORCH_NO_CUDA_MEMORY_CACHING=1 beside it gives every tensor an allocation of its own,
so that memcheck sees where one ends. `graphs` trains three epochs, the last from captured graphs, which need torch's allocator. A part
of `kernels` can be named alone: rollouts, replays, backtest, guard or updates. racecheck misreads barriers that only a part of a block passes
(profiles/racecheck.py), hence the variable: all barriers are the block's then, and everything else is as it is.
"""

import argparse

import torch

from numba_rl import settings
from numba_rl.bench import games, replay
from numba_rl.bench.rows import OutputError
from numba_rl.collect.batched import BatchedCollector
from numba_rl.collect.epoch import Epochs
from numba_rl.collect.fused import FusedCollector
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.data.windows import Range
from numba_rl.evaluate.backtest import play_policy
from numba_rl.evaluate.device import GpuWindows, SteppedWindows, actions_of
from numba_rl.replay import ReplayRules
from numba_rl.replay.device import DeviceReplay
from numba_rl.replay.host import HostReplay
from numba_rl.trainer.building import build
from numba_rl.trainer.dqn import Dqn
from numba_rl.trainer.dqn_networks import HEADS
from numba_rl.trainer.fused_ppo import FusedPpo
from numba_rl.trainer.guard import Guard
from numba_rl.trainer.networks import build_actor
from numba_rl.trainer.ppo import Ppo

TINY = {"episodes.count": 24, "episodes.launch": 8, "episodes.length": 5, "ppo.epochs": 1, "ppo.minibatches": 2,
        "dqn.batch": 64, "dqn.updates": 2, "dqn.n_step": 3, "replay.capacity": 300, "dqn.quantiles": 2}  # fmt: skip
RANGES = [Range(start, start + length) for start, length in ((10, 40), (60, 25), (200, 3))]
EVERY_TERM = {"reward.barrier": 0.5, "reward.diversity": 1.0, "reward.risk": 0.1, "reward.shaping": "dsr"}


def config_of(changes=None):
    return settings.replace(games.config(24, 8), TINY | (changes or {}))


def finite(name, *tensors):
    """Raises OutputError where a tensor holds a number that is none."""
    if not all(torch.isfinite(torch.as_tensor(tensor).float()).all() for tensor in tensors):
        raise OutputError(f"{name}: not finite")


def rollouts(device, market):
    """Both forms of the fused rollout, with every reward term on and off, and the stepper."""
    for changes in ({}, EVERY_TERM):
        config = config_of(changes)
        actor = build_actor(config, len(market.names), torch.Generator().manual_seed(0)).to(device)
        collectors = [BatchedCollector(market, config, device=device)]
        if device.type == "cuda":
            collectors += [FusedCollector(market, config, form=form) for form in ("block", "warp")]
        for collector in collectors:
            for _ in range(2):
                rollout = collector.collect(actor)
            Epochs(collector, market.regime[:, 0]).end(rollout)
            finite(type(collector).__name__, rollout.log_probs, rollout.rewards)


def replays(device, market):
    """A ring that wraps around, in every mode."""
    for mode in ("proportional", "rank", "uniform"):
        rules, slots = ReplayRules(mode=mode), 300
        ring = DeviceReplay(slots, replay.WIDTH, rules, device) if device.type == "cuda" else HostReplay(slots, replay.WIDTH, rules, device)
        random = torch.Generator(device).manual_seed(0)
        for count in (100, 250, 7):
            ring.insert(*replay.random_rows(count, device, random).values(), errors=torch.rand(count, device=device, generator=random))
            finite(f"rounded batch, {mode}", ring.sample(64, torch.bfloat16).states)
            batch = ring.sample(64)
            errors = torch.randn(64, device=device, generator=random)
            errors[:2] = torch.tensor([float("nan"), float("inf")], device=device)
            ring.update(batch, errors)
            finite(f"replay, {mode}", batch.states, batch.weights)
        ring.update_slots(torch.arange(5, device=device), torch.rand(5, device=device))
        ring.load_state_dict(ring.state_dict())


def backtest(device, market):
    """Windows of different lengths."""
    config = config_of()
    actor = build_actor(config, len(market.names), torch.Generator().manual_seed(0))
    exact = play_policy(market, RANGES, actor, config)
    if device.type == "cuda":
        play_windows(GpuWindows, market, actor.to(device), config)
    finite("backtest", *(played.equity for played in exact))


def play_windows(way, market, network, config):
    """Three windows by one of the ways that a GPU has."""
    windows = way(market, RANGES, network, config)
    windows.launch()
    assert actions_of(windows).shape[1] == len(RANGES)


def guard(device, market):
    """Losses that are sound, clipped and broken."""
    watched = Guard(config_of().guard, device)
    for loss in (1.0, 1e9, float("nan"), 1.0):
        watched.check(torch.tensor(loss, device=device), torch.tensor([loss, 1.0], device=device), torch.ones(300, device=device))
    assert watched.read() is not None


def updates(device, market):
    """One epoch of every trainer; without a second one nothing is captured."""
    trainers = [Ppo(config_of({"reward.curiosity": 1.0}), BatchedCollector(market, config_of(), device=device))]
    if device.type == "cuda":
        trainers.append(FusedPpo(config_of(), FusedCollector(market, config_of())))
    for trainer in trainers:
        trainer.epoch()
        finite(type(trainer).__name__, *trainer.networks().values())
    for variant in HEADS:
        config = config_of({"algorithm": "dqn", "dqn.variant": variant})
        trainer = Dqn(config, BatchedCollector(market, config, device=device), market.regime)
        trainer._collect()
        trainer.learner.warm_up()
        trainer.learner.updates(2)
        finite(f"Dqn, {variant}", *trainer.networks().values())


def graphs(device, market):
    """Trainings whose last epochs are replays."""
    for changes in ({}, {"algorithm": "dqn"}, {"algorithm": "dqn", "dqn.variant": "noisy"}):
        trainer = build(config_of(changes | {"train.device": device.type}), market)
        for _ in range(3):
            trainer.epoch()
        assert trainer.device.type == device.type
        finite("graphs", *trainer.networks().values())
        if device.type == "cuda":
            play_windows(SteppedWindows, market, trainer.acting_network, trainer.config)


KERNELS = (rollouts, replays, backtest, guard, updates)
PARTS = {"kernels": KERNELS, "graphs": (graphs,)} | {run.__name__: (run,) for run in KERNELS}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    arguments = parser.parse_args()
    market = load_market(config_of(), generate("mean_reverting", 1500, 1).bars)
    for part in arguments.parts:
        for run in PARTS[part]:
            run(torch.device(arguments.device), market)
            if arguments.device == "cuda":
                torch.cuda.synchronize()
            print(f"{part}: {run.__name__} done", flush=True)


if __name__ == "__main__":
    main()
