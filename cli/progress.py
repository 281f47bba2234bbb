"""How training goes, while it goes: a bar on a terminal, plain lines elsewhere."""

import math
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

LINE_SECONDS = 10.0  # between plain lines
PREPARING = "preparing (the first start compiles, which takes about half a minute)"

# key of the trainer's dict -> (what it is called here, how it is written)
FIGURES = {
    "reward": ("reward", "+.4f"),
    "approx_kl": ("KL", ".4f"),
    "entropy": ("entropy", ".2f"),
    "validation_log_return": ("validation log return", "+.4f"),
    "validation_sharpe": ("validation Sharpe per bar", "+.4f"),
}


def best_text(best: float | None, by: str) -> str:
    """Tail of a sentence that says the best validation figure, if there was one. by: train.validate_by."""
    label, form = FIGURES[f"validation_{by}"]
    return "" if best is None else f", best {label} {best:{form}}"


class Course:
    """How far one training is: ``update`` takes the trainer's figures, a dict of "step", "seconds", "steps_per_second", FIGURES.

    A figure that is not in one call keeps its last value (validation is not run every epoch); one that is not finite
    or was never given is left out.
    """

    def __init__(self, steps: int, time_limit: float | None) -> None:
        """steps, time_limit (seconds, or None): where training ends, whichever comes first."""
        self.steps = steps
        self.time_limit = time_limit
        self._figures: dict[str, float] = {}

    def update(self, figures: Mapping[str, Any]) -> None:
        """Take the state of training after an epoch."""
        self._figures |= {name: float(value) for name, value in figures.items() if isinstance(value, int | float)}

    @property
    def done(self) -> float:
        """The share that is done, 0 to 1."""
        step, seconds = self._figures.get("step", 0.0), self._figures.get("seconds", 0.0)
        return min(max(step / self.steps, seconds / self.time_limit if self.time_limit else 0.0), 1.0)

    @property
    def way(self) -> str:
        """Steps, speed and time left."""
        step, seconds, speed = (self._figures.get(name, 0.0) for name in ("step", "seconds", "steps_per_second"))
        left = [(self.steps - step) / speed] if speed > 0 else []
        if self.time_limit is not None:
            left.append(self.time_limit - seconds)
        parts = [f"{step:,.0f} steps"]
        if speed > 0:
            parts.append(f"{speed:,.0f} steps/s")
        if left:
            parts.append(f"{clock(max(min(left), 0.0))} left")
        return ", ".join(parts)

    @property
    def learning(self) -> str:
        """What learning does."""
        values = {name: self._figures.get(name, math.nan) for name in FIGURES}
        return ", ".join(f"{label} {values[name]:{form}}" for name, (label, form) in FIGURES.items() if math.isfinite(values[name]))

    def line(self) -> str:
        """All of it as a plain line."""
        return f"{100 * self.done:3.0f}%  {', '.join(part for part in (self.way, self.learning) if part)}"

    def bar(self, label: str = "") -> Table:
        """Share, bar and way for a terminal."""
        row = Table.grid(padding=(0, 1))
        row.add_row(*([Text(label)] if label else []), Text(f"{100 * self.done:3.0f}%"), ProgressBar(total=1.0, completed=self.done, width=20), Text(self.way))
        return row


class TrainingProgress:
    """A context manager whose ``update`` is the trainer's ``progress``, which shows one training's ``Course``."""

    def __init__(self, steps: int, time_limit: float | None, console: Console | None = None) -> None:
        """steps, time_limit: as in ``Course``."""
        self.console = console or Console()
        self._course = Course(steps, time_limit)
        self._last_line = time.monotonic()
        self._live = Live(Text(PREPARING), console=self.console, refresh_per_second=4) if self.console.is_terminal else None

    def update(self, figures: Mapping[str, Any]) -> None:
        """Show the state of training after an epoch."""
        self._course.update(figures)
        now = time.monotonic()
        if self._live is not None:
            self._live.update(Group(self._course.bar(), Text(self._course.learning, overflow="ellipsis", no_wrap=True)))
        elif now - self._last_line >= LINE_SECONDS or self._course.done >= 1.0:
            self._last_line = now
            self.console.print(self._course.line(), highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        else:
            self.console.print(PREPARING, highlight=False, soft_wrap=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()


def clock(seconds: float) -> str:
    """Seconds as 0:07, 12:30 or 1:02:05."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
