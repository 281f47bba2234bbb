"""`rltrain walk-forward` and the windows of `evaluate`: what is refused, and what is shown before anything runs."""

import pytest

from numba_rl.config import Config
from numba_rl.data.synthetic import generate
from numba_rl.data.write import write_bars
from numba_rl.rundir import RunDir


@pytest.fixture(scope="module")
def bars(tmp_path_factory):
    path = tmp_path_factory.mktemp("bars") / "bars.parquet"
    write_bars(path, generate("random_walk", 1500, 0).bars)
    return path


def test_a_dry_run_shows_the_folds_and_makes_nothing(rltrain, bars, tmp_path):
    picture = tmp_path / "folds.html"
    words = ["walk-forward", "ppo", "--data", str(bars), "--train", "6h", "--test", "2h", "--embargo", "30m", "--set", "data.bars_per_year=525600"]
    done = rltrain(*words, "--dry-run", "--picture", str(picture), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "not tested: 360 bars" in done.stdout and "===" in done.stdout and "###" in done.stdout
    assert picture.read_text().startswith("<!doctype html>") and "Bars not tested" in picture.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["folds.html"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--train", "6h"], "evaluate.test is not set; give --test"),
        (["--train", "6h", "--test", "soon"], 'evaluate.test = "soon" is not a length'),
        (["--train", "90d", "--test", "30d"], "days found, 120 days needed"),
        (["--train", "6h", "--test", "2h", "--purge", "6h"], "fold 0"),
    ],
)
def test_windows_that_cannot_be_are_one_line(rltrain, bars, tmp_path, words, message):
    done = rltrain("walk-forward", "ppo", "--data", str(bars), *words, "--dry-run", "--set", "data.bars_per_year=525600", cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_run_is_resumed_by_the_command_that_made_it(rltrain, tmp_path):
    with RunDir.create(tmp_path / "plain", Config()) as run:
        run.metrics.touch()
    with RunDir.create(tmp_path / "walk", Config()) as run:
        run.update(folds=3)
        run.metrics.touch()
    refused = {
        ("walk-forward", "--resume", "plain"): "is no walk-forward run; `rltrain resume plain`",
        ("resume", "walk"): "is a walk-forward: rltrain walk-forward --resume walk",
        ("evaluate", "walk"): "is a walk-forward, judged already; `rltrain report walk`",
        ("walk-forward", "--resume", "walk", "--train", "9d"): "--train cannot be given with it",
        ("walk-forward", "dqn", "--resume", "walk"): "is a walk-forward of ppo, not of dqn",
        ("evaluate", "plain", "--test", "30d"): "give it as well",
        ("walk-forward", "--data", "bars.csv"): "ppo or dqn",
    }
    for words, message in refused.items():
        done = rltrain(*words, cwd=tmp_path)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
