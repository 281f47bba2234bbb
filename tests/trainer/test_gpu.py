"""The trainer with CUDA tensors: the same figures as on the CPU path at first, exact resumes, checkpoints that travel."""

import pytest
import torch

from numba_rl import settings
from numba_rl.bench import waits
from numba_rl.collect.batched import BatchedCollector
from numba_rl.config import Config
from numba_rl.trainer import building, checkpoint, session
from numba_rl.trainer.ppo import Ppo

pytestmark = pytest.mark.gpu

ON_GPU = {
    "train.device": "cuda", "train.collector": "batched", "train.precision": "float32", "episodes.count": 32, "episodes.launch": 32,
    "reward.curiosity": 1.0, "episodes.length": 20, "train.steps": 6 * 1024,
    "ppo.lr_schedule": "constant",
}  # fmt: skip


def test_advantages_and_first_losses_are_those_of_the_cpu_path(market, small):
    """Played actions are given, so that both devices see the same rollout."""
    config = small(ON_GPU)
    actions = torch.randint(0, 45, (32, 32), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
    found = []
    for device in ("cpu", "cuda"):
        ppo = Ppo(config, BatchedCollector(market, config, device=device))
        rollout = ppo.collector.collect(ppo._act, actions=actions)
        batch, values = ppo._batch(rollout, ppo._rewards(rollout))
        ppo._update(batch)
        found.append([tensor.cpu().float() for tensor in (*batch, values, ppo.order, *ppo.networks().values())])
    for cpu, gpu in zip(*found, strict=True):
        torch.testing.assert_close(gpu, cpu, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("precision", ["float32", "auto", "bf16"])
def test_a_run_on_a_gpu_resumes_bit_for_bit(market, small, new_run, precision):
    config = small(ON_GPU | {"train.precision": precision})
    straight, broken = new_run(config, "straight"), new_run(config, "broken")
    session.train(config, straight, market)
    half = small(ON_GPU | {"train.precision": precision, "train.steps": 3 * 1024})
    assert session.train(half, broken, market).steps == 3 * 1024
    assert session.train(config, broken, market, resume=True).steps == 6 * 1024
    assert broken.meta()["device"] == "cuda"
    one, other = (checkpoint.load(run.checkpoints / "final.safetensors").tensors for run in (straight, broken))
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def test_a_checkpoint_goes_from_gpu_to_cpu_and_back(market, small, new_run):
    on_gpu, on_cpu = small(ON_GPU), small(ON_GPU | {"train.device": "cpu", "train.steps": 9 * 1024})
    run = new_run(on_gpu)
    session.train(on_gpu, run, market)
    policy = checkpoint.load_policy(run.checkpoints / "final.safetensors")
    assert policy(torch.zeros(2, 54)).device.type == "cpu"
    assert session.train(on_cpu, run, market, resume=True).steps == 9 * 1024
    assert session.train(small(ON_GPU | {"train.steps": 10 * 1024}), run, market, resume=True).steps == 10 * 1024
    assert run.meta()["device"] == "cuda"


def test_a_launch_that_fails_gives_the_cpu_path(market, small, new_run, monkeypatch, caplog):
    config = small(ON_GPU)
    real = Ppo._shuffle

    def shuffle(self):
        if self.device.type == "cuda" and self.epochs == 2:
            torch.empty(2**50, device="cuda")  # out of memory
        real(self)

    monkeypatch.setattr(Ppo, "_shuffle", shuffle)
    run = new_run(config)
    assert session.train(config, run, market).steps == 6 * 1024
    assert run.meta()["device"] == "cpu"
    assert "the GPU failed in epoch 3" in caplog.text


def test_an_update_does_not_wait_for_the_gpu(market, small):
    config = small(ON_GPU)
    ppo = Ppo(config, BatchedCollector(market, config, device="cuda"))
    ppo.epoch()
    with waits.refused():
        ppo.epoch()
    assert ppo.statistics()["losses/updates"] == 12


@pytest.mark.parametrize("kind", ["fused ppo", "dqn", "dqn by autograd"])
def test_a_captured_epoch_neither_waits_nor_copies(market, kind):
    changes = {
        "fused ppo": {}, "dqn": {"algorithm": "dqn", "replay.capacity": 20_000},
        "dqn by autograd": {"algorithm": "dqn", "replay.capacity": 20_000, "dqn.variant": "noisy"},
    }[kind]  # fmt: skip
    trainer = building.build(settings.replace(Config(), {"episodes.count": 32, "episodes.launch": 64} | changes), market)
    for _ in range(3):  # loads, captures, replays
        trainer.epoch()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        torch.cuda.set_sync_debug_mode("error")
        try:
            trainer.epoch()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
    called = [event.name for event in profile.events()]
    waits = [name for name in called if "Synchronize" in name]
    assert set(waits) <= {"cudaDeviceSynchronize"} and len(waits) <= 2, "the one above, and the profiler's own"
    assert not [name for name in called if name in ("cudaMemcpy", "cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2", "cudaEventSynchronize")]
    assert not [name for name in called if "DtoH" in name and "Pageable" in name]
    assert trainer.guard.read().updates > 0 and trainer.statistics()["losses/skipped"] == 0
