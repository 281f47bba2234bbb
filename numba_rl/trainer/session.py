"""One training run from settings to checkpoints: collect and update, log, validate, save, until done or asked to stop.

What is trained with is put together by trainer.building; what the run has come to is kept by trainer.run_state.

Three checkpoints are kept in RUN/checkpoints: `latest` (every train.checkpoint_every epochs and whenever training ends),
`best` (by validation) and `final` (when all steps were played). An epoch is one launch of the collector and the update on it.
"""

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numba
import torch

from numba_rl import kernel_cache
from numba_rl.collect.epoch import Epochs
from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.errors import FallbackWarning, UserError, one_line
from numba_rl.kernels.guard import BROKEN, NONE
from numba_rl.kernels.monitor import FIGURES as MONITORED
from numba_rl.rundir import RunDir
from numba_rl.settings import check
from numba_rl.signals import StopRequest
from numba_rl.trainer import replay_files
from numba_rl.trainer.building import build, on_cpu, sizes_of, why_not_fused
from numba_rl.trainer.checkpoint import Policy
from numba_rl.trainer.dead_units import dead_units, seen_states
from numba_rl.trainer.run_state import RunState
from numba_rl.trainer.tracking import Tracker

PATIENCE = 5.0  # seconds that an epoch may go on after a stop was asked for; then it is undone
GUARDED = ("loss_average", "grad_norm_average", "q_mean", "q_std", "q_min", "q_max", "clipped", "collapsed")  # logged as guard/...
EVERY = {  # epochs, where the settings say nothing
    ("ppo", "cpu"): {"validate": 20, "checkpoint": 20}, ("ppo", "cuda"): {"validate": 50, "checkpoint": 100},
    ("dqn", "cpu"): {"validate": 20, "checkpoint": 20}, ("dqn", "cuda"): {"validate": 200, "checkpoint": 400},
}  # fmt: skip
SNAPSHOT_SECONDS = 1.0  # epochs longer than this are begun with a copy of the state to go back to


@dataclass(frozen=True)
class Result:
    """How a training ended: steps and epochs in all, seconds in all, why, and the best figure of validation."""

    steps: int
    epochs: int
    seconds: float
    reason: str  # "finished", "interrupted", "time limit" or "plateau"
    best: float | None


class _EpochUndone(Exception):
    """Raised within an epoch that takes too long to be waited for."""


def train(
    config: Config,
    run: RunDir,
    market: Market,
    *,
    stop: StopRequest | None = None,
    progress: Callable[[dict], None] = lambda figures: None,
    resume: bool = False,
    validate: Callable[[Policy], float] | None = None,
) -> Result:
    """Train on `market` into `run`; with `resume`, from its latest checkpoint on, as if it had never stopped.

    stop: asked between epochs, and within long ones. progress: called with the figures of every epoch (see _shown).
    validate: policy -> figure to be maximised (-inf: none, never the best), called every train.validate_every epochs.
    Raises UserError where the settings or the checkpoint do not fit, a file cannot be written, or training diverges.
    """
    check(config)
    with _threads(config.train.threads), _fallbacks_kept(run):
        return _Session(config, run, market, stop or StopRequest(), progress, validate).run(resume)


