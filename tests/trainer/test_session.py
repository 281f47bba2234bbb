"""A whole training: what it leaves behind, stops, validation, failures that end it, and a resume."""

import csv
import math
import warnings

import pytest
import torch

from numba_rl import rundir, settings
from numba_rl.errors import CheckpointError, ConfigError, UserError
from numba_rl.replay import prioritized
from numba_rl.replay.interface import ReplayFailure
from numba_rl.signals import StopRequest
from numba_rl.trainer import building, checkpoint, run_state, session
from numba_rl.trainer.ppo import Ppo

EPOCH = 64  # steps


def rows(run):
    with run.metrics.open(newline="") as file:
        return list(csv.DictReader(file))


def names(run):
    return sorted(path.stem for path in run.checkpoints.iterdir())


def tensors(run, name="latest"):
    return checkpoint.load(run.checkpoints / f"{name}.safetensors").tensors


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class StopsAt(StopRequest):
    """Asks for a stop once `epochs` epochs were shown."""

    def __init__(self, epochs):
        super().__init__()
        self.left = epochs

    def progress(self, figures):
        self.left -= 1
        if self.left == 0:
            self.request("SIGTERM")


def test_a_run_to_the_end(market, small, new_run):
    config = small({"train.steps": 5 * EPOCH, "train.tensorboard": True})
    run, shown = new_run(config), []
    result = session.train(config, run, market, progress=shown.append)
    assert (result.steps, result.epochs, result.reason, result.best) == (5 * EPOCH, 5, "finished", None)
    assert names(run) == ["final", "latest"]
    assert equal(tensors(run, "final"), tensors(run))
    assert [row["step"] for row in rows(run)] == [str(EPOCH * n) for n in range(1, 6)]
    assert [figures["step"] for figures in shown] == [EPOCH * n for n in range(1, 6)]
    assert shown[-1]["steps_per_second"] > 0
    assert list(run.tensorboard.iterdir())
    meta = run.meta()
    assert (meta["device"], meta["bars_digest"], meta["features_digest"]) == ("cpu", market.bars_digest, market.features_digest)


def test_the_best_policy_by_validation_is_kept(market, small, new_run):
    config = small({"train.steps": 6 * EPOCH, "train.validate_every": 2})
    run, scores, seen = new_run(config), iter([0.5, 2.0, -math.inf]), []

    def validate(policy):
        seen.append(policy(torch.zeros(1, 54)))
        return next(scores)

    result = session.train(config, run, market, validate=validate)
    assert result.best == 2.0
    assert names(run) == ["best", "final", "latest"]
    best = checkpoint.load(run.checkpoints / "best.safetensors")
    assert (best.metadata["best"], best.metadata["epochs"]) == (2.0, 4)
    assert torch.equal(checkpoint.load_policy(best.path)(torch.zeros(1, 54)), seen[1])
    assert [row["validation/log_return"] for row in rows(run)] == ["", "0.5", "", "2", "", "-inf"]


def test_without_a_setting_the_device_says_how_often_is_validated_and_saved(market, small, new_run, monkeypatch):
    monkeypatch.setitem(session.EVERY, ("ppo", "cpu"), {"validate": 2, "checkpoint": 4})
    config, saved, real = small({"train.steps": 7 * EPOCH}), [], checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda path, tensors, metadata: saved.append((path.stem, metadata["epochs"])) or real(path, tensors, metadata))
    run = new_run(config)
    session.train(config, run, market, validate=lambda policy: -math.inf)
    assert saved == [("latest", 0), ("latest", 4), ("final", 7), ("latest", 7)]
    assert [row["validation/log_return"] for row in rows(run)] == ["", "-inf", "", "-inf", "", "-inf", "-inf"]


def test_training_ends_on_a_plateau_or_at_a_time(market, small, new_run):
    config = small({"train.steps": 100 * EPOCH, "train.validate_every": 1, "guard.plateau_patience": 2})
    result = session.train(config, new_run(config), market, validate=lambda policy: 1.0)
    assert (result.reason, result.epochs) == ("plateau", 3)
    config = small({"train.steps": 10**9, "train.time_limit": 0.2})
    run = new_run(config, "timed")
    result = session.train(config, run, market)
    assert result.reason == "time limit"
    assert 0.2 <= result.seconds < 10
    assert names(run) == ["final", "latest"]


FULL = {
    "reward.curiosity": 1.0, "reward.barrier": 0.5, "reward.shaping": "ema", "ppo.lr_schedule": "linear", "episodes.length": 40,
    "train.steps": 8 * EPOCH, "train.validate_every": 3,
}  # fmt: skip


