"""How training goes, while it goes: a bar on a terminal, plain lines elsewhere."""

import math
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

_LINE_SECONDS = 10.0  # between plain lines

# key of the trainer's dict -> (what it is called here, how it is written)
FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "steps_per_second": ("steps/s", lambda value: f"{value:,.0f}"),
    "reward": ("reward", lambda value: f"{value:+.4f}"),
    "approx_kl": ("KL", lambda value: f"{value:.4f}"),
    "entropy": ("entropy", lambda value: f"{value:.2f}"),
    "validation_sharpe": ("validation Sharpe per bar", lambda value: f"{value:+.4f}"),
}


class TrainingProgress:
    """A context manager whose ``update`` is the trainer's ``progress``: a dict with "step" and any of FIGURES.

    A figure that is not in one call keeps its last value (validation is not run every epoch); one that is not finite
    or was never given is left out.
    """

    def __init__(self, steps: int, time_limit: float | None, console: Console | None = None) -> None:
        self.steps = steps
        self.time_limit = time_limit
        self.console = console or Console()
        self._figures: dict[str, float] = {}
        self._started = self._last_line = time.monotonic()
        self._bar: Progress | None = None
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.percentage:>3.0f}%"), BarColumn(bar_width=20), TextColumn("{task.description}"), console=self.console
            )
            self._task = self._bar.add_task("starting", total=steps)

    def update(self, figures: Mapping[str, Any]) -> None:
        """Show the state of training after an epoch."""
        self._figures |= {name: float(value) for name, value in figures.items() if isinstance(value, int | float)}
        now = time.monotonic()
        step = int(self._figures.get("step", 0))
        if self._bar is not None:
            self._bar.update(self._task, completed=step, description=self._text(step, now))
        elif now - self._last_line >= _LINE_SECONDS or step >= self.steps:
            self._last_line = now
            self.console.print(f"{min(100 * step / self.steps, 100):3.0f}%  {self._text(step, now)}", highlight=False, soft_wrap=True)

    def _text(self, step: int, now: float) -> str:
        parts = [f"{step:,} of {self.steps:,} steps"]
        for name, (label, form) in FIGURES.items():
            value = self._figures.get(name, math.nan)
            if math.isfinite(value):
                parts.append(f"{form(value)} {label}" if name == "steps_per_second" else f"{label} {form(value)}")
        left = self._seconds_left(step, now)
        if left is not None:
            parts.append(f"{clock(left)} left")
        return ", ".join(parts)

    def _seconds_left(self, step: int, now: float) -> float | None:
        speed = self._figures.get("steps_per_second", 0.0)
        left = [max(self.steps - step, 0) / speed] if speed > 0 else []
        if self.time_limit is not None:
            left.append(max(self.time_limit - (now - self._started), 0.0))
        return min(left, default=None)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()


def clock(seconds: float) -> str:
    """Seconds as 0:07, 12:30 or 1:02:05."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
