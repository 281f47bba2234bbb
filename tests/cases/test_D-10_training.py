"""D-10, the training's part: with another test range the same statistics, choice of checkpoint, early stop and weights, bit for bit."""

from pathlib import Path

import numpy as np
import pytest
import torch

from numba_rl import settings
from numba_rl.config import Config
from numba_rl.data.market import load_market
from numba_rl.evaluate.fold_jobs import jobs
from numba_rl.evaluate.fold_training import Trained, train_folds
from numba_rl.evaluate.folds import fitting_ranges, plan
from numba_rl.evaluate.session import evaluate_run
from numba_rl.evaluate.validation import validator
from numba_rl.rundir import RunDir
from numba_rl.trainer import checkpoint, session

CASE = Path(__file__).parent / "D-10"
NAMES = ("best", "latest", "final")
TINY = {
    "data.split": (2 / 3, 1 / 6, 1 / 6), "ppo.actor": (8,), "ppo.critic": (8,), "ppo.epochs": 1, "ppo.minibatches": 1, "dqn.hidden": (8,),
    "dqn.head": 8, "dqn.batch": 32, "replay.capacity": 500, "episodes.count": 4, "episodes.launch": 16, "episodes.length": 64,
    "train.steps": 20_000, "train.validate_every": 1, "train.tensorboard": False, "train.device": "cpu", "train.threads": 1,
    "guard.plateau_patience": 6, "evaluate.bootstrap": 50,
}  # fmt: skip
FIGURES = ("steps", "epochs", "best", "best_step", "stale", "scaling")  # of a checkpoint, beside its settings


def config_of(file, **changes):
    path = str(CASE / f"data_{file}.csv")
    return settings.replace(Config(), TINY | {"data.path": path} | {name.replace("__", "."): value for name, value in changes.items()})


@pytest.fixture(scope="module", params=["ppo", "dqn"])
def runs(request, tmp_path_factory):
    """The case's two files, trained with the same seed: [(run, result)]."""
    found = []
    for file in "ab":
        config = config_of(file, algorithm=request.param)
        market = load_market(config)
        with RunDir.create(tmp_path_factory.mktemp(file) / "run", config) as run:
            run.update(bars_digest=market.bars_digest)
            found.append((run, session.train(config, run, market, validate=validator(market, config))))
    return found


def test_weights_statistics_and_early_stop_are_identical(runs):
    (one, first), (other, second) = runs
    assert first.reason == second.reason == "plateau"  # stopped early, by the validation range
    assert (first.steps, first.epochs, first.best) == (second.steps, second.epochs, second.best)
    for name in NAMES:
        a, b = (checkpoint.load(run.checkpoints / f"{name}.safetensors") for run in (one, other))
        assert a.tensors.keys() == b.tensors.keys()
        assert [key for key in a.tensors if not torch.equal(a.tensors[key], b.tensors[key])] == []
        assert [a.metadata[key] for key in FIGURES] == [b.metadata[key] for key in FIGURES]
        assert set(a.metadata["scaling"]) >= {"mean", "std", "clip", "names"}
        differing = {key for key in a.metadata if a.metadata[key] != b.metadata[key]}
        assert differing <= {"bars_digest", "features_digest", "source", "seconds", "config"}  # of the whole file, and its path
        assert settings.replace(a.config, {"data.path": "same"}) == settings.replace(b.config, {"data.path": "same"})


def test_only_the_tests_results_differ(runs):
    found = [evaluate_run(run) for run, _ in runs]
    a, b = (evaluation.ranges for evaluation in found)
    assert a["train"] == b["train"] and a["validation"] == b["validation"]
    assert not np.array_equal(found[0].agent.close, found[1].agent.close)
    assert a["test"] != b["test"]


def test_a_folds_statistics_and_weights_depend_on_its_training_rows_alone(tmp_path):
    """Trained through the walk-forward, with another file behind each fold's training, and saved with the fold's checkpoint."""
    changes = {"evaluate__train": "250", "evaluate__test": "80", "evaluate__purge": "10", "train__steps": 256}
    trainings = []
    for file in "ab":
        config = config_of(file, **changes)
        market = load_market(config)
        folds = plan(market, config)
        with RunDir.create(tmp_path / file, config) as run:
            assert train_folds(run, config, market, folds) == Trained()
        trainings.append((config, market, folds, [job.path(run) for job in jobs(folds, config)]))
    (_, _, folds, ours), (_, other, same_folds, theirs) = trainings
    assert folds == same_folds and len(folds) >= 4
    same = []
    for fold, mine, yours in zip(folds, ours, theirs, strict=True):
        saved = [checkpoint.load(path / "checkpoints" / "final.safetensors") for path in (mine, yours)]
        for (config, market, _, _), found in zip(trainings, saved, strict=True):
            fit, _ = fitting_ranges(fold, config)
            assert found.metadata["scaling"] == market.fit_scaling(fit).to_dict()  # the fold's own, not the file's
            assert found.metadata["scaling"] != market.scaling.to_dict()
        alike = [torch.equal(saved[0].tensors[key], saved[1].tensors[key]) for key in saved[0].tensors]
        same.append(all(alike) and saved[0].metadata["scaling"] == saved[1].metadata["scaling"])
    assert same == [fold.train.stop <= 750 - other.warmup for fold in folds] and True in same and False in same
