"""How trainings of a walk-forward are shown: plain lines elsewhere, a bar for each on a terminal, failures on standard error."""

import io

import pytest
from rich.console import Console

from numba_rl import settings
from numba_rl.config import Config
from numba_rl.data.windows import Fold, Range
from numba_rl.evaluate.fold_division import Division
from numba_rl.evaluate.fold_jobs import Job, Outcome
from numba_rl.trainer.session import Result
from rltrain import folds_progress, progress
from rltrain.folds_progress import FoldsProgress

FOLD = Fold(Range(0, 80), Range(80, 95), Range(95, 100), Range(100, 120))
ONE, TWO, ELEVEN = Job(1, FOLD, 0), Job(2, FOLD, 0), Job(11, FOLD, 3)
CONFIG = settings.replace(Config(), {"train.steps": 1000})


@pytest.fixture
def clock(monkeypatch):
    """The seconds that have gone by, to be set."""
    now = [100.0]
    monkeypatch.setattr(folds_progress.time, "monotonic", lambda: now[0])
    return now


def display(total, *, terminal=False):
    text = io.StringIO()
    return FoldsProgress(CONFIG, total, Console(file=text, force_terminal=terminal, color_system=None, width=100)), text


def done(steps, seconds, best=None):
    return Outcome("finished", result=Result(steps, steps // 64, seconds, "finished", best))


def figures(step, speed=50.0):
    return {"step": step, "steps_per_second": speed}


def test_what_is_to_be_done_is_said_first(clock, capsys):
    shown, text = display(6)
    with shown:
        shown.starts(4, Division(1, None))
    assert text.getvalue().splitlines() == ["4 of 6 trainings to do, 1,000 steps each", progress.PREPARING]
    assert capsys.readouterr().err == ""


def test_the_division_and_its_warning_are_said(clock, capsys):
    for threads, words in ((2, "3 side by side with 2 threads each"), (1, "3 side by side with 1 thread each")):
        shown, text = display(6)
        shown.starts(6, Division(3, threads, "little memory"))
        assert text.getvalue().splitlines()[0] == f"6 of 6 trainings to do, 1,000 steps each, {words}"
        assert capsys.readouterr().err == "warning: little memory\n"


def test_nothing_is_prepared_where_nothing_is_left(clock):
    shown, text = display(6)
    shown.starts(0, Division(1, None))
    assert text.getvalue().splitlines() == ["0 of 6 trainings to do, 1,000 steps each"]


def test_lines_come_every_ten_seconds_for_all_that_run(clock):
    shown, text = display(3)
    with shown:
        shown.starts(3, Division(2, 1))
        shown.begun(ONE)
        shown.begun(TWO)
        for second, job, step in ((5, ONE, 100), (9.9, TWO, 50), (10, ONE, 200), (15, TWO, 100), (20, TWO, 150)):
            clock[0] = 100.0 + second
            shown.progress(job, figures(step))
    assert text.getvalue().splitlines()[2:] == [
        "fold 1, seed 0:  20%  200 steps, 50 steps/s, 0:16 left",
        "fold 2, seed 0:   5%  50 steps, 50 steps/s, 0:19 left",
        "fold 1, seed 0:  20%  200 steps, 50 steps/s, 0:16 left",
        "fold 2, seed 0:  15%  150 steps, 50 steps/s, 0:17 left",
    ]


def test_how_each_ended_and_what_is_left(clock, capsys):
    """Four of six are left; at the speed so far the rest is told, running trainings counted by their share."""
    shown, text = display(6)
    shown.starts(4, Division(2, 1))
    shown.begun(ONE)
    shown.begun(TWO)
    clock[0] = 104.0
    shown.progress(TWO, figures(500))
    clock[0] = 106.0
    shown.ended(ONE, done(1000, 6.4, 0.01234))
    shown.begun(ELEVEN)
    clock[0] = 112.0
    shown.ended(TWO, done(1024, 12.0))
    shown.ended(ELEVEN, Outcome("failed", "the rewards are not finite"))
    shown.begun(Job(4, FOLD, 0))
    shown.ended(Job(4, FOLD, 0), Outcome("interrupted"))
    assert text.getvalue().splitlines()[2:] == [
        "fold 1, seed 0: 1,000 steps in 0:06, best validation log return +0.0123; 3 of 6 done, about 0:10 left",  # 6 s for 1.5 of 4
        "fold 2, seed 0: 1,024 steps in 0:12; 4 of 6 done, about 0:12 left",  # 12 s for 2 of 4
    ]
    assert capsys.readouterr().err == "error: fold 11, seed 3: the rewards are not finite\n"  # said once, and an interruption not at all


def test_the_last_one_leaves_nothing(clock):
    shown, text = display(1)
    shown.starts(1, Division(1, None))
    shown.begun(ONE)
    clock[0] = 130.0
    shown.ended(ONE, done(1000, 30.0, -0.5))
    assert text.getvalue().splitlines()[-1] == "fold 1, seed 0: 1,000 steps in 0:30, best validation log return -0.5000; 1 of 1 done"


def test_a_failure_takes_its_part_of_what_is_left(clock):
    """A training that failed is not waited for any longer."""
    shown, text = display(2)
    shown.starts(2, Division(1, None))
    shown.begun(ONE)
    clock[0] = 110.0
    shown.ended(ONE, Outcome("failed", "no"))
    shown.begun(TWO)
    clock[0] = 130.0
    shown.ended(TWO, done(1000, 20.0))
    assert text.getvalue().splitlines()[-1] == "fold 2, seed 0: 1,000 steps in 0:20; 1 of 2 done, 1 failed"


def test_a_terminal_shows_a_bar_for_each_that_runs(clock):
    shown, text = display(12, terminal=True)
    with shown:
        shown.starts(12, Division(2, 1))
        shown.begun(TWO)
        shown.begun(ELEVEN)
        clock[0] = 160.0
        shown.progress(ELEVEN, figures(500, 12_345.0))
        shown._live.refresh()
        both = text.getvalue()
        shown.ended(ELEVEN, done(1000, 60.0, 0.5))
        text.truncate(0)
        shown._live.refresh()
    assert "fold 2, seed 0    0% " in both  # names in one column
    assert "fold 11, seed 3  50% ━━━━━━━━━━" in both and "500 steps, 12,345 steps/s, 0:00 left" in both
    assert "0 of 12 done, about 23:00 left" in both  # half a training a minute, 11.5 to go
    assert "fold 11" not in text.getvalue() and "fold 2, seed 0" in text.getvalue() and "1 of 12 done" in text.getvalue()
