"""Memory: estimates against what trainers really keep, what is reduced where there is less, and no growth over many updates."""

import gc
import resource
import types

import numpy as np
import pytest
import torch

from numba_rl import gpu, settings
from numba_rl.collect.batched import BatchedCollector
from numba_rl.config import Config
from numba_rl.errors import ConfigError
from numba_rl.trainer import building, memory
from numba_rl.trainer.dqn import Dqn
from numba_rl.trainer.ppo import Ppo

CPU, GB = torch.device("cpu"), 10**9
FEATURES = 51
KINDS = {
    "ppo": {}, "dqn": {"algorithm": "dqn", "replay.capacity": 30_000}, "many episodes": {"episodes.count": 700, "episodes.launch": 40},
    "rank": {"algorithm": "dqn", "replay.capacity": 20_000, "replay.mode": "rank", "dqn.batch": 4096, "dqn.n_step": 40},
    "noisy": {"algorithm": "dqn", "replay.capacity": 5000, "dqn.variant": "noisy", "reward.curiosity": 1.0},
    "small": {"episodes.count": 8, "ppo.actor": (256,), "ppo.critic": (64, 64), "episodes.length": 7},
}  # fmt: skip


def kept_bytes(*roots):
    """Bytes of all tensors and arrays that `roots` own, each memory once: what containers, modules and this package's objects hold.

    Other libraries' objects are left alone: through them, everything that earlier tests have left behind could be reached.
    """
    seen, memory_of, left = set(), {}, list(roots)
    while left:
        thing = left.pop()
        kind = type(thing)  # isinstance would ask a weak proxy for the class of what it stands for, which may be gone
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if issubclass(kind, torch.Tensor):
            storage = thing.untyped_storage()
            memory_of[storage.data_ptr()] = storage.nbytes()
            left += [part for part in (thing.grad,) if part is not None]
        elif issubclass(kind, np.ndarray):
            while isinstance(thing.base, np.ndarray):
                thing = thing.base
            memory_of.setdefault(thing.ctypes.data, thing.nbytes)
        elif issubclass(kind, dict | list | tuple | set | torch.nn.Module) or (kind.__module__.startswith("numba_rl") and kind is not Config):
            left += gc.get_referents(thing)
    return sum(memory_of.values())


@pytest.mark.parametrize("kind", KINDS)
def test_estimates_are_within_a_tenth_of_what_a_trainer_keeps(market, kind):
    config = settings.replace(Config(), KINDS[kind])
    collector = BatchedCollector(market, config)
    trainer = Dqn(config, collector, market.regime) if config.algorithm == "dqn" else Ppo(config, collector)
    found = memory.estimate(config, len(market), FEATURES, CPU)
    if config.algorithm == "dqn":
        assert found.replay == pytest.approx(kept_bytes(trainer.replay), rel=0.1)
        trainer.replay.prepare(config.dqn.batch)
    assert found.kept == pytest.approx(kept_bytes(trainer), rel=0.1)
    assert found.market == pytest.approx(kept_bytes(collector.prices, collector.features), rel=0.1)


@pytest.mark.skipif(not gpu.SIMULATED, reason="the simulator's CPU tensors stand for those of a GPU")
def test_estimates_of_the_written_out_trainers(market, monkeypatch):
    from numba_rl.collect import fused_q
    from numba_rl.collect.experience import Chooser, Experience
    from numba_rl.collect.fused import FusedCollector
    from numba_rl.kernels.q_layout import q_layout
    from numba_rl.kernels.rollout_q import QPlan
    from numba_rl.rules.actions import ACTIONS
    from numba_rl.trainer.dqn_fused import FusedLearner
    from numba_rl.trainer.dqn_networks import build_q_network
    from numba_rl.trainer.fused_ppo import FusedPpo

    config = settings.replace(Config(), {"episodes.count": 64, "episodes.launch": 100})
    trainer = FusedPpo(config, FusedCollector(market, config, device="cpu", form="block"))
    found = memory.estimate(config, len(market), FEATURES, CPU, fused=True)
    assert found.kept == pytest.approx(kept_bytes(trainer), rel=0.1)
    config = settings.replace(Config(), {"algorithm": "dqn", "replay.capacity": 2000, "episodes.launch": 64})
    collector = BatchedCollector(market, config)
    dqn = Dqn(config, collector, market.regime)
    dqn.learner = FusedLearner(build_q_network(config, FEATURES), config, dqn.replay)
    monkeypatch.setattr(memory.dqn_fused, "fits", lambda config, device: True)
    assert memory.estimate(config, len(market), FEATURES, CPU).kept == pytest.approx(kept_bytes(dqn), rel=0.1)
    monkeypatch.setattr(fused_q, "why_not_fused", lambda config, features, device: None)
    plan = QPlan(q_layout(FEATURES, config.dqn.hidden, config.dqn.head, ACTIONS), 1)
    dqn.collector = fused_q.FusedQCollector(market, config, device="cpu", plan=plan)
    dqn.chooser, dqn.experience = Chooser(dqn.collector, config.dqn, market.regime, 0, 1), Experience(dqn.collector, config.dqn.n_step, 0.99)
    assert memory.estimate(config, len(market), FEATURES, CPU, fused=True).kept == pytest.approx(kept_bytes(dqn), rel=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["ppo", "fused", "dqn"])
