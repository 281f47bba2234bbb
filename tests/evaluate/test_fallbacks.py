"""A GPU that was to be used and was not: what an evaluation and a report say of it."""

import pytest
import torch

from numba_rl import settings
from numba_rl.config import Config
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.data.write import write_bars
from numba_rl.evaluate import player
from numba_rl.evaluate.session import evaluate_run, report_run
from numba_rl.evaluate.validation import validator
from numba_rl.rundir import RunDir, fallbacks
from numba_rl.trainer import session

TINY = {
    "data.bars_per_year": 525_600.0, "ppo.actor": (8,), "ppo.critic": (8,), "ppo.epochs": 1, "ppo.minibatches": 1, "episodes.count": 4,
    "episodes.launch": 32, "episodes.length": 64, "train.steps": 256, "train.validate_every": 1, "train.tensorboard": False,
    "train.threads": 1, "evaluate.bootstrap": 50, "evaluate.test": "40",
}  # fmt: skip


def broken(*arguments):
    raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 20 GiB")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run whose training was to use the GPU for validation, and could not."""
    data = tmp_path / "bars.csv"
    write_bars(data, generate("mean_reverting", 900, 5).bars)
    config = settings.replace(Config(), TINY | {"data.path": str(data)})
    monkeypatch.setattr(player, "usable", lambda: True)
    monkeypatch.setattr(player, "lay_out", broken)
    market = load_market(config)
    with RunDir.create(tmp_path / "run", config) as found:
        session.train(config, found, market, validate=validator(market, config, found.fall_back))
        yield found


def test_the_report_says_what_training_did_without(run):
    [line] = fallbacks(run.path)
    assert line.startswith("the GPU could not play the validation range (CUDA out of memory. Tried to allocate 20 GiB); ")
    assert "torch.OutOfMemoryError: CUDA out of memory." in (run.path / "log.txt").read_text()
    page = report_run(run, evaluate_run(run)).read_text()
    assert page.count("Training did without the GPU, at least for a part: the GPU could not play the validation range (CUDA out") == 1
    assert "windows" not in page.partition("</header>")[0]


def test_an_evaluation_without_the_gpu_says_so_and_changes_nothing_of_the_training_s(run, monkeypatch):
    before = fallbacks(run.path)
    found = evaluate_run(run, walk_forward=True)
    [line] = found.warnings
    assert line.startswith("the GPU could not play ") and "windows (CUDA out of memory. Tried" in line
    assert f"warning: {line.partition('; log.txt')[0]}" in (run.path / "log.txt").read_text()
    assert line in report_run(run, found).read_text().partition("</header>")[0]
    assert fallbacks(run.path) == before
    monkeypatch.setattr(player, "usable", lambda: False)
    assert evaluate_run(run, walk_forward=True).warnings == ()
