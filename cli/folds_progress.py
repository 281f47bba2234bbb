"""How the trainings of a walk-forward go, one or several at a time: bars on a terminal, plain lines elsewhere."""

import time
from types import TracebackType
from typing import Self

import rich_click as click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from numba_rl.config import Config
from numba_rl.evaluate.fold_division import Division
from numba_rl.evaluate.fold_jobs import Job, Outcome
from numba_rl.evaluate.fold_training import Watch
from rltrain.progress import LINE_SECONDS, PREPARING, Course, best_text, clock


class FoldsProgress(Watch):
    """A context manager that shows what a ``Watch`` is told."""

    def __init__(self, config: Config, total: int, console: Console | None = None) -> None:
        """total: trainings of the walk-forward, the finished ones included."""
        self._settings, self._total = config.train, total
        self.console = console or Console()
        self._left = total
        self._done = self._failed = 0  # in this session
        self._courses: dict[Job, Course] = {}
        self._started = self._last_line = time.monotonic()
        self._live = Live(console=self.console, refresh_per_second=4) if self.console.is_terminal else None

    def starts(self, left: int, division: Division) -> None:
        """Say what is to be done, and how it is divided."""
        self._left = left
        line = f"{left} of {self._total} trainings to do, {self._settings.steps:,} steps each"
        if division.jobs > 1:
            line += f", {division.jobs} side by side with {division.threads} thread{'s' if division.threads != 1 else ''} each"
        self._say(line)
        if division.warning:
            click.echo(f"warning: {division.warning}", err=True)
        if left:
            self._say(PREPARING)

    def begun(self, job: Job) -> None:
        """Show it among those that run."""
        self._courses[job] = Course(self._settings.steps, self._settings.time_limit)
        self._draw()

    def progress(self, job: Job, figures: dict) -> None:
        """Show the state of one training after an epoch."""
        self._courses[job].update(figures)
        now = time.monotonic()
        if self._live is not None:
            self._draw()
        elif now - self._last_line >= LINE_SECONDS:
            self._last_line = now
            for running, course in self._courses.items():
                self._say(f"{running.name}: {course.line()}")

    def ended(self, job: Job, outcome: Outcome) -> None:
        """Say in one line how it ended; a failure goes to standard error."""
        self._courses.pop(job)
        self._failed += outcome.kind == "failed"
        self._done += outcome.kind == "finished"
        self._draw()
        if outcome.kind == "failed":
            click.echo(f"error: {job.name}: {outcome.words}", err=True)
        elif outcome.kind == "finished":
            result = outcome.result
            best = best_text(result.best, self._settings.validate_by)
            self._say(f"{job.name}: {result.steps:,} steps in {clock(result.seconds)}{best}; {self._overall()}")

    def _overall(self) -> str:
        """Trainings done, and about how long the others take at this speed."""
        done = f"{self._total - self._left + self._done} of {self._total} done" + (f", {self._failed} failed" if self._failed else "")
        parts = self._done + sum(course.done for course in self._courses.values())
        left = self._left - self._failed - parts
        if not parts or not left:
            return done
        return f"{done}, about {clock((time.monotonic() - self._started) * left / parts)} left"

    def _say(self, line: str) -> None:
        self.console.print(line, highlight=False, soft_wrap=True)

    def _draw(self) -> None:
        if self._live is not None:
            width = max((len(job.name) for job in self._courses), default=0)
            rows = [course.bar(job.name.ljust(width)) for job, course in self._courses.items()]
            self._live.update(Group(*rows, Text(self._overall())))

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
