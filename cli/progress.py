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

_LINE_SECONDS = 10.0  # between plain lines
_PREPARING = "preparing (the first start compiles, which takes about half a minute)"

# key of the trainer's dict -> (what it is called here, how it is written)
FIGURES = {
    "reward": ("reward", "+.4f"),
    "approx_kl": ("KL", ".4f"),
    "entropy": ("entropy", ".2f"),
    "validation_sharpe": ("validation Sharpe per bar", "+.4f"),
}


class TrainingProgress:
    """A context manager whose ``update`` is the trainer's ``progress``: a dict of "step", "seconds", "steps_per_second", FIGURES.

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
        self._live = Live(Text(_PREPARING), console=self.console, refresh_per_second=4) if self.console.is_terminal else None

    def update(self, figures: Mapping[str, Any]) -> None:
        """Show the state of training after an epoch."""
        self._figures |= {name: float(value) for name, value in figures.items() if isinstance(value, int | float)}
        now = time.monotonic()
        step, seconds = self._figures.get("step", 0.0), self._figures.get("seconds", 0.0)
        done = min(max(step / self.steps, seconds / self.time_limit if self.time_limit else 0.0), 1.0)
        course, figures = self._course(step, seconds), self._shown()
        if self._live is not None:
            row = Table.grid(padding=(0, 1))
            row.add_row(Text(f"{100 * done:3.0f}%"), ProgressBar(total=1.0, completed=done, width=20), Text(course))
            self._live.update(Group(row, Text(figures, overflow="ellipsis", no_wrap=True)))
        elif now - self._last_line >= _LINE_SECONDS or done >= 1.0:
            self._last_line = now
            line = ", ".join(part for part in (course, figures) if part)
            self.console.print(f"{100 * done:3.0f}%  {line}", highlight=False, soft_wrap=True)

    def _course(self, step: float, seconds: float) -> str:
        """Steps, speed and time left."""
        speed = self._figures.get("steps_per_second", 0.0)
        left = [(self.steps - step) / speed] if speed > 0 else []
        if self.time_limit is not None:
            left.append(self.time_limit - seconds)
        parts = [f"{step:,.0f} steps"]
        if speed > 0:
            parts.append(f"{speed:,.0f} steps/s")
        if left:
            parts.append(f"{clock(max(min(left), 0.0))} left")
        return ", ".join(parts)

    def _shown(self) -> str:
        """What learning does."""
        values = {name: self._figures.get(name, math.nan) for name in FIGURES}
        return ", ".join(f"{label} {values[name]:{form}}" for name, (label, form) in FIGURES.items() if math.isfinite(values[name]))

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        else:
            self.console.print(_PREPARING, highlight=False, soft_wrap=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()


def clock(seconds: float) -> str:
    """Seconds as 0:07, 12:30 or 1:02:05."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
