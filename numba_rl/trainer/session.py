"""One training run from settings to checkpoints: collect and update, log, validate, save, until done or asked to stop.

Three checkpoints are kept in RUN/checkpoints: `latest` (every train.checkpoint_every epochs and whenever training ends),
`best` (by validation) and `final` (when all steps were played). An epoch is one launch of the collector and the update on it.
"""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numba
import numpy as np
import torch

from numba_rl import gpu
from numba_rl.collect.batched import BatchedCollector
from numba_rl.collect.epoch import Epochs
from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.errors import CheckpointError, ConfigError, UserError, one_line
from numba_rl.kernels.guard import BROKEN, NONE
from numba_rl.kernels.monitor import FIGURES as MONITORED
from numba_rl.rules.user_reward import load_reward
from numba_rl.rundir import RunDir
from numba_rl.settings import check, replace
from numba_rl.signals import StopRequest
from numba_rl.trainer import checkpoint, memory, replay_files
from numba_rl.trainer.dead_units import dead_units, seen_states
from numba_rl.trainer.dqn import Dqn
from numba_rl.trainer.ppo import Ppo
from numba_rl.trainer.tracking import Tracker

PATIENCE = 5.0  # seconds that an epoch may go on after a stop was asked for; then it is undone
GUARDED = ("loss_average", "grad_norm_average", "q_mean", "q_std", "q_min", "q_max", "clipped", "collapsed")  # logged as guard/...
SLOW_SAVE, SAVES_SHARE = 1.0, 0.1  # a save of more seconds than this waits until such saves take no more than this share of the time
SNAPSHOT_SECONDS = 1.0  # epochs longer than this are begun with a copy of the state to go back to

_log = logging.getLogger("numba_rl")


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
    validate: Callable[[checkpoint.Policy], float] | None = None,
) -> Result:
    """Train on `market` into `run`; with `resume`, from its latest checkpoint on, as if it had never stopped.

    stop: asked between epochs, and within long ones. progress: called with the figures of every epoch (see _shown).
    validate: policy -> figure to be maximised (-inf: none, never the best), called every train.validate_every epochs.
    Raises UserError where the settings or the checkpoint do not fit, a file cannot be written, or training diverges.
    """
    check(config)
    with _threads(config.train.threads):
        return _Session(config, run, market, stop or StopRequest(), progress, validate).run(resume)


