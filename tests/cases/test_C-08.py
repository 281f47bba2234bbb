"""C-08: CUDA graphs are captured after every kernel has run, give what uncaptured calls give, and read what changes from memory."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from numba_rl import gpu, rundir, settings
from numba_rl.collect.batched import BatchedCollector
from numba_rl.collect.fused import FusedCollector
from numba_rl.config import Config, PpoConfig
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.data.write import write_bars
from numba_rl.replay import PrioritizedReplay
from numba_rl.trainer import dqn as dqn_trainer
from numba_rl.trainer import fused_ppo
from numba_rl.trainer.dqn import Dqn
from numba_rl.trainer.fused_update import FusedUpdate

PPO = {"episodes.count": 64, "episodes.launch": 32}
DQN = PPO | {"algorithm": "dqn", "dqn.batch": 256, "dqn.updates": 20, "replay.capacity": 20_000}
CLIPPED = 4  # of kernels.ppo_loss's sums
CLOSE = {"rtol": 2e-2, "atol": 1e-3}  # of weights after 50 updates: bf16, should a product be added in another order


@pytest.fixture(scope="module")
def market():
    return load_market(Config(), generate("mean_reverting", 3000, 1).bars)


def fused(market):
    config = settings.replace(Config(), PPO)
    return fused_ppo.FusedPpo(config, FusedCollector(market, config))


def dqn(market, changes=None):
    config = settings.replace(Config(), DQN | (changes or {}))
    return Dqn(config, BatchedCollector(market, config, device="cuda"), market.regime)


def weights(trainer):
    return {name: tensor.clone() for name, tensor in trainer.networks().items()}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.skipif(not gpu.SIMULATED, reason="a tiny network in the simulator")
def test_an_update_reads_learning_rate_and_clip_from_memory():
    """Nothing but memory is changed between two calls, as between two replays."""
    random, samples = torch.Generator().manual_seed(0), 8
    actor, critic = ([nn.Linear(a, b) for a, b in pairwise(sizes)] for sizes in ((8, 8, 8, 6), (8, 8, 8, 1)))
    table, account = torch.randn(20, 5, generator=random), torch.rand(samples, 3, generator=random)
    bars, actions = (torch.randint(0, most, (samples,), generator=random, dtype=torch.int32) for most in (20, 6))
    advantages, returns = torch.randn(2, samples, generator=random)
    log_pi = torch.cat([table[bars.long()], account], 1)
    with torch.no_grad():
        for layer in actor[:-1]:
            log_pi = layer(log_pi).relu()
        log_pi = torch.log_softmax(actor[-1](log_pi), -1).gather(1, actions.long()[:, None])[:, 0]
    config = PpoConfig(actor=(8, 8), critic=(8, 8), epochs=1, minibatches=1)
    update = FusedUpdate(actor, critic, table, config, samples, seed=0, lanes=4, warps=1, groups=2)
    data = bars, account, actions, log_pi, advantages, returns
    before = update.weights.clone()
    update.adam_settings[0] = 0.0
    update.update(*data)
    assert torch.equal(update.weights, before) and update.sums.sum((0, 1))[CLIPPED] == 0
    update.adam_settings[0] = 1e-3
    update.loss_settings[0] = 1e-9
    update.update(*data)
    assert not torch.equal(update.weights, before) and update.sums.sum((0, 1))[CLIPPED] > 0


@pytest.mark.gpu
@pytest.mark.parametrize("words", [
    ("ppo",), ("ppo", "--collector", "batched"), ("dqn",), ("dqn", "--set", "dqn.variant=noisy"), ("dqn", "--set", "dqn.variant=iqn"),
    ("dqn", "--set", "replay.mode=rank"),
], ids=lambda words: "-".join(words).replace("--", ""))  # fmt: skip
def test_a_fresh_process_captures_without_a_fault(rltrain, tmp_path, words):
    write_bars(tmp_path / "bars.parquet", generate("mean_reverting", 3000, 1).bars)
    small = [word for name, value in {**DQN, "train.steps": 5 * 64 * 32, "train.tensorboard": "false"}.items() if name != "algorithm"
             for word in ("--set", f"{name}={value}")]  # fmt: skip
    done = rltrain("train", *words, "--data", "bars.parquet", "--out", "run", "--device", "cuda", *small, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "captur" not in done.stderr + log and "GPU failed" not in log and "cannot be used" not in log
    assert rundir.read_meta(tmp_path / "run")["device"] == "cuda"


@pytest.mark.gpu
def test_ppo_with_and_without_graphs(market):
    graphed, eager = fused(market), fused(market)
    for _ in range(4):  # 64 updates
        graphed.epoch()
        eager._warm = False
        eager.epoch()
    assert graphed._graphs and not eager._graphs
    one, other = weights(graphed), weights(eager)
    for name in one:
        torch.testing.assert_close(one[name], other[name], **CLOSE, msg=name)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["dueling", "branching"])
def test_dqn_with_and_without_graphs(market, monkeypatch, variant):
    found = []
    for captures in (True, False):
        monkeypatch.setattr(Dqn, "_captures", property(lambda self, captures=captures: captures))
        trainer = dqn(market, {"dqn.variant": variant})
        for _ in range(4):  # 60 updates or more
            trainer.epoch()
        assert bool(trainer._graphs) == captures
        found.append(weights(trainer))
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[1][name], **CLOSE, msg=name)


@pytest.mark.gpu
def test_replays_of_ppo_take_new_learning_rates_and_clips(market, monkeypatch):
    trainer = fused(market)
    for _ in range(3):
        trainer.epoch()
    before = weights(trainer)
    with monkeypatch.context() as patch:
        patch.setattr(fused_ppo, "learning_rate", lambda config, steps, total: 0.0)
        trainer.epoch()
    assert same(weights(trainer), before)
    trainer.update.loss_settings[0] = 1e-9
    trainer.epoch()
    assert not same(weights(trainer), before) and trainer.statistics()["losses/clipfrac"] > 0.5


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["dueling", "branching"])
def test_replays_of_dqn_take_a_new_learning_rate(market, monkeypatch, variant):
    trainer = dqn(market, {"dqn.variant": variant})
    for _ in range(3):
        trainer.epoch()
    before = weights(trainer)
    with monkeypatch.context() as patch:
        patch.setattr(dqn_trainer, "learning_rate", lambda config, steps, total: 0.0)
        trainer.epoch()
    assert same(weights(trainer), before)
    trainer.epoch()
    assert not same(weights(trainer), before)


@pytest.mark.gpu
def test_replays_move_beta_on():
    replay = PrioritizedReplay(256, 3, device="cuda", beta_start=0.0, beta_end=1.0, beta_steps=10)
    states, column = torch.randn(256, 3, device="cuda"), torch.zeros(256, device="cuda")
    replay.insert(states, states, column.int(), column, 1.0, None, 0.1 + torch.rand(256, device="cuda"))
    replay.prepare(64)
    batch, graph = replay.batch(64), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replay.sample(64)
    spreads = []
    for _ in range(12):
        graph.replay()
        spreads.append((1 - batch.weights.min()).item())
    assert spreads[0] == 0.0 and spreads[5] > 0.0 and spreads[-1] > spreads[3]


@pytest.mark.gpu
@pytest.mark.parametrize("make", [fused, dqn])
def test_other_allocations_between_replays_change_nothing(market, make):
    calm, disturbed = make(market), make(market)
    for epoch in range(6):
        calm.epoch()
        disturbed.epoch()
        if epoch >= 2:
            torch.cuda.empty_cache()
            scrap = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(50)]
            del scrap
    assert same(weights(calm), weights(disturbed))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="needs a second GPU")
def test_a_second_gpu_changes_nothing(market):
    trainer = fused(market)
    elsewhere = torch.ones(1000, device="cuda:1")
    for _ in range(3):
        trainer.epoch()
        elsewhere += 1
    assert trainer.statistics()["losses/skipped"] == 0 and elsewhere[0] == 4
    assert {tensor.device.index for tensor in trainer.networks().values()} == {torch.cuda.current_device()}
