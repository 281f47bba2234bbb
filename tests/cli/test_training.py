"""The glue of `train` and `resume`: status, exit code, directory and settings, with a trainer that is a few lines long."""

import importlib
import os
import signal
import sys
from types import ModuleType, SimpleNamespace

import pytest

from numba_rl import rundir, settings
from numba_rl.errors import UserError
from numba_rl.rundir import RunDir
from rltrain.main import main

MARKET = SimpleNamespace(
    source="bars.csv.gz", bars_per_year=252.0, names=("a", "b"), notices=("2 rows were sorted",),
    train=range(60), validation=range(60, 80), test=range(80, 100),
)  # fmt: skip
MARKET.for_training = lambda: MARKET
VALIDATE = object()


@pytest.fixture
def trainer(monkeypatch, tmp_path):
    """Puts `train` in the place of the trainer's, a market in the place of the reader's, and the test in an empty directory."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("RLTRAIN_")]:
        monkeypatch.delenv(name)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    calls = []

    def put(name, **contents):
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
        package, _, leaf = name.rpartition(".")
        monkeypatch.setattr(importlib.import_module(package), leaf, module, raising=False)

    def install(train):
        def recorded(config, run, market, *, stop, progress, resume, validate):
            assert validate is VALIDATE
            calls.append((config, resume))
            progress({"step": 1})
            return train(run, stop)

        put("numba_rl.trainer.session", train=recorded)
        put("numba_rl.trainer.building", needs=lambda config, market, sizes: f"as {sizes} takes", open_gpu=lambda config: None)
        return calls

    put("numba_rl.data.market", load_market=lambda config: MARKET)
    put("numba_rl.evaluate.validation", validator=lambda market, config, fall_back: VALIDATE)
    yield install
    for number, handler in handlers.items():
        signal.signal(number, handler)


def command(*words):
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    return caught.value.code


def finishes(run, stop):
    run.metrics.write_text("step\n100\n")
    return SimpleNamespace(steps=100, reason="interrupted" if stop.requested else "finished", best=0.25)


def test_a_run_that_finishes(trainer, capsys):
    calls = trainer(finishes)
    assert command("train", "ppo", "--data", "bars.csv.gz", "--out", "run", "--steps", "100", "--seed", "3") == 0
    config, resume = calls[0]
    assert (config.train.steps, config.train.seed, config.algorithm, resume) == (100, 3, "ppo", False)
    assert config.data.path == os.path.abspath("bars.csv.gz"), "the run can be evaluated from anywhere"
    assert RunDir.open("run").config() == config
    assert rundir.status("run") == "finished"
    out = capsys.readouterr().out
    assert "bars: 60 to train, 20 to validate, 20 to test" in out
    assert "note: 2 rows were sorted" in out and "memory: as None takes" in out
    assert out.endswith("done (finished): 100 steps, 0:00, best validation log return +0.2500\nnext: rltrain evaluate run\n")


@pytest.mark.parametrize("stopped", [False, True])
def test_that_training_left_the_gpu_is_said_at_once_and_at_the_end(trainer, capsys, stopped):
    def leaves(run, stop):
        run.fall_back("the GPU cannot be used (no driver); training goes on on the CPU path")
        if stopped:
            stop.request("SIGTERM")
        return finishes(run, stop)

    trainer(leaves)
    assert command("train", "ppo", "--data", "bars.csv.gz", "--out", "run", "--device", "cuda") == (143 if stopped else 0)
    out, err = capsys.readouterr()
    line = "warning: the GPU cannot be used (no driver); training goes on on the CPU path\n"
    assert err == line
    assert line in out.partition("saved; " if stopped else "done (finished)")[2]
    trainer(finishes)
    assert command("resume", "run") == 0
    assert "the GPU" not in "".join(capsys.readouterr()), "it has not left it again"


def test_without_out_the_name_counts_on(trainer):
    trainer(finishes)
    assert [command("train", name, "--data", "bars.csv.gz") for name in ("ppo", "ppo", "dqn")] == [0, 0, 0]
    assert sorted(os.listdir("runs")) == ["dqn-bars", "ppo-bars", "ppo-bars-2"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_training_saves_and_exits_with_its_code(trainer, capsys, number, code):
    def stops(run, stop):
        assert stop.requested is None
        os.kill(os.getpid(), number)
        assert stop.requested == number.name
        return finishes(run, stop)

    trainer(stops)
    assert command("train", "ppo", "--data", "bars.csv.gz", "--out", "run") == code
    meta = rundir.read_meta("run")
    assert (meta["status"], meta["reason"]) == ("interrupted", number.name)
    assert "stopped at step 100, 0:00, saved; `rltrain resume run` goes on from there" in capsys.readouterr().out


@pytest.mark.parametrize("error", [UserError("mend this"), KeyboardInterrupt("SIGINT")])
def test_what_ends_before_the_first_result_leaves_no_directory(trainer, error):
    def fails(run, stop):
        raise error

    trainer(fails)
    assert command("train", "ppo", "--data", "bars.csv.gz", "--out", "run") == (2 if isinstance(error, UserError) else 130)
    assert os.listdir() == []


def test_a_failure_is_noted_and_kept(trainer, capsys):
    def fails(run, stop):
        raise RuntimeError("CUDA error")

    trainer(fails)
    assert command("train", "ppo", "--data", "bars.csv.gz", "--out", "run") == 1
    assert rundir.read_meta("run")["reason"] == "RuntimeError: CUDA error"
    assert "internal failure: RuntimeError: CUDA error" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["resume", "run"], ["train", "ppo", "--resume", "run"]])
def test_a_resume_keeps_the_settings_but_what_may_change(trainer, monkeypatch, words):
    calls = trainer(finishes)
    assert command("train", "ppo", "--data", "bars.csv.gz", "--out", "run", "--steps", "100", "--set", "ppo.lr=0.1") == 0
    monkeypatch.setenv("RLTRAIN_PPO_LR", "0.5")
    assert command(*words, "--steps", "200") == 0
    config, resume = calls[1]
    assert (config.train.steps, config.ppo.lr, resume) == (200, 0.1, True)
    assert settings.read_toml("run/config.toml") == config
    assert [segment["command"] for segment in rundir.read_meta("run")["segments"]] == [sys.argv, sys.argv]


def test_a_run_of_the_other_algorithm_is_not_resumed(trainer, capsys):
    trainer(finishes)
    assert command("train", "dqn", "--data", "bars.csv.gz", "--out", "run") == 0
    assert command("train", "ppo", "--resume", "run") == 2
    assert "rltrain train dqn --resume run" in capsys.readouterr().err
