"""What can go wrong goes wrong, in real processes: kills, a full disk, broken numbers. Nothing is lost, and each says so in a line.

Elsewhere: signals (cases/test_F-05.py), two runs on one directory (cases/test_F-06.py, test_rundir.py), damaged, foreign and
unsafe checkpoints (trainer/test_checkpoint.py), features that are not finite (data/test_features_own.py).
"""

import random

import child
import pytest
import torch

from numba_rl import rundir, settings
from numba_rl.config import Config
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.gpu import SIMULATED
from numba_rl.trainer import building, checkpoint


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "kills"), [("ppo", 6), ("dqn", 4)])
def test_a_run_that_is_killed_again_and_again_equals_one_without_a_break(tmp_path, algorithm, kills):
    changes = {"algorithm": algorithm, "train.steps": 80 * child.EPOCH}
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    whole = child.start(straight, changes)
    moments, cut_off, epochs = random.Random(3), 0, [0]
    for number in range(kills):
        process = child.start(broken, changes, resume=number > 0)
        cut_off += child.kill(process, broken, saving=number % 2 == 1, random=moments)
        assert rundir.status(broken) == "killed"
        epochs.append(child.saved_epochs(broken))
    assert epochs == sorted(epochs) and epochs[-1] > 0
    assert cut_off > 0, "no kill came while a checkpoint was written"
    assert child.finish(child.start(broken, changes, resume=True)) == 0
    assert child.finish(whole) == 0
    assert child.same_training(straight, broken)
    assert not [path for path in broken.rglob(".*.tmp")], "what the kills left is removed"


@pytest.mark.parametrize(
    ("limit", "every", "said", "epochs"),
    [(8_000, 1, "latest.safetensors: the checkpoint cannot be written", 1), (900, 5, "metrics.csv: cannot be written", 0)],
)
def test_a_disk_without_room_costs_nothing_that_was_saved(tmp_path, limit, every, said, epochs):
    """Files may not grow past `limit` bytes, which the kernel refuses as it refuses them on a full disk."""
    changes = {"train.steps": 12 * child.EPOCH, "train.checkpoint_every": every}
    run, straight = tmp_path / "run", tmp_path / "straight"
    whole = child.start(straight, changes)
    assert child.finish(child.start(run, changes, limit=limit)) == 2
    error = child.error_of(run)
    assert said in error and "make room and resume" in error and "\n" not in error
    assert child.status(run)[0] == ("failed" if limit > 2_000 else "running"), "a file that fits is still written"
    assert rundir.status(run) in ("failed", "killed")
    assert child.saved_epochs(run) == epochs
    assert child.finish(child.start(run, changes, resume=True)) == 0
    assert child.finish(whole) == 0
    assert child.same_training(straight, run)


ARGUMENTS = "equity_before, equity_after, price_before, price_after, exposure_before, exposure_after, cost, drawdown, step"


@pytest.mark.slow
def test_a_users_reward_that_is_not_finite_ends_with_its_reason(tmp_path):
    """Its transitions lie in the replay; every batch that draws one is skipped, and the weights stay what they were."""
    path = tmp_path / "mine.py"
    path.write_text(f"import math\n\n\ndef reward({ARGUMENTS}):\n    return math.nan if step > 5 else 0.1 * exposure_after\n")
    run, changes = tmp_path / "run", {"algorithm": "dqn", "reward.function": f"{path}:reward", "guard.max_skipped": 10}
    assert child.finish(child.start(run, changes)) == 2
    assert "rewards are not finite" in child.error_of(run)
    assert "\n" not in child.error_of(run)
    assert child.status(run)[0] == "failed"
    tensors = checkpoint.load(run / "checkpoints" / "latest.safetensors").tensors
    assert all(tensor.isfinite().all() for name, tensor in tensors.items() if tensor.is_floating_point() and "/" not in name)


@pytest.mark.skipif(not SIMULATED and torch.cuda.is_available(), reason="a GPU would work")
def test_a_gpu_that_cannot_be_used_gives_the_cpu_path_and_says_so(monkeypatch):
    """The device is claimed to be there: everything that is then asked of it fails for real."""
    monkeypatch.setattr(building, "pick_device", lambda config, warn: torch.device("cuda"))
    config, said = settings.replace(Config(), child.SMALL), []
    trainer = building.build(config, load_market(config, generate("mean_reverting", 1200, 5).bars), fall_back=said.append)
    assert trainer.device.type == "cpu"
    assert len(said) == 1 and "\n" not in said[0]
    assert said[0].startswith("the GPU cannot be used (") and said[0].endswith("training goes on on the CPU path")
    trainer.epoch()
    assert trainer.steps == child.EPOCH


@pytest.mark.gpu
@pytest.mark.parametrize("fails", ["memory", "kernel"])
def test_out_of_memory_and_a_kernel_that_does_not_compile_give_the_cpu_path(monkeypatch, fails):
    """The card is really full; the kernel really goes to the compiler."""
    changes = {"train.device": "cuda", "train.collector": "batched", "episodes.count": 8}
    config, said, hold = settings.replace(Config(), child.SMALL | changes), [], None
    market = load_market(config, generate("mean_reverting", 1200, 5).bars)
    if fails == "memory":
        hold = torch.empty(max(torch.cuda.mem_get_info()[0] - (64 << 20), 0), dtype=torch.uint8, device="cuda")
        torch.cuda.set_per_process_memory_fraction(hold.numel() / torch.cuda.get_device_properties(0).total_memory)
    else:
        from numba_rl import gpu
        from numba_rl.collect import batched

        def broken(*arguments):
            return undefined_name + arguments[0]  # noqa: F821

        good = batched.steppers()
        monkeypatch.setattr(batched, "steppers", lambda base=None: good._replace(start_kernel=gpu.jit(broken)))
    try:
        trainer = building.build(config, market, fall_back=said.append)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        del hold
        torch.cuda.empty_cache()
    assert trainer.device.type == "cpu" and len(said) == 1 and "the GPU cannot be used (" in said[0]
    trainer.epoch()
