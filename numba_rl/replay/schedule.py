"""The importance exponent beta over training: linear from `start` to `end`, then constant.

The value is a function of the number of batches drawn and of nothing else, so it cannot compound or pass the end, and a
resumed run, which restores that number, goes on where it was (Schaul et al. 2016, section 3.4).
"""

from dataclasses import dataclass

from numba_rl.kernels.replay_rules import beta_at


@dataclass(frozen=True)
class BetaSchedule:
    """start, end in [0, 1]; steps >= 1, counted in batches drawn."""

    start: float = 0.4
    end: float = 1.0
    steps: int = 100_000

    def __post_init__(self):
        if not (0 <= self.start <= 1 and 0 <= self.end <= 1 and self.steps >= 1):
            raise ValueError(f"beta needs start and end in [0, 1] and steps >= 1, got {self.start}, {self.end}, {self.steps}")

    def at(self, step: int) -> float:
        """The exponent after `step` batches, as the kernels compute it (float32)."""
        return float(beta_at(step, self.start, self.end, self.steps))
