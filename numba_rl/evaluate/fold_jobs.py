"""The trainings of a walk-forward: one for every fold and seed, each into a run directory RUN/folds/FOLD-SEED of its own.

A task carries all that a training may see: its market ends where the fold's training bars end, wherever it is trained.
"""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from numba_rl import settings
from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.data.windows import Fold, Range
from numba_rl.errors import UserError
from numba_rl.evaluate.backtest import play_policy
from numba_rl.evaluate.folds import training_market
from numba_rl.evaluate.metrics import compute_metrics
from numba_rl.evaluate.validation import validator
from numba_rl.rundir import RunDir, fallbacks, is_run, read_meta
from numba_rl.signals import StopRequest
from numba_rl.trainer import session
from numba_rl.trainer.checkpoint import load_policy

IN_SAMPLE_BARS = 20_000  # the last bars of the fitted ones that a policy is played on, to compare with its test


class Job(NamedTuple):
    """One training: the fold's number and ranges, and the seed."""

    number: int
    fold: Fold
    seed: int

    @property
    def name(self) -> str:
        """What it is called before people."""
        return f"fold {self.number}, seed {self.seed}"

    def path(self, run: RunDir) -> Path:
        """Where it leaves its run directory."""
        return run.folds / f"{self.number:03d}-{self.seed}"


@dataclass(frozen=True)
class Task:
    """A job with its settings (seed and threads its own) and the market that it may see."""

    job: Job
    path: Path
    config: Config
    market: Market


class Outcome(NamedTuple):
    """How a training ended; `words`, one line, say why it failed."""

    kind: Literal["finished", "interrupted", "failed"]
    words: str = ""
    result: session.Result | None = None


def jobs(folds: Sequence[Fold], config: Config) -> list[Job]:
    """All trainings in the order in which they begin: the first seed through all folds, then the next seed."""
    first = config.train.seed
    return [Job(number, fold, seed) for seed in range(first, first + config.evaluate.seeds) for number, fold in enumerate(folds)]


def is_finished(job: Job, run: RunDir) -> bool:
    """Whether its training ended and its choice of checkpoint is noted. UserError: the directory is of another fold."""
    path = job.path(run)
    if not is_run(path):
        return False
    meta = read_meta(path)
    noted = meta.get("fold")
    if noted is not None and noted["ranges"] != _ranges(job.fold):
        raise UserError(f"{path}: is of other windows than evaluate.* gives now; use a new --out")
    return noted is not None and meta["status"] == "finished"


def fallbacks_of(every: Sequence[Job], run: RunDir) -> list[str]:
    """What made trainings go on without a GPU that they were to use: a line for each reason, with the trainings that it befell."""
    befell: dict[str, list[str]] = {}
    for job in every:
        if is_run(job.path(run)):
            for line in dict.fromkeys(fallbacks(job.path(run))):
                befell.setdefault(line, []).append(job.name)
    return [f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {line}" for line, names in befell.items()]


def task_of(job: Job, run: RunDir, config: Config, market: Market, threads: int | None) -> Task:
    """What a training needs. A training that goes on keeps the threads it began with, so that its sums round as before."""
    path = job.path(run)
    begun = settings.read_toml(path / "config.toml").train.threads if _is_begun(path) else None
    own = settings.replace(config, {"train.seed": job.seed, "train.threads": begun or threads})
    return Task(job, path, own, training_market(market, job.fold, own))


def attempt(task: Task, stop: StopRequest, progress) -> Outcome:
    """Train, or go on; a failure is told in one line, and that of the program itself is in the training's log.txt in full."""
    try:
        result = _train(task, stop, progress)
    except UserError as error:
        return Outcome("failed", str(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, other trainings can go on
        words = " ".join(f"{type(error).__name__}: {error}".split())
        return Outcome("failed", f"internal failure: {words} (the traceback is in {task.path / 'log.txt'})")
    return Outcome("interrupted" if result.reason == "interrupted" else "finished", result=result)


def _train(task: Task, stop: StopRequest, progress) -> session.Result:
    path, seen = task.path, task.market
    resume = _is_begun(path)
    with RunDir.open(path) if resume else RunDir.create(path, task.config, overwrite=is_run(path)) as directory:
        if resume:
            directory.begin()
        try:
            result = session.train(
                task.config,
                directory,
                seen,
                stop=stop,
                progress=progress,
                resume=resume,
                validate=validator(seen, task.config, directory.fall_back),
            )
            if result.reason == "interrupted":
                directory.finish("interrupted", stop.requested)
            else:
                directory.update(fold=_note(task, directory, result))
        except UserError:
            raise
        except Exception:
            directory.log(traceback.format_exc())
            raise
    return result


def _note(task: Task, directory: RunDir, result: session.Result) -> dict:
    """What is to be known of a finished training: which checkpoint was chosen, and how it did on bars that it was fitted on."""
    seen = task.market
    checkpoint = "best" if (directory.checkpoints / "best.safetensors").exists() else "final"
    policy = load_policy(directory.checkpoints / f"{checkpoint}.safetensors")
    fitted = Range(max(seen.train.start, seen.train.stop - IN_SAMPLE_BARS), seen.train.stop)
    in_sample = compute_metrics(play_policy(seen, [fitted], policy, task.config, names=["in sample"])[0])
    note = {
        "number": task.job.number,
        "seed": task.job.seed,
        "ranges": _ranges(task.job.fold),
        "checkpoint": checkpoint,
        "steps": result.steps,
    }
    return note | {"reason": result.reason, "validation": result.best, "in_sample": in_sample, "in_sample_bars": fitted.bars}


def _is_begun(path: Path) -> bool:
    return is_run(path) and (path / "checkpoints" / "latest.safetensors").exists()


def _ranges(fold: Fold) -> dict[str, list[int]]:
    return {name: list(span) for name, span in fold._asdict().items()}
