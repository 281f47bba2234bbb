"""What counts as a look at the test range: whatever shows something new of it, and nothing else."""

import json
import shutil

import pytest
import torch

from numba_rl import settings
from numba_rl.config import Config
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.data.write import write_bars
from numba_rl.evaluate.session import evaluate_run, report_run
from numba_rl.rundir import RunDir, read_meta
from numba_rl.trainer import checkpoint, session

TINY = {
    "data.bars_per_year": 525_600.0, "ppo.actor": (8,), "ppo.critic": (8,), "ppo.epochs": 1, "ppo.minibatches": 1, "episodes.count": 4,
    "episodes.launch": 32, "episodes.length": 64, "train.steps": 256, "train.tensorboard": False, "train.device": "cpu", "train.threads": 1,
    "evaluate.bootstrap": 50,
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The directory of a run that nobody has judged."""
    folder = tmp_path_factory.mktemp("looks")
    write_bars(folder / "bars.csv", generate("mean_reverting", 900, 5).bars)
    config = settings.replace(Config(), TINY | {"data.path": str(folder / "bars.csv")})
    with RunDir.create(folder / "run", config) as found:
        session.train(config, found, load_market(config))
    return folder / "run"


@pytest.fixture
def run(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    with RunDir.open(tmp_path / "run") as found:
        yield found


def looks(run, words=(), **options):
    """How many looks are counted after an evaluation with further settings."""
    config = settings.replace(run.config(), dict(words)) if words else None
    found = evaluate_run(run, config=config, **options)
    noted = json.loads((run.evaluation / "metrics.json").read_text())["test_looks"]
    assert found.looks == noted == read_meta(run.path)["test_looks"]
    return noted


def test_the_same_again_is_no_look(run):
    assert [looks(run), looks(run), looks(run)] == [1, 1, 1]
    assert looks(run, {"evaluate.bootstrap": 60, "evaluate.trials": 7, "evaluate.confidence": 0.9}) == 1  # other words on the same account
    assert looks(run, {"evaluate.temperature": 0.7}) == 1  # of no meaning to a greedy policy
    assert looks(run, costs=(1.0,)) == 1  # its own costs
    assert "looked at" not in report_run(run, evaluate_run(run)).read_text()


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ({"market.taker_bps": 8.0}, {}),
        ({"evaluate.policy": "softmax"}, {}),
        ({}, {"costs": (0.0, 2.0)}),
        ({"evaluate.test": "40"}, {"walk_forward": True}),
    ],
)
def test_what_is_new_is_a_look(run, words, options):
    assert looks(run) == 1
    assert looks(run, words, **options) == 2
    assert looks(run, words, **options) == 2 and looks(run) == 2
    assert "The test range of this run was looked at 2 times" in report_run(run, evaluate_run(run)).read_text()


def test_parts_of_what_was_seen_are_no_look(run):
    assert looks(run, {"evaluate.test": "40"}, walk_forward=True, costs=(0.0, 2.0)) == 1
    assert looks(run) == looks(run, costs=(2.0,)) == looks(run, {"evaluate.test": "40"}, walk_forward=True) == 1
    assert looks(run, costs=(4.0,)) == looks(run, costs=(4.0, 0.0)) == 2
    assert looks(run, {"evaluate.test": "50"}, walk_forward=True) == 3
    assert looks(run, {"evaluate.policy": "softmax", "evaluate.temperature": 0.7}) == 4
    assert looks(run, {"evaluate.policy": "softmax", "evaluate.temperature": 0.8}) == 5


def test_other_weights_are_a_look_under_the_same_name(run):
    assert looks(run) == looks(run, checkpoint="latest") == 1  # the same weights by two names
    path = run.checkpoints / "final.safetensors"
    saved = checkpoint.load(path)
    moved = {name: weight + 0.01 if name == "policy_output.bias" else weight for name, weight in saved.tensors.items()}
    assert not all(torch.equal(moved[name], saved.tensors[name]) for name in moved)
    checkpoint.save(path, moved, saved.metadata)
    assert looks(run, checkpoint="final") == 2


def test_a_look_of_a_run_that_noted_none_is_counted(run):
    """Runs of an earlier version know how often they were looked at, but not what was seen."""
    run.update(test_looks=3)
    assert [looks(run), looks(run)] == [4, 4]


def test_rltrain_report_after_rltrain_evaluate_is_no_look(run, rltrain):
    run.close()
    for command in ("evaluate", "report", "report"):
        done = rltrain(command, run.path, timeout=300)
        assert done.returncode == 0, done.stderr
    assert read_meta(run.path)["test_looks"] == 1
    assert "looked at" not in (run.path / "report.html").read_text()