class _Session:
    def __init__(self, config, run, market, stop, progress, validate):
        self.config, self.run_dir, self.market = config, run, market
        self.stop, self.progress = stop, progress
        self.validate = validate if market.validation.stop - market.validation.start >= 2 else None
        self.asked = math.inf  # when the loop first saw that it should stop
        self.before, self.best, self.best_step, self.stale = 0.0, None, None, 0
        self.saving, self.saved = 0.0, 0.0  # seconds that the last save of all took, and when it ended
        self.undone = False  # the trainer's state is in the middle of an epoch, not to be saved

    def run(self, resume: bool) -> Result:
        self._build(self.config, self.run_dir.meta().get("sizes", {}) if resume else {})
        self.started = time.monotonic()
        if resume:
            self._load()
        self._note()
        if not resume:
            self._save("latest")
        trainer = self.trainer
        self.done = trainer.steps, trainer.epochs
        names = [*trainer.FIGURES, *(f"monitor/{name}" for name in MONITORED), *(f"guard/{name}" for name in GUARDED)]
        names += ["networks/dead_units", "charts/SPS", "validation/sharpe"]
        board = self.run_dir.tensorboard if self.config.train.tensorboard else None
        with Tracker(self.run_dir.metrics, board, names, segment=self.run_dir.segment, step=trainer.steps) as tracker:
            reason = self._loop(tracker)
        if reason in ("finished", "time limit", "plateau"):
            self._save("final")
        if not self.undone:
            self._save("latest")
        return Result(*self.done, self._seconds(), reason, self.best)

    def _build(self, config: Config, sizes: dict) -> None:
        """The trainer, and what watches it. sizes: those that the run has been trained with so far, if it has."""
        self.trainer = build(config, self.market, self._poll, self._warn, sizes)
        self.epochs = Epochs(self.trainer.collector, self.market.regime[:, 0])
        self.trainer.observe = self.epochs.end

    def _loop(self, tracker: Tracker) -> str:
        settings = self.config.train
        reason, last = self._reason_to_stop(), 0.0
        while reason is None:
            # Without a copy, an epoch that is broken off leaves the run at its last checkpoint.
            snapshot = self._state() if last > SNAPSHOT_SECONDS and self.trainer.replay is None else None
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
            if trainer.epochs % settings.validate_every == 0:
                figures["networks/dead_units"] = dead_units(trainer.acting_network, seen_states(trainer.collector))
            reason = self._reason_to_stop()
            ends = reason not in (None, "interrupted")
            if self.validate is not None and (trainer.epochs % settings.validate_every == 0 or ends):
                figures["validation/sharpe"] = self._validate()
                patience = self.config.guard.plateau_patience
                if reason is None and patience and self.stale >= patience:
                    reason = "plateau"
            try:
                tracker.add(figures, step=trainer.steps, epoch=trainer.epochs, seconds=self._seconds())
            except UserError:  # the disk is full: what was learned is kept if there is still room for it
                with contextlib.suppress(UserError):
                    self._save("latest")
                raise
            self.progress({"seconds": self._seconds()} | _shown(trainer.steps, figures))
            if trainer.epochs % settings.checkpoint_every == 0 and reason is None and self._save_is_due():
                self._save("latest")
            if reason is None and self.stop.requested is not None:  # while it was validated, shown or saved
                reason = "interrupted"
        return reason

    def _reason_to_stop(self) -> str | None:
        if self.trainer.steps >= self.config.train.steps:
            return "finished"
        if self.config.train.time_limit is not None and self._seconds() >= self.config.train.time_limit:
            return "time limit"
        return "interrupted" if self.stop.requested is not None else None

    def _leave_gpu(self, error: Exception) -> None:
        """Go on on the CPU path from the last checkpoint: what a failed kernel left on the GPU cannot be trusted."""
        self._warn(
            f"the GPU failed in epoch {self.done[1] + 1} ({one_line(error)}); training goes on on the CPU path from the last checkpoint"
        )
        sizes, self.trainer = sizes_of(self.trainer), None
        self._build(_on_cpu(self.config), sizes)
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
        if score > (-math.inf if self.best is None else self.best):
            self.best, self.best_step, self.stale = score, self.trainer.steps, 0
            self._save("best")
        else:
            self.stale += 1
        return score

    # ------------------------------------------------------------------------------------------------- state

    def _state(self):
        """Everything that a checkpoint holds, copied: (tensors, JSON)."""
        trainer = self.trainer
        whole = trainer.state() | {f"epochs/{name}": value for name, value in self.epochs.state_dict().items()}
        tensors = {name: value.clone() if torch.is_tensor(value) else np.copy(value) for name, value in whole.items()}
        progress = {
            "steps": trainer.steps, "epochs": trainer.epochs, "seconds": self._seconds(), "best": self.best, "best_step": self.best_step,
            "stale": self.stale, "device": self.trainer.device.type, "precision": trainer.precision, "threads": torch.get_num_threads(),
        }  # fmt: skip
        return tensors, checkpoint.describe(self.config, self.market, **progress)

    def _save_is_due(self) -> bool:
        """A full replay can be gigabytes: writing it every few epochs would take longer than these."""
        return self.saving <= SLOW_SAVE or time.monotonic() - self.saved >= self.saving * (1 / SAVES_SHARE - 1)

    def _save(self, name: str, state=None) -> None:
        begun = time.monotonic()
        tensors, metadata = state or self._state()
        folder, replay = self.run_dir.checkpoints, self.trainer.replay
        with_replay = replay is not None and name == "latest"
        if with_replay:
            replay_files.save(replay, self.config.replay, folder, metadata["steps"])
        checkpoint.save(folder / f"{name}.safetensors", tensors, metadata)
        if with_replay:
            replay_files.clear(folder, metadata["steps"])
        if name == "latest":
            self.saved = time.monotonic()
            self.saving = self.saved - begun

    def _load(self) -> None:
        path = self.run_dir.checkpoints / "latest.safetensors"
        saved = checkpoint.load(path)
        checkpoint.refuse_changes(saved, self.config, self.market)
        try:
            self.trainer.load(saved.tensors)
            self.epochs.load_state_dict({name: saved.tensors[f"epochs/{name}"].numpy() for name in self.epochs.state_dict()})
            self.before, self.started = float(saved.metadata["seconds"]), time.monotonic()
            self.best, self.best_step, self.stale = (saved.metadata[name] for name in ("best", "best_step", "stale"))
        except (KeyError, RuntimeError, ValueError, TypeError) as error:
            raise CheckpointError(f"{path}: lacks what a resume needs ({' '.join(str(error).split())}); train anew") from None
        if self.trainer.replay is not None:
            lacking = replay_files.load(self.trainer.replay, self.run_dir.checkpoints, saved.metadata["steps"])
            if lacking is not None:
                self._warn(lacking)
        threads = saved.metadata.get("threads")
        if self.trainer.device.type == "cpu" and threads != torch.get_num_threads():
            self._warn(
                f"resumed with {torch.get_num_threads()} threads instead of {threads}: sums may round differently than in a run without a break"
            )

    def _seconds(self) -> float:
        return self.before + time.monotonic() - self.started

    def _note(self) -> None:
        """Write what this run really uses into its directory."""
        trainer, market = self.trainer, self.market
        collector = trainer.collector
        used = {"device": str(trainer.device), "precision": trainer.precision, "collector": type(collector).__name__}
        self.run_dir.update(**used, bars_digest=market.bars_digest, features_digest=market.features_digest, source=market.source)
        self.run_dir.log(
            f"{trainer.name} on {trainer.device}, {trainer.precision}, {torch.get_num_threads()} threads, {used['collector']}: "
            f"{collector.episodes} episodes x {collector.steps} steps an epoch"
        )
        self.run_dir.update(sizes=sizes_of(trainer))
        if trainer.replay is not None:
            self.run_dir.log(replay_files.describe(trainer.replay, self.config.replay))

    def _warn(self, line: str) -> None:
        self.run_dir.log(f"warning: {line}")
        _log.warning(line)


