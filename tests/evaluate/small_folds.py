"""Settings of a walk-forward that takes moments, and what its trainings left behind, to compare."""

import torch

from numba_rl import settings
from numba_rl.config import Config
from numba_rl.rundir import read_meta
from numba_rl.trainer import checkpoint

BASE = {
    "data.bars_per_year": 525_600.0, "evaluate.train": "800", "evaluate.test": "300", "evaluate.purge": "20", "evaluate.embargo": "10",
    "ppo.actor": (8,), "ppo.critic": (8,), "ppo.epochs": 1, "ppo.minibatches": 1, "episodes.count": 4, "episodes.launch": 32,
    "episodes.length": 64, "train.steps": 512, "train.validate_every": 1, "train.tensorboard": False, "train.device": "cpu",
    "evaluate.bootstrap": 50, "train.threads": 1,
}  # fmt: skip


def settings_with(**changes) -> Config:
    return settings.replace(Config(), BASE | {key.replace("__", "."): value for key, value in changes.items()})


def trained(path):
    """Everything that a training left: the tensors of its checkpoints, what their headers say but for the clock, and its choice."""
    out = {}
    for name in ("best", "latest", "final"):
        found = checkpoint.load(path / "checkpoints" / f"{name}.safetensors")
        out[name] = (found.tensors, {key: value for key, value in found.metadata.items() if key != "seconds"})
    note = read_meta(path)["fold"]
    return out, note


def assert_same_trainings(one, other):
    """Two directories of trainings hold the same weights, optimizer, episodes and choice of checkpoint, bit for bit."""
    (first, note), (second, same) = trained(one), trained(other)
    assert note == same
    for name in first:
        assert first[name][0].keys() == second[name][0].keys()
        assert all(torch.equal(first[name][0][key], second[name][0][key]) for key in first[name][0]), name
        headers = [dict(header, config=None) for _, header in (first[name], second[name])]  # seeds and jobs may differ there
        assert headers[0] == headers[1]
