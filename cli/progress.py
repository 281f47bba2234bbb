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
    """A context manager whose ``update`` is the trainer's ``progress``: a dict with "step", "seconds" and any of FIGURES.

    A figure that is not in one call keeps its last value (validation is not run every epoch); one that is not finite
    or was never given is left out.
    """

    def __init__(self, steps: int, time_limit: float | None, console: Console | None = None) -> None:
        """steps, time_limit (seconds, or None): where training ends, whichever comes first."""
        self.steps = steps
        self.time_limit = time_limit
        self.console = console or Console()
        self._figures: dict[str, float] = {}
        self._last_line = time.monotonic()
        self._bar: Progress | None = None
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.percentage:>3.0f}%"), BarColumn(bar_width=20), TextColumn("{task.description}"), console=self.console
            )
            self._task = self._bar.add_task("preparing", total=1.0)

    def update(self, figures: Mapping[str, Any]) -> None:
        """Show the state of training after an epoch."""
        self._figures |= {name: float(value) for name, value in figures.items() if isinstance(value, int | float)}
        now = time.monotonic()
        step, seconds = self._figures.get("step", 0.0), self._figures.get("seconds", 0.0)
        done = min(max(step / self.steps, seconds / self.time_limit if self.time_limit else 0.0), 1.0)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=self._text(step, seconds))
        elif now - self._last_line >= _LINE_SECONDS or done >= 1.0:
            self._last_line = now
            self.console.print(f"{100 * done:3.0f}%  {self._text(step, seconds)}", highlight=False, soft_wrap=True)

    def _text(self, step: float, seconds: float) -> str:
        parts = [f"{step:,.0f} steps"]
        for name, (label, form) in FIGURES.items():
            value = self._figures.get(name, math.nan)
            if math.isfinite(value):
                parts.append(f"{form(value)} {label}" if name == "steps_per_second" else f"{label} {form(value)}")
        left = self._seconds_left(step, seconds)
        return ", ".join(parts if left is None else [*parts, f"{clock(left)} left"])

    def _seconds_left(self, step: float, seconds: float) -> float | None:
        speed = self._figures.get("steps_per_second", 0.0)
        left = [(self.steps - step) / speed] if speed > 0 else []
        if self.time_limit is not None:
            left.append(self.time_limit - seconds)
        return max(min(left), 0.0) if left else None

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
