"""F-06: a second run never overwrites the first and never empties a directory, from the command line and from Python alike.

Two processes that start together, and what a resume appends, are in tests/test_rundir.py and tests/cli/test_training.py.
"""

import hashlib

import pytest

from numba_rl.config import Config
from numba_rl.errors import UserError
from numba_rl.rundir import RunDir


@pytest.fixture
def first(tmp_path):
    """A finished run with checkpoint, log and report."""
    with RunDir.create(tmp_path / "run", Config()) as run:
        (run.checkpoints / "latest.safetensors").write_bytes(b"weights")
        run.metrics.write_text("step\n64000\n")
        run.report.write_text("<html>")
        run.log("first")
    return run.path


def sums(path):
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in path.rglob("*") if file.is_file()}


def from_the_command_line(rltrain, path, *options):
    done = rltrain("train", "ppo", "--data", "bars.csv", "--out", path, *options)
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def from_python(_rltrain, path, *options):
    with pytest.raises(UserError) as caught:
        RunDir.create(path, Config(), overwrite="--overwrite" in options)
    return f"error: {caught.value}\n"


WAYS = pytest.mark.parametrize("attempt", [from_the_command_line, from_python])


@WAYS
def test_1_the_second_run_is_refused_and_the_first_keeps_its_checksums(rltrain, first, attempt):
    before = sums(first)
    said = attempt(rltrain, first)
    assert said == f"error: {first}: holds a run already; choose another --out, `rltrain resume {first}`, or replace it with --overwrite\n"
    assert sums(first) == before


@WAYS
@pytest.mark.parametrize("options", [[], ["--overwrite"]])
def test_2_a_directory_with_foreign_files_is_never_emptied(rltrain, tmp_path, attempt, options):
    (tmp_path / "notes.txt").write_text("mine")
    said = attempt(rltrain, tmp_path, *options)
    assert said == f"error: {tmp_path}: is not empty (notes.txt) and no run; choose another --out, nothing in it was touched\n"
    assert (tmp_path / "notes.txt").read_text() == "mine"


@WAYS
def test_2_nor_a_run_with_a_foreign_file_in_it(rltrain, first, attempt):
    (first / "notes.txt").write_text("mine")
    before = sums(first)
    assert "holds notes.txt beside the run" in attempt(rltrain, first, "--overwrite")
    assert sums(first) == before
