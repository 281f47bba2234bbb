"""Trainings side by side in processes: the numbers of one after the other, whatever interrupts them, and nobody left behind."""

import os
import signal
from dataclasses import replace

import pytest
from evaluate.small_folds import assert_same_trainings, settings_with

from numba_rl import settings
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.evaluate.fold_jobs import jobs, task_of
from numba_rl.evaluate.fold_training import Trained, Watch, train_folds
from numba_rl.evaluate.fold_workers import side_by_side
from numba_rl.evaluate.folds import plan
from numba_rl.rundir import RunDir, is_run, read_meta
from numba_rl.signals import StopRequest

TWO = {"evaluate.jobs": 2}


@pytest.fixture(scope="module")
def market():
    return load_market(settings_with(), generate("mean_reverting", 1900, 5).bars)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, market):
    """All trainings one after the other: (run, config, folds)."""
    config = settings_with()
    folds = plan(market, config)[:3]
    with RunDir.create(tmp_path_factory.mktemp("runs") / "alone", config) as run:
        assert train_folds(run, config, market, folds) == Trained()
        yield run, config, folds


class Notes(Watch):
    """What a walk-forward tells, in order; `act` is called with (job, figures)."""

    def __init__(self, act=lambda job, figures: None):
        self.act, self.running, self.most, self.division = act, [], 0, None

    def starts(self, left, division):
        self.division = division

    def begun(self, job):
        self.running.append(job)
        self.most = max(self.most, len(self.running))

    def progress(self, job, figures):
        self.act(job, figures)

    def ended(self, job, outcome):
        self.running.remove(job)


def gone(path):
    """Whether the process that worked on a run directory is no more. One that was stopped before it began to train left no number."""
    segments = read_meta(path)["segments"]
    if not segments:
        return True
    try:
        os.kill(segments[-1]["pid"], 0)
    except ProcessLookupError:
        return True
    return False


def test_stopped_and_resumed_side_by_side_all_is_as_one_after_the_other(tmp_path, market, alone):
    run, config, folds = alone
    config = settings.replace(config, TWO)
    stop = StopRequest()
    notes = Notes(lambda job, figures: stop.request())
    with RunDir.create(tmp_path / "wf", config) as again:
        trained = train_folds(again, config, market, folds, stop=stop, watch=notes)
        every = jobs(folds, config)
        assert (trained.signal, trained.failed) == ("SIGINT", {})
        assert notes.most == 2 and notes.division.threads == 1 and notes.running == []
        begun = [job for job in every if is_run(job.path(again))]
        assert all(gone(job.path(again)) for job in begun)
        assert train_folds(again, config, market, folds) == Trained()
        for job in every:
            assert_same_trainings(job.path(run), job.path(again))


class Fatal:
    """Kills the process that unpickles it."""

    def __reduce__(self):
        return signal.raise_signal, (signal.SIGKILL,)


def test_a_killed_process_and_a_failure_are_told_and_the_others_finish(tmp_path, market, alone):
    run, config, folds = alone
    outcomes = {}

    def ended(job, outcome):
        outcomes[job] = outcome
        return True

    with RunDir.create(tmp_path / "wf", config) as again:
        again.folds.mkdir()
        tasks = [task_of(job, again, config, market, 1) for job in jobs(folds, config)]
        first, second, third = (task.job for task in tasks)
        second.path(again).write_text("in the way")
        tasks[0] = replace(tasks[0], market=Fatal())
        side_by_side(iter(tasks), 2, StopRequest(), begun=lambda job: None, progress=lambda job, figures: None, ended=ended)
        assert outcomes[first].kind == outcomes[second].kind == "failed"
        assert "its process was killed by SIGKILL" in outcomes[first].words
        assert outcomes[second].words.endswith("is a file; choose another --out")
        assert outcomes[third].kind == "finished"
        assert_same_trainings(third.path(run), third.path(again))
