"""Walk-forward with retraining: for every fold and seed a training that ends before its test begins.

Trainings run one after the other in this process, or evaluate.jobs of them side by side (``fold_workers``): with the same threads
each, the numbers are the same. What is finished is not run again on a resume; one that fails does not hold up the others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.data.windows import Fold
from numba_rl.evaluate.fold_division import Division, divide
from numba_rl.evaluate.fold_jobs import Job, Outcome, Task, attempt, is_finished, jobs, task_of
from numba_rl.evaluate.fold_workers import side_by_side
from numba_rl.rundir import RunDir
from numba_rl.signals import StopRequest


class Watch:
    """Is told how the trainings go; this one keeps quiet."""

    def starts(self, left: int, division: Division) -> None:
        """`left` trainings are to be done, divided so."""

    def begun(self, job: Job) -> None:
        """A training begins."""

    def progress(self, job: Job, figures: dict) -> None:
        """The trainer's figures after an epoch."""

    def ended(self, job: Job, outcome: Outcome) -> None:
        """A training has ended, in whatever way."""


@dataclass
class Trained:
    """What came of all trainings: the signal that ended them early, or None; why some failed; how many were not begun for it."""

    signal: str | None = None
    failed: dict[Job, str] = field(default_factory=dict)
    not_begun: int = 0


def train_folds(
    run: RunDir,
    config: Config,
    market: Market,
    folds: Sequence[Fold],
    *,
    stop: StopRequest | None = None,
    watch: Watch | None = None,
) -> Trained:
    """Train what is not finished.

    Where two trainings fail for the same reason, word for word, no more are begun: the reason is not one fold's.
    UserError: the run is of other windows.
    """
    stop, watch = stop or StopRequest(), watch or Watch()
    run.folds.mkdir(exist_ok=True)
    run.update(bars_digest=market.bars_digest, source=market.source, folds=len(folds), seeds=config.evaluate.seeds)
    left = [job for job in jobs(folds, config) if not is_finished(job, run)]
    division = divide(config, market, len(left))
    watch.starts(len(left), division)
    trained = Trained(not_begun=len(left))

    def begun(job: Job) -> None:
        trained.not_begun -= 1
        watch.begun(job)

    def ended(job: Job, outcome: Outcome) -> bool:
        """Whether further trainings may begin."""
        watch.ended(job, outcome)
        if outcome.kind == "failed":
            trained.failed[job] = outcome.words
        return len(set(trained.failed.values())) == len(trained.failed)

    tasks = (task_of(job, run, config, market, division.threads) for job in left)
    if division.jobs == 1:
        _one_by_one(tasks, stop, begun, watch.progress, ended)
    else:
        side_by_side(tasks, division.jobs, stop, begun=begun, progress=watch.progress, ended=ended)
    trained.signal = stop.requested
    return trained


def _one_by_one(tasks: Iterator[Task], stop: StopRequest, begun, progress, ended) -> None:
    # The request is not looked at before the first training does: until then there is nothing to save, and a signal ends the command.
    for task in tasks:
        begun(task.job)
        outcome = attempt(task, stop, lambda figures, job=task.job: progress(job, figures))
        if not ended(task.job, outcome) or stop.requested is not None:
            return