def build(config: Config, market: Market, poll=lambda: None, warn: Callable[[str], None] = _log.warning, sizes: dict | None = None):
    """The trainer of config.algorithm on the device and with the collector that the settings ask for, everything compiled.

    What does not fit into memory is reduced, with a warning (trainer.memory); sizes: `sizes_of` the trainer whose checkpoint is to be
    loaded next. A GPU that cannot be used, or whose memory does not do, gives a warning and the CPU path.
    """
    base = load_reward(config.reward.function) if config.reward.function else None
    device = pick_device(config, warn)
    if device.type == "cuda":
        try:
            return _built(config, market, device, base, poll, warn, sizes)
        except Exception as error:  # out of memory, a compiler's and a driver's errors have no common class
            if isinstance(error, UserError) and not isinstance(error, memory.DoesNotFit):
                raise
            warn(f"the GPU cannot be used ({one_line(error)}); training goes on on the CPU path")
            config = _on_cpu(config)
    return _built(config, market, torch.device("cpu"), base, poll, warn, sizes)


def _built(config, market, device, base, poll, warn, sizes):
    config, _, notices = _fitted(config, market, device, sizes)
    for line in notices:
        warn(line)
    if device.type == "cuda" and config.train.memory_limit_gb is not None:
        share = config.train.memory_limit_gb * 1e9 / torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, share), device)
    _trainer(_tiny(config), market, device, base).epoch()  # compiles before the first signal can be lost in a compiler
    return _trainer(config, market, device, base, poll)


def _fitted(config, market, device, sizes):
    """(settings that fit into the memory of `device`, a line on what they take of it, what was reduced)."""
    has = memory.room(device, config.train.memory_limit_gb)
    if sizes:
        same = sizes["device"] == device.type  # a replay is sized for its device, episodes stay wherever they are played
        config = replace(config, {key: value for key, value in sizes.items() if key == "episodes.count" or (same and key in memory.SIZES)})
    fused = config.train.collector != "batched" and why_not_fused(config, market, device) is None
    fitted, notices = memory.fitted(config, len(market), market.features.shape[1], device, has, fused=fused, resumed=bool(sizes))
    found = memory.estimate(fitted, len(market), market.features.shape[1], device, fused=fused)
    return fitted, memory.describe(found, has), notices