def test_a_stopped_and_resumed_run_equals_one_without_a_break(market, small, new_run):
    config = small(FULL)
    straight, broken = new_run(config, "straight"), new_run(config, "broken")
    validate = lambda policy: float(policy(torch.zeros(1, 54))[0, 0])
    whole = session.train(config, straight, market, validate=validate)
    stop = StopsAt(4)
    result = session.train(config, broken, market, stop=stop, progress=stop.progress, validate=validate)
    assert (result.reason, result.epochs) == ("interrupted", 4)
    assert "final" not in names(broken)
    broken.begin()
    result = session.train(config, broken, market, resume=True, validate=validate)
    assert (result.reason, result.steps, result.best) == ("finished", whole.steps, whole.best)
    for name in ("latest", "final", "best"):
        assert equal(tensors(straight, name), tensors(broken, name)), name
    drop = ("segment", "seconds", "charts/SPS")
    bare = [[{key: value for key, value in row.items() if key not in drop} for row in rows(run)] for run in (straight, broken)]
    assert bare[0] == bare[1]
    assert [row["segment"] for row in rows(broken)] == ["0"] * 4 + ["1"] * 4


def test_a_long_epoch_is_undone_when_asked_to_stop(market, small, new_run, monkeypatch):
    """The run is then left at the epoch's beginning, from where it goes on as if nothing had happened."""
    monkeypatch.setattr(session, "PATIENCE", -1.0)
    monkeypatch.setattr(session, "SNAPSHOT_SECONDS", 0.0)
    config = small({"train.steps": 6 * EPOCH})
    straight, broken = new_run(config, "straight"), new_run(config, "broken")
    session.train(config, straight, market)
    stop = StopRequest()
    count = 0
    real = Ppo._minibatch

    def minibatch(self, batch):
        nonlocal count
        count += self.steps_per_epoch == EPOCH  # not the epoch that compiles
        if count == 3 * 12 + 5:
            stop.request("SIGINT")
        return real(self, batch)

    monkeypatch.setattr(Ppo, "_minibatch", minibatch)
    result = session.train(config, broken, market, stop=stop)
    monkeypatch.undo()
    assert (result.reason, result.epochs, result.steps) == ("interrupted", 3, 3 * EPOCH)
    assert checkpoint.load(broken.checkpoints / "latest.safetensors").metadata["epochs"] == 3
    session.train(config, broken, market, resume=True)
    assert equal(tensors(straight), tensors(broken))


def test_a_first_epoch_that_is_undone_leaves_the_run_at_its_start(market, small, new_run, monkeypatch):
    monkeypatch.setattr(session, "PATIENCE", -1.0)
    config = small()
    run, stop = new_run(config), StopRequest()
    monkeypatch.setattr(Ppo, "_shuffle", lambda self: stop.request("SIGINT"))
    assert session.train(config, run, market, stop=stop).steps == 0
    assert checkpoint.load(run.checkpoints / "latest.safetensors").metadata["epochs"] == 0


def test_a_resume_without_a_checkpoint_or_with_a_damaged_one(market, small, new_run):
    config = small({"train.steps": EPOCH})
    run = new_run(config)
    with pytest.raises(CheckpointError, match="no checkpoint to read"):
        session.train(config, run, market, resume=True)
    session.train(config, run, market)
    path = run.checkpoints / "latest.safetensors"
    stored = checkpoint.load(path)
    checkpoint.save(path, {name: value for name, value in stored.tensors.items() if name != "optimizer/exp_avg"}, stored.metadata)
    with pytest.raises(CheckpointError, match="lacks what a resume needs"):
        session.train(config, run, market, resume=True)
    with pytest.raises(CheckpointError, match=r"ppo\.clip was"):
        session.train(settings.replace(config, {"ppo.clip": 0.3}), run, market, resume=True)


def reward_file(folder, expression):
    arguments = "equity_before, equity_after, price_before, price_after, exposure_before, exposure_after, cost, drawdown, step"
    path = folder / "mine.py"
    path.write_text(f"import math\n\n\ndef reward({arguments}):\n    return {expression}\n")
    return f"{path}:reward"


def test_a_users_reward_is_what_is_learned_from(market, small, new_run, tmp_path):
    config = small({"train.steps": EPOCH, "reward.function": reward_file(tmp_path, "3.0")})
    run = new_run(config)
    session.train(config, run, market)
    assert float(rows(run)[0]["rollout/reward_mean"]) == 3.0


def test_rewards_that_are_not_finite_end_the_training_with_a_reason(market, small, new_run, monkeypatch):
    config = small({"train.steps": 100 * EPOCH, "guard.max_skipped": 30})
    run = new_run(config)
    monkeypatch.setattr(Ppo, "_rewards", lambda self, rollout: torch.full_like(rollout.rewards, math.nan))
    with pytest.raises(UserError, match="30 updates in a row had to be skipped, rewards are not finite") as caught:
        session.train(config, run, market)
    assert "\n" not in str(caught.value)
    assert all(weight.isfinite().all() for name, weight in tensors(run).items() if name.startswith("policy"))