def test_estimates_on_a_gpu(market, kind):
    changes = {"train.collector": "batched" if kind == "ppo" else "auto"} | KINDS.get(kind, {})
    config, device = settings.replace(Config(), changes), torch.device("cuda", torch.cuda.current_device())
    building.build(config, market)  # workspaces of the libraries, kept for good
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    trainer = building._trainer(config, market, device, None)
    fused = not isinstance(trainer.collector, BatchedCollector)
    assert fused == (kind != "ppo")
    found = memory.estimate(config, len(market), FEATURES, device, fused=fused)
    assert torch.cuda.memory_allocated() - before == pytest.approx(found.kept, rel=0.1)
    trainer.epoch()
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before < 1.1 * found.total


def fitted(changes, free, total=None, **how):
    config = settings.replace(Config(), changes)
    return memory.fitted(config, 10_000, FEATURES, how.pop("device", CPU), memory.Room(free, total or free), **how)


def test_what_fits_stays_as_it_is():
    config, notices = fitted({}, 16 * GB)
    assert config == Config() and not notices
    config, notices = fitted({"algorithm": "dqn"}, 16 * GB)
    assert config.replay.capacity == 100_000 and config.episodes.count is None and not notices


def test_episodes_are_reduced_to_the_collectors_share():
    """Half of what is free less 400 MB, but no less than an eighth."""
    config, notices = fitted({"episodes.count": 100_000, "algorithm": "dqn"}, GB)
    taken = memory.estimate(config, 10_000, FEATURES, CPU).collector
    assert 299e6 < taken <= 300e6
    assert notices == [f"memory: {config.episodes.count} episodes instead of 100000, the most that 1 GB hold"]
    config, notices = fitted({"episodes.count": 100_000}, GB)
    assert 0.99e9 < memory.estimate(config, 10_000, FEATURES, CPU).total <= 1e9, "PPO learns from all of them at once"
    with pytest.raises(ConfigError, match=r"^training needs [0-9.]+ GB of the 0\.9 GB that are free \(market .*\); raise ppo.minibatches"):
        fitted({"episodes.count": 100_000}, 9 * GB // 10, resumed=True)
    with pytest.raises(ConfigError, match=r"^one episode of episodes.launch = 1000000 steps needs .* raise --memory-limit$"):
        fitted({"episodes.launch": 1_000_000}, 6 * GB // 10)
    assert 100 < fitted({"episodes.count": 2000}, 100 * 10**6)[0].episodes.count < 2000, "little memory gives few episodes, not none"


@pytest.fixture
def a_gpu(monkeypatch):
    """A device that says it is a GPU, for rules that ask no more."""
    monkeypatch.setattr(memory.dqn_fused, "fits", lambda config, device: True)
    return types.SimpleNamespace(type="cuda")


@pytest.mark.parametrize(("free", "total", "expected"), [(140, 140, 28), (4, 4, 1), (40, 140, 19.5)])
def test_a_replay_takes_a_fifth_of_the_card_or_1_gb_and_no_more_than_half_of_what_is_free(a_gpu, free, total, expected):
    config, _ = fitted({"algorithm": "dqn"}, free * GB, total * GB, device=a_gpu)
    size = memory.estimate(config, 10_000, FEATURES, CPU).replay
    assert expected * GB * 0.97 < size < expected * GB * 1.03


def test_a_card_of_4_gb_does(a_gpu):
    for algorithm in ("ppo", "dqn"):
        config, notices = fitted({"algorithm": algorithm}, 34 * GB // 10, 4 * GB, device=a_gpu)
        assert config.episodes.count is None and not notices
        assert memory.estimate(config, 10_000, FEATURES, a_gpu).total < 2 * GB


def test_a_batch_that_has_no_room_is_cut():
    config, notices = fitted({"algorithm": "dqn", "dqn.batch": 2**19, "replay.capacity": 1000, "dqn.hidden": (1024, 1024)}, 3 * GB)
    assert config.dqn.batch * config.dqn.accumulate == 2**19 and config.dqn.accumulate > 1
    assert notices == [f"memory: batches of 524288 are cut into parts of {config.dqn.batch}, whose gradients are averaged"]


def test_a_replay_that_was_asked_for_and_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match=r"replay 4\.\d+ GB.*\); lower replay.capacity, or raise --memory-limit$"):
        fitted({"algorithm": "dqn", "replay.capacity": 10_000_000}, 2 * GB)


def test_the_limit_bounds_what_is_free():
    assert memory.room(CPU, 0.5) == (GB // 2, GB // 2)
    free, total = memory.room(CPU)
    assert 0 < free <= total


def test_a_run_is_trained_within_the_limit_and_resumed_with_its_sizes(market, small, new_run):
    config = small({"algorithm": "dqn", "train.memory_limit_gb": 0.5, "episodes.count": 20_000, "train.steps": 1, "dqn.updates": 1, "dqn.batch": 16})
    trainer = building.build(config, market, warn=(said := []).append)
    assert trainer.collector.episodes < 20_000 and "episodes instead of 20000" in said[0]
    assert building.needs(config, market).startswith("0.")
    sizes = building.sizes_of(trainer)
    again = building.build(settings.replace(config, {"train.memory_limit_gb": 1.0}), market, sizes=sizes)
    assert building.sizes_of(again) == sizes, "not those that would fit now"


def test_updates_do_not_grow_memory(market, small):
    config = small({"algorithm": "dqn", "dqn.hidden": (16, 16), "dqn.head": 8, "dqn.batch": 32, "replay.capacity": 500, "dqn.n_step": 3})
    trainer = Dqn(config, BatchedCollector(market, config), market.regime)
    for _ in range(3):
        trainer.epoch()

    def objects():
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor | np.ndarray) for thing in gc.get_objects()), kept_bytes(trainer)

    before = objects()
    trainer.learner.updates(200)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trainer.learner.updates(400)
    assert objects() == before
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident < 8 * 1024, "KB"