class _Session:
    def __init__(self, config, run, market, stop, progress, validate):
        self.config, self.run_dir, self.market = config, run, market
        self.state = RunState(config, run, market)
        self.stop, self.progress = stop, progress
        self.validate = validate if market.validation.stop - market.validation.start >= 2 else None
        self.validated = f"validation/{config.train.validate_by}"
        self.asked = math.inf  # when the loop first saw that it should stop
        self.undone = False  # the trainer's state is in the middle of an epoch, not to be saved

    def run(self, resume: bool) -> Result:
        self._build(self.config, self.run_dir.meta().get("sizes", {}) if resume else {})
        self.state.start_clock()
        if resume:
            self._load()
        self._note()
        if not resume:
            self._save("latest")
        trainer = self.trainer
        self.done = trainer.steps, trainer.epochs
        names = [*trainer.FIGURES, *(f"monitor/{name}" for name in MONITORED), *(f"guard/{name}" for name in GUARDED)]
        names += ["networks/dead_units", "charts/SPS", self.validated]
        board = self.run_dir.tensorboard if self.config.train.tensorboard else None
        with Tracker(self.run_dir.metrics, board, names, segment=self.run_dir.segment, step=trainer.steps) as tracker:
            reason = self._loop(tracker)
        if reason in ("finished", "time limit", "plateau"):
            self._save("final")
        if not self.undone:
            self._save("latest")
        return Result(*self.done, self.state.seconds, reason, self.state.best)

    def _build(self, config: Config, sizes: dict) -> None:
        """The trainer, and what watches it. sizes: those that the run has been trained with so far, if it has."""
        self.trainer = build(config, self.market, self._poll, self.run_dir.warn, sizes, self.run_dir.fall_back)
        self.epochs = Epochs(self.trainer.collector, self.market.regime[:, 0])
        self.trainer.observe = self.epochs.end

    def _loop(self, tracker: Tracker) -> str:
        reason, last = self._reason_to_stop(), 0.0
        while reason is None:
            # Without a copy, an epoch that is broken off leaves the run at its last checkpoint.
            snapshot = self.state.copied(self.trainer, self.epochs) if last > SNAPSHOT_SECONDS and self.trainer.replay is None else None
            begun = time.monotonic()
            try:
                self.trainer.epoch()
                figures = self.trainer.statistics()
                figures |= {f"monitor/{name}": value for name, value in zip(MONITORED, self.epochs.figures.tolist(), strict=True)}
            except _EpochUndone:
                if snapshot is not None:
                    self._save("latest", snapshot)
                self.undone = True
                return "interrupted"
            except Exception as error:  # out of memory, a compiler's and a driver's errors have no common class
                if self.trainer.device.type != "cuda" or isinstance(error, UserError):
                    raise
                self._leave_gpu(error)
                continue
            trainer = self.trainer
            self.done = trainer.steps, trainer.epochs
            last = time.monotonic() - begun
            figures["charts/SPS"] = trainer.steps_per_epoch / last
            self._guard(figures)
            to_validate = trainer.epochs % self._every("validate") == 0
            if to_validate:
                figures["networks/dead_units"] = dead_units(trainer.acting_network, seen_states(trainer.collector))
            reason = self._reason_to_stop()
            ends = reason not in (None, "interrupted")
            if self.validate is not None and (to_validate or ends):
                figures[self.validated] = self._validate()
                patience = self.config.guard.plateau_patience
                if reason is None and patience and self.state.stale >= patience:
                    reason = "plateau"
            try:
                tracker.add(figures, step=trainer.steps, epoch=trainer.epochs, seconds=self.state.seconds)
            except UserError:  # the disk is full: what was learned is kept if there is still room for it
                with contextlib.suppress(UserError):
                    self._save("latest")
                raise
            self.progress({"seconds": self.state.seconds} | _shown(trainer.steps, figures))
            if trainer.epochs % self._every("checkpoint") == 0 and reason is None and self.state.save_is_due():
                self._save("latest")
            if reason is None and self.stop.requested is not None:  # while it was validated, shown or saved
                reason = "interrupted"
        return reason

    def _every(self, what: str) -> int:
        """Epochs from one validation or checkpoint to the next. Those of a GPU are over in milliseconds."""
        given = getattr(self.config.train, f"{what}_every")
        return given or EVERY[self.config.algorithm, self.trainer.device.type][what]

    def _reason_to_stop(self) -> str | None:
        if self.trainer.steps >= self.config.train.steps:
            return "finished"
        if self.config.train.time_limit is not None and self.state.seconds >= self.config.train.time_limit:
            return "time limit"
        return "interrupted" if self.stop.requested is not None else None

    def _leave_gpu(self, error: Exception) -> None:
        """Go on on the CPU path from the last checkpoint: what a failed kernel left on the GPU cannot be trusted."""
        self.run_dir.fall_back(
            f"the GPU failed in epoch {self.done[1] + 1} ({one_line(error)}); training goes on on the CPU path from the last checkpoint"
        )
        sizes, self.trainer = sizes_of(self.trainer), None
        self._build(on_cpu(self.config), sizes)
        self._load()
        self._note()

    def _poll(self) -> None:
        """Called within an epoch: breaks it off where a stop was asked for and the epoch does not end soon."""
        if self.stop.requested is None:
            return
        now = time.monotonic()
        self.asked = min(self.asked, now)
        if now - self.asked > PATIENCE:
            raise _EpochUndone

    def _guard(self, figures: dict[str, float]) -> None:
        """Add the guard's figures. UserError where it halts the training; the last good checkpoint is then restored."""
        if not self.config.guard.enabled:
            return
        reading = self.trainer.guard.read()
        shown = reading.figures | {"clipped": float(reading.clipped), "collapsed": float(reading.collapsed_in_a_row)}
        figures |= {f"guard/{name}": shown[name] for name in GUARDED}
        if reading.reason == NONE:
            return
        why = f"{reading.why}, {self._cause(figures)}" if reading.reason == BROKEN else reading.why
        step, path = self.trainer.steps, self.run_dir.checkpoints / "latest.safetensors"
        self._load()
        raise UserError(f"training stopped at step {step:,}: {why}; the last good checkpoint, of step {self.trainer.steps:,}, is {path}")

    def _cause(self, figures: dict[str, float]) -> str:
        if figures.get("rollout/broken_slots", 0) > 0:
            return "the policy's logits are not finite; lower the learning rate"
        if not math.isfinite(figures.get("rollout/reward_mean", 0.0)) or figures["monitor/non_finite"] > 0:
            return "rewards are not finite; look at the reward function and the prices"
        return "losses or gradients are not finite; lower the learning rate or the reward's scale"

    def _validate(self) -> float:
        with _threads(1):  # one account is one row: waking other threads for it costs more than they do
            score = float(self.validate(self.trainer.policy(self.market)))
        state = self.state
        if score > (-math.inf if state.best is None else state.best):
            state.best, state.best_step, state.stale = score, self.trainer.steps, 0
            self._save("best")
        else:
            state.stale += 1
        return score

    def _save(self, name: str, copied=None) -> None:
        self.state.save(name, self.trainer, self.epochs, copied)

    def _load(self) -> None:
        for line in self.state.load(self.trainer, self.epochs):
            self.run_dir.warn(line)

    def _note(self) -> None:
        """Write what this run really uses into its directory."""
        trainer, market = self.trainer, self.market
        collector = trainer.collector
        used = {"device": str(trainer.device), "device_asked": self.config.train.device, "precision": trainer.precision}
        used["collector"] = type(collector).__name__
        self.run_dir.update(**used, bars_digest=market.bars_digest, features_digest=market.features_digest, source=market.source)
        self.run_dir.log(
            f"{trainer.name} on {trainer.device}, {trainer.precision}, {torch.get_num_threads()} threads, {used['collector']}: "
            f"{collector.episodes} episodes x {collector.steps} steps an epoch"
        )
        self.run_dir.update(sizes=sizes_of(trainer))
        if trainer.device.type == "cuda" and self.config.train.collector == "auto":
            obstacle = why_not_fused(self.config, market, trainer.device)
            if obstacle is not None:
                self.run_dir.log(f"the batched collector collects, since the fused one cannot: {obstacle}")
        for line in kernel_cache.problems:
            self.run_dir.log(f"warning: {line}")
        if trainer.replay is not None:
            self.run_dir.log(replay_files.describe(trainer.replay, self.config.replay))


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """torch and Numba on `count` threads (None: as they are) within the block."""
    before = torch.get_num_threads(), numba.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
        numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        numba.set_num_threads(before[1])


@contextlib.contextmanager
def _fallbacks_kept(run: RunDir) -> Iterator[None]:
    """What says by a FallbackWarning that it leaves the GPU (the replay) is kept with the run, and said as its other warnings are."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", FallbackWarning)
        show = warnings.showwarning

        def keep(message, category, *where, **how):
            if issubclass(category, FallbackWarning):
                run.fall_back(str(message))
            else:
                show(message, category, *where, **how)

        warnings.showwarning = keep
        yield


def _shown(step: int, figures: dict[str, float]) -> dict[str, float]:
    """What a progress display shows of an epoch."""
    names = {
        "steps_per_second": "charts/SPS", "reward": "rollout/reward_mean", "approx_kl": "losses/approx_kl", "entropy": "losses/entropy",
        "q": "losses/q_mean", "epsilon": "charts/epsilon",
        "validation_log_return": "validation/log_return", "validation_sharpe": "validation/sharpe", "reward_sharpe": "monitor/reward_sharpe",
    }  # fmt: skip
    return {"step": step} | {shown: figures[name] for shown, name in names.items() if name in figures}