def test_an_epoch_is_monitored_and_guarded(market, small, new_run):
    config = small({"train.steps": 4 * EPOCH, "train.validate_every": 2})
    run, shown = new_run(config), []
    session.train(config, run, market, progress=shown.append)
    for number, row in enumerate(rows(run), 1):
        assert float(row["monitor/steps"]) == EPOCH and float(row["monitor/non_finite"]) == 0
        assert sum(float(row[f"monitor/{name}"]) for name in session.MONITORED[5:10]) == EPOCH
        assert float(row["monitor/reward_mean"]) == pytest.approx(float(row["rollout/reward_mean"]), abs=1e-6)
        assert float(row["guard/q_min"]) <= float(row["guard/q_mean"]) <= float(row["guard/q_max"])
        assert float(row["guard/grad_norm_average"]) > 0
        assert (row["networks/dead_units"] != "") == (number % 2 == 0)
    assert shown[-1]["reward_sharpe"] == pytest.approx(float(rows(run)[-1]["monitor/reward_sharpe"]), rel=1e-6)
    state = tensors(run)
    assert state["epochs/exact"].tolist()[1] == 4 * EPOCH
    assert state["guard/counts"][0] == 4 * 4 * 3  # updates judged


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"guard.collapse_norm": 1e9, "guard.collapse_steps": 30}, "gradient's norm stayed below"),
        ({"guard.q_divergence": 1e-9, "guard.q_interval": 25}, "values diverged"),
    ],
)
def test_a_halt_restores_the_last_good_checkpoint_and_says_why(market, small, new_run, monkeypatch, changes, why):
    config = small({"train.steps": 100 * EPOCH, "train.checkpoint_every": 1} | changes)
    run, sessions, real = new_run(config), [], session._Session._build
    monkeypatch.setattr(session._Session, "_build", lambda self, *given: (sessions.append(self), real(self, *given))[1])
    with pytest.raises(UserError, match=why) as caught:
        session.train(config, run, market)
    assert "\n" not in str(caught.value) and "the last good checkpoint, of step" in str(caught.value)
    trainer, saved = sessions[0].trainer, tensors(run)
    assert 0 < trainer.steps or "diverged" in why
    assert all(torch.equal(weights, saved[name]) for name, weights in trainer.networks().items())
    assert trainer.steps == checkpoint.load(run.checkpoints / "latest.safetensors").metadata["steps"]


def test_a_guard_that_is_switched_off_says_nothing(market, small, new_run):
    config = small({"train.steps": 3 * EPOCH, "guard.enabled": False, "guard.collapse_norm": 1e9, "guard.collapse_steps": 1})
    run = new_run(config)
    assert session.train(config, run, market).reason == "finished"
    assert rows(run)[0]["guard/q_mean"] == ""


def test_what_cannot_be_trained_here_is_refused_at_once(market, small, new_run):
    config = small({"train.collector": "fused"})
    with pytest.raises(ConfigError, match="needs a GPU"):
        session.train(config, new_run(config), market)


