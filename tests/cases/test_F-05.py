"""F-05: Ctrl-C and SIGTERM lose nothing. Real runs of the command line, real signals."""

import csv
import json
import shutil
import signal
import time

import pytest
from safetensors import safe_open

from numba_rl import rundir
from numba_rl.data.synthetic import generate
from numba_rl.data.write import write_bars
from numba_rl.evaluate.session import evaluate_run, report_run
from numba_rl.kernel_cache import cache_directory
from numba_rl.rundir import RunDir

SMALL = [
    "--device", "cpu", "--steps", "1e9", "--set", "train.threads=1", "--set", "train.checkpoint_every=1", "--set", "train.tensorboard=false",
    "--set", "episodes.count=8", "--set", "episodes.launch=16", "--set", "ppo.actor=16", "--set", "ppo.critic=16", "--set", "ppo.epochs=1",
    "--set", "evaluate.bootstrap=50",
]  # fmt: skip


@pytest.fixture
def start(rltrain_process, tmp_path):
    """Starts an endless small run in tmp_path/run."""
    write_bars(tmp_path / "bars.parquet", generate("mean_reverting", 3000, 1).bars)

    def train(**options):
        return rltrain_process("train", "ppo", "--data", "bars.parquet", "--out", "run", *SMALL, cwd=tmp_path, **options)

    return train


def rows(run):
    """The rows of metrics.csv as (step, segment)."""
    try:
        with (run / "metrics.csv").open() as file:
            return [(int(row["step"]), int(row["segment"])) for row in csv.DictReader(file)]
    except FileNotFoundError:
        return []


def until(condition, process):
    """Waits while the process lives."""
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def saved_step(run):
    with safe_open(run / "checkpoints" / "latest.safetensors", "np") as file:
        return json.loads(file.metadata()["numba_rl"])["steps"]


def test_a_signal_saves_the_current_step_and_a_resume_goes_on_there(start, rltrain_process, tmp_path):
    run = tmp_path / "run"
    process = start()
    until(lambda: len(rows(run)) >= 4, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 130
    assert err == "SIGINT: saving and stopping; once more stops at once\n"
    step = rows(run)[-1][0]
    assert saved_step(run) == step
    assert f"SIGINT: stopped at step {step:,}" in out
    meta = rundir.read_meta(run)
    assert (meta["status"], meta["reason"]) == ("interrupted", "SIGINT")

    with RunDir.open(run) as opened:
        assert "<b>Interrupted.</b> SIGINT" in report_run(opened, evaluate_run(opened)).read_text()

    process = rltrain_process("resume", "run", cwd=tmp_path)
    until(lambda: len([row for row in rows(run) if row[1] == 1]) >= 2, process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=180)
    assert process.returncode == 143
    steps = [row[0] for row in rows(run)]
    assert steps == list(range(128, 128 * len(steps) + 1, 128)), "one log, every epoch once"
    assert [row[1] for row in rows(run)].index(1) == step // 128, "the resume is marked from its first row"
    assert saved_step(run) == steps[-1]


def test_a_second_signal_stops_at_once_and_the_checkpoint_stays_whole(start, tmp_path):
    run = tmp_path / "run"
    process = start()
    until(lambda: len(rows(run)) >= 4, process)
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline().startswith("SIGINT: saving and stopping")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert saved_step(run) % 128 == 0


def test_a_signal_during_the_first_compilation_is_one_line(start, tmp_path):
    kept, cache = cache_directory(), tmp_path / "cache"
    if kept.is_dir():  # what comes before it needs not be compiled again
        shutil.copytree(kept, cache / kept.name, ignore=shutil.ignore_patterns("step.*", "*.tmp*"))
    process = start(env={"RLTRAIN_CACHE_DIR": str(cache)})
    until(lambda: process.stdout.readline().startswith("preparing"), process)
    time.sleep(1)  # into the compilation, which takes many seconds
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=180)
    assert (process.returncode, err) == (130, "SIGINT: interrupted\n")
    assert not (tmp_path / "run").exists(), "nothing was learned yet: the same command can be given again"
