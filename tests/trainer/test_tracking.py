"""metrics.csv: a row an epoch, appended to by a resume, whole after a kill; TensorBoard holds the same."""

import csv
import math
from pathlib import Path

import pytest

from numba_rl.errors import UserError
from numba_rl.trainer.tracking import Tracker

NAMES = ("charts/SPS", "losses/policy_loss")


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_an_epoch_with_gaps_left_empty(tmp_path):
    path = tmp_path / "metrics.csv"
    with Tracker(path, None, NAMES) as tracker:
        tracker.add({"charts/SPS": 1234.5, "losses/policy_loss": math.nan}, step=64, epoch=1, seconds=0.25)
        assert len(rows(path)) == 1, "on disk at once"
        tracker.add({"losses/policy_loss": -1e-7, "unknown/figure": 3.0}, step=128, epoch=2, seconds=0.5)
    assert rows(path) == [
        {"step": "64", "epoch": "1", "segment": "0", "seconds": "0.250", "charts/SPS": "1234.5", "losses/policy_loss": ""},
        {"step": "128", "epoch": "2", "segment": "0", "seconds": "0.500", "charts/SPS": "", "losses/policy_loss": "-1e-07"},
    ]


def test_a_resume_appends_with_its_mark_and_after_whole_rows(tmp_path):
    path = tmp_path / "metrics.csv"
    with Tracker(path, None, NAMES) as tracker:
        tracker.add({"charts/SPS": 1.0}, step=64, epoch=1, seconds=0.1)
    with path.open("a") as file:
        file.write("128,2,0,0.2,1.")  # killed while writing
    with Tracker(path, None, (*NAMES, "new/figure"), segment=1) as tracker:
        tracker.add({"charts/SPS": 2.0, "new/figure": 5.0}, step=128, epoch=2, seconds=0.2)
    found = rows(path)
    assert [(row["step"], row["segment"], row["charts/SPS"]) for row in found] == [("64", "0", "1"), ("128", "1", "2")]
    assert "new/figure" not in found[1]


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(UserError, match="cannot be written"):
        Tracker(tmp_path / "none" / "metrics.csv", None, NAMES)


def test_a_full_disk_is_one_line():
    with pytest.raises(UserError, match="/dev/full: cannot be written: No space left on device"):
        Tracker(Path("/dev/full"), None, NAMES)


def test_event_files_hold_the_same_under_the_same_names(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Tracker(tmp_path / "metrics.csv", tmp_path / "board", NAMES) as tracker:
        for epoch in (1, 2):
            tracker.add({"charts/SPS": 10.0 * epoch, "losses/policy_loss": math.nan}, step=64 * epoch, epoch=epoch, seconds=0.0)
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert events.Tags()["scalars"] == ["charts/SPS"]
    assert [(event.step, event.value) for event in events.Scalars("charts/SPS")] == [(64, 10.0), (128, 20.0)]