def sizes_of(trainer) -> dict:
    """What `build` has to be told to make a trainer that can load this one's state, for meta.json."""
    sizes = {"device": trainer.device.type, "episodes.count": trainer.collector.episodes}
    if trainer.replay is not None:
        dqn = trainer.config.dqn
        sizes |= {"replay.capacity": trainer.replay.capacity, "dqn.batch": dqn.batch, "dqn.accumulate": dqn.accumulate}
    return sizes


def needs(config: Config, market: Market, sizes: dict | None = None) -> str:
    """One line on the memory that a training takes and what is free, or on why it does not fit or is not known."""
    try:
        return _fitted(config, market, pick_device(config, lambda line: None), sizes)[1]
    except Exception as error:  # a driver's errors have no common class; the training itself meets them next, and deals with them
        return one_line(error)


def _trainer(config: Config, market: Market, device: torch.device, base, poll=lambda: None):
    obstacle = why_not_fused(config, market, device)
    if config.train.collector == "fused" and obstacle:
        raise ConfigError(f"train.collector = fused: {obstacle}; use auto or batched")
    fused = config.train.collector != "batched" and not obstacle
    if fused and config.algorithm == "ppo":
        from numba_rl.collect.fused import FusedCollector
        from numba_rl.trainer.fused_ppo import FusedPpo

        return FusedPpo(config, FusedCollector(market, config, device=device, base=base), poll)
    if fused:
        from numba_rl.collect.fused_q import FusedQCollector

        return Dqn(config, FusedQCollector(market, config, device=device, base=base), market.regime, poll)
    collector = BatchedCollector(market, config, device=device, base=base)
    return Dqn(config, collector, market.regime, poll) if config.algorithm == "dqn" else Ppo(config, collector, poll)


def why_not_fused(config: Config, market: Market, device: torch.device) -> str | None:
    """What keeps a training from the fused kernels, or None where they can be used."""
    if device.type != "cuda":
        return "it needs a GPU"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "it needs compute capability 8.0 or newer"
    if config.train.precision not in ("auto", "bf16"):
        return f"its products are bf16, not {config.train.precision}"
    if config.algorithm == "dqn":
        from numba_rl.collect import fused_q

        return fused_q.why_not_fused(config, market.features.shape[1], device)
    if config.reward.curiosity > 0:
        return "curiosity is trained by the batched collector's trainer"
    from numba_rl.collect.fused import EPISODES, plan_for
    from numba_rl.trainer import fused_update

    plan = plan_for(config, market.features.shape[1], device, config.episodes.count or EPISODES)
    if plan is None or not fused_update.fits(config.ppo):
        return "ppo.actor and ppo.critic have no fused kernel of their sizes"
    return None


def _on_cpu(config: Config) -> Config:
    return replace(config, {"train.device": "cpu", "train.collector": "batched", "train.precision": "auto"})


def _tiny(config: Config) -> Config:
    changes = {"episodes.count": 2, "episodes.launch": config.dqn.n_step + 1, "ppo.epochs": 1, "ppo.minibatches": 1}
    return replace(config, changes | {"dqn.updates": 1, "replay.capacity": 1024})


def pick_device(config: Config, warn: Callable[[str], None]) -> torch.device:
    """The device that train.device means on this machine."""
    if config.train.device == "cpu" or gpu.SIMULATED:
        return torch.device("cpu")
    usable = torch.cuda.is_available() and gpu.available()
    if config.train.device == "cuda" and not usable:
        warn(
            "train.device = cuda, but there is no GPU that torch and numba-cuda can both use (`rltrain doctor` says why); using the CPU path"
        )
    return torch.device("cuda" if usable else "cpu")


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


def _shown(step: int, figures: dict[str, float]) -> dict[str, float]:
    """What a progress display shows of an epoch."""
    names = {
        "steps_per_second": "charts/SPS", "reward": "rollout/reward_mean", "approx_kl": "losses/approx_kl", "entropy": "losses/entropy",
        "q": "losses/q_mean", "epsilon": "charts/epsilon",
        "validation_sharpe": "validation/sharpe", "reward_sharpe": "monitor/reward_sharpe",
    }  # fmt: skip
    return {"step": step} | {shown: figures[name] for shown, name in names.items() if name in figures}
