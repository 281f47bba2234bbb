"""What a benchmark gives: rows of times beside plain torch and the goal, and the machine that they were measured on."""

import os
import platform
import time
from dataclasses import asdict, dataclass, field

import torch

from numba_rl.rundir import versions

GOAL_GPU = "NVIDIA H200"


class OutputError(RuntimeError):
    """What is to be timed gives wrong results: a defect, not a matter of the machine."""


def require(holds: bool, work: str, found: dict[str, float]) -> dict[str, float]:
    """`found`, the errors seen, if they hold; else OutputError."""
    if not holds:
        raise OutputError(
            f"{work} is not timed, since its outputs are wrong: " + ", ".join(f"{name} {value:.3g}" for name, value in found.items())
        )
    return found


@dataclass(frozen=True)
class Row:
    """One piece of work. seconds: median of one call; count, unit: what is done in it; plain: seconds of plain torch for it;
    goal: seconds that it may take on GOAL_GPU; checks: largest errors found before it was timed, by name."""

    work: str
    seconds: float
    count: int
    unit: str
    plain: float | None = None
    goal: float | None = None
    checks: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """`unit` a second."""
        return self.count / self.seconds

    @property
    def missed(self) -> float | None:
        """Share by which the time exceeds the goal, at most 0 where it is met; None without a goal."""
        return None if self.goal is None else self.seconds / self.goal - 1.0


def machine(device: torch.device) -> dict:
    """What the times depend on, for the JSON file."""
    return {
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"CPU path, {platform.processor() or platform.machine()}",
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
        "versions": versions(),
        "date": time.strftime("%Y-%m-%d"),
    }


def as_json(name: str, rows: list[Row], device: torch.device) -> dict:
    """All of a benchmark, for the JSON file."""
    found = [asdict(row) | {"rate": row.rate, "missed": row.missed if device.type == "cuda" else None} for row in rows]
    return {"bench": name, "machine": machine(device), "goals_of": GOAL_GPU, "rows": found}
