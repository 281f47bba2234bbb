"""F-01: a resumed run equals one without a break, in processes of their own. F-03: checkpoints execute nothing."""

import shutil
from pathlib import Path

import pytest
import torch

from numba_rl.errors import CheckpointError
from numba_rl.trainer import checkpoint

HERE = Path(__file__).parent
BASE = HERE / "F-01" / "base.csv"
PATIENCE = 600  # seconds for a process: the first one on a machine compiles
UPDATES, STEPS = 40, 8 * 16  # an update a launch: one pass, one minibatch
SETTINGS = {
    "episodes.count": 8, "episodes.launch": 16, "episodes.length": 100, "ppo.epochs": 1, "ppo.minibatches": 1, "reward.curiosity": 1,
    "reward.shaping": "ema", "train.tensorboard": "false", "train.checkpoint_every": 10,
    "ppo.lr_schedule": "constant",  # the first half is trained towards another last step
}  # fmt: skip
LINE = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]


def done(result):
    assert result.returncode == 0, result.stdout + result.stderr


def test_f01_a_resumed_run_equals_one_without_a_break(rltrain, tmp_path):
    data = shutil.copy(BASE, tmp_path / "base.csv")
    train = ("train", "ppo", "--data", data, *LINE)
    done(rltrain(*train, "--out", tmp_path / "x", "--steps", UPDATES * STEPS, timeout=PATIENCE))
    done(rltrain(*train, "--out", tmp_path / "y", "--steps", UPDATES // 2 * STEPS, timeout=PATIENCE))
    half = checkpoint.load(tmp_path / "y" / "checkpoints" / "latest.safetensors")
    done(rltrain("resume", tmp_path / "y", "--steps", UPDATES * STEPS, timeout=PATIENCE))
    x, y = (checkpoint.load(tmp_path / name / "checkpoints" / "final.safetensors") for name in "xy")
    assert x.tensors.keys() == y.tensors.keys()
    different = [name for name in x.tensors if not torch.equal(x.tensors[name], y.tensors[name])]
    assert different == []
    assert (x.metadata["steps"], x.metadata["epochs"], x.metadata["best"]) == tuple(y.metadata[name] for name in ("steps", "epochs", "best"))
    assert int(y.tensors["optimizer/step"]) == 2 * int(half.tensors["optimizer/step"]) == UPDATES
    moved = [name for name in half.tensors if not torch.equal(half.tensors[name], y.tensors[name])]
    assert {"policy_output.weight", "optimizer/exp_avg_sq", "collector/portfolio", "collector/clock", "collector/shaping"} <= set(moved)

    lines = Path(data).read_text().splitlines(keepends=True)
    Path(data).write_text("".join(lines[:-1]))
    changed = rltrain("resume", tmp_path / "y", "--steps", 2 * UPDATES * STEPS, timeout=PATIENCE)
    assert changed.returncode == 2
    assert "the bars of" in changed.stderr
    assert len(changed.stderr.strip().splitlines()) == 1


PICKLES = ("unsafe_plain_pickle.pt", "unsafe_zip.pt")


@pytest.mark.parametrize("name", PICKLES)
@pytest.mark.parametrize("load", [checkpoint.load, checkpoint.load_policy])
def test_f03_a_pickle_is_refused_and_not_executed(name, load, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "latest.safetensors"
    shutil.copy(HERE / "F-03" / name, path)
    with pytest.raises(CheckpointError, match="a pickle .*which could run code when loaded; refused"):
        load(path)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_f03_the_pickles_of_the_case_are_dangerous(tmp_path, monkeypatch):
    """Otherwise the test above would prove nothing."""
    monkeypatch.chdir(tmp_path)
    torch.load(HERE / "F-03" / PICKLES[1], weights_only=False)
    assert (tmp_path / "PICKLE_WAS_EXECUTED.txt").exists()