def test_a_gpu_that_is_not_there_gives_the_cpu_path_and_a_warning(small, monkeypatch):
    monkeypatch.setattr(building.gpu, "SIMULATED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = []
    assert building.pick_device(small({"train.device": "cuda"}), said.append).type == "cpu"
    assert "using the CPU path" in said[0]
    for setting in ("cpu", "auto"):
        assert building.pick_device(small({"train.device": setting}), said.append).type == "cpu"
    assert len(said) == 1, "nobody asked for a GPU there"


def test_a_gpu_that_was_asked_for_and_is_not_there_is_kept_with_the_run(market, small, new_run, monkeypatch, caplog):
    monkeypatch.setattr(building.gpu, "SIMULATED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("cuda", "auto"):
        run = new_run(config := small({"train.device": device, "train.steps": EPOCH}), device)
        session.train(config, run, market)
        lines = rundir.fallbacks(run.path)
        assert (run.meta()["device"], run.meta()["device_asked"]) == ("cpu", device)
        assert len(lines) == (device == "cuda"), "nobody asked for a GPU otherwise"
        for line in lines:
            assert "there is no GPU" in line and "`rltrain doctor` says why" in line
            assert line in caplog.text and f"warning: {line}" in (run.path / "log.txt").read_text()


def test_a_replay_that_leaves_the_gpu_is_kept_with_the_run(market, small, new_run, monkeypatch, caplog):
    config, real = small({"train.steps": 2 * EPOCH}), Ppo.epoch

    def epoch(self):
        if self.epochs == 1:
            warnings.warn("another matter", RuntimeWarning, stacklevel=1)
            for _ in range(2):  # the same warning of the same line
                try:
                    raise ReplayFailure("replay kernel launch_insert failed")
                except ReplayFailure as error:
                    prioritized._warn(error, 20)
        real(self)

    monkeypatch.setattr(Ppo, "epoch", epoch)
    run = new_run(config)
    with pytest.warns(RuntimeWarning, match="another matter") as others:
        session.train(config, run, market)
    assert len(others) == 1
    assert [line.partition(";")[0] for line in rundir.fallbacks(run.path)] == [
        "replay moved to main memory with 20 transitions, and is slower there: replay kernel launch_insert failed"
    ] * 2
    assert "ReplayFailure: replay kernel" in (run.path / "log.txt").read_text() and "replay moved" in caplog.text


def test_a_run_s_log_says_what_it_does_without(market, small, new_run, trainer, monkeypatch):
    config = small({"train.collector": "auto"})
    run, found = new_run(config), trainer()
    found.device = torch.device("cuda")
    monkeypatch.setattr(session, "why_not_fused", lambda *arguments: "its products are bf16, not float32")
    monkeypatch.setattr(session.kernel_cache, "problems", ["compiled kernels are not kept: no room"])
    made = session._Session(config, run, market, None, None, None)
    made.trainer = found
    made._note()
    log = (run.path / "log.txt").read_text()
    assert "the batched collector collects, since the fused one cannot: its products are bf16, not float32" in log
    assert "warning: compiled kernels are not kept: no room" in log


def test_threads_are_those_of_the_settings_while_training(market, small, new_run):
    config, before = small({"train.steps": EPOCH, "train.threads": 1}), torch.get_num_threads()
    seen = []
    session.train(config, new_run(config), market, progress=lambda figures: seen.append(torch.get_num_threads()))
    assert seen == [1]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(("slow", "made"), [(10.0, [0, 2, 4, 6]), (0.0, [0, 6])])
def test_saves_that_take_long_are_made_less_often(market, small, new_run, monkeypatch, slow, made):
    """The file says when it was saved; a save of any length is a slow one with SLOW_SAVE = 0, and its share is tiny here."""
    config, steps, real = small({"train.steps": 6 * EPOCH, "train.checkpoint_every": 2}), [], checkpoint.save
    monkeypatch.setattr(run_state, "SLOW_SAVE", slow)
    monkeypatch.setattr(run_state, "SAVES_SHARE", 1e-6)

    def save(path, tensors, metadata):
        if path.stem == "latest":
            steps.append(metadata["steps"] // EPOCH)
        real(path, tensors, metadata)

    monkeypatch.setattr(checkpoint, "save", save)
    session.train(config, new_run(config), market)
    assert steps == made


def test_a_gpu_that_fails_while_training_gives_the_cpu_path_from_the_last_checkpoint(market, small, new_run, monkeypatch, caplog):
    config = small({"train.steps": 6 * EPOCH, "train.checkpoint_every": 2})
    straight, failing = new_run(config, "straight"), new_run(config, "failing")
    session.train(config, straight, market)
    real, failed = Ppo.epoch, []

    def epoch(self):
        if self.epochs == 3 and not failed:
            failed.append(self)
            self.device = torch.device("cuda")  # as on a GPU
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be ...")
        real(self)

    monkeypatch.setattr(Ppo, "epoch", epoch)
    result = session.train(config, failing, market)
    assert (result.reason, result.steps) == ("finished", 6 * EPOCH)
    assert "the GPU failed in epoch 4 (CUDA error: an illegal memory access" in caplog.text
    [line] = rundir.fallbacks(failing.path)
    assert line.startswith("the GPU failed in epoch 4 (") and "a resume tries the GPU again" in line
    assert "in epoch\n    raise RuntimeError" in (failing.path / "log.txt").read_text(), "the traceback"
    assert rundir.fallbacks(straight.path) == []
    assert equal(tensors(straight), tensors(failing))
    assert [row["epoch"] for row in rows(failing)] == ["1", "2", "3", "3", "4", "5", "6"]


def test_an_error_that_is_not_a_gpus_is_not_hidden(market, small, new_run, monkeypatch):
    config = small()
    real = Ppo.epoch

    def epoch(self):
        if self.epochs == 1:
            raise RuntimeError("a bug")
        real(self)

    monkeypatch.setattr(Ppo, "epoch", epoch)
    with pytest.raises(RuntimeError, match="a bug"):
        session.train(config, new_run(config), market)
