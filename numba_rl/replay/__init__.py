"""Experience replay: a ring of transitions with priorities, on the GPU or in main memory, usable without the rest of the package."""

from numba_rl.kernels.replay_layout import TERMINATED, TRUNCATED, row_bytes
from numba_rl.replay.interface import Batch, ReplayFailure, ReplayRules, auto_capacity
from numba_rl.replay.prioritized import PrioritizedReplay
from numba_rl.replay.schedule import BetaSchedule

__all__ = [
    "TERMINATED",
    "TRUNCATED",
    "Batch",
    "BetaSchedule",
    "PrioritizedReplay",
    "ReplayFailure",
    "ReplayRules",
    "auto_capacity",
    "row_bytes",
]
