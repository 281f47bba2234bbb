"""`PrioritizedReplay`: one replay that lives on the GPU while it can and in main memory when it must."""

import warnings

import numpy as np
import torch

from numba_rl import gpu
from numba_rl.config import ReplayConfig
from numba_rl.errors import FallbackWarning
from numba_rl.kernels.replay_layout import row_bytes
from numba_rl.replay.device import DeviceReplay
from numba_rl.replay.host import HostReplay
from numba_rl.replay.interface import Batch, ReplayFailure, ReplayRules, auto_capacity
from numba_rl.replay.schedule import BetaSchedule

HOST_CAPACITY = 100_000


class PrioritizedReplay:
    """Experience replay with priorities (Schaul et al. 2016) for any agent that uses torch.

        replay = PrioritizedReplay(1_000_000, state_width=54)
        replay.insert(states, next_states, actions, rewards, discounts, flags)
        batch = replay.sample(1024)
        loss = (batch.weights * td_error.pow(2)).mean()
        replay.update(batch, td_error)

    capacity: slots; None takes what fits (`auto_capacity`; 100,000 without a GPU). state_width: floats of a state, any number.
    device: "auto" (a GPU where there is one), "cuda", "cuda:1" or "cpu": where arguments come from and batches go to. The other
    settings are those of `ReplayRules` and `BetaSchedule`.

    If the GPU's memory does not suffice, or a kernel cannot run, a replay in main memory takes over with a warning, holding
    what was stored; batches still go to `device`.

    In a CUDA graph: call `prepare(batch_size)` first (with the batches' dtype), then capture `sample`, `update` and `insert` freely: cursor, beta and
    random numbers are kept on the device. In rank mode call `refresh()` between graphs.
    """

    def __init__(self, capacity: int | None, state_width: int, *, device: str | torch.device = "auto", mode: str = "proportional",
                 alpha: float = 0.6, eps: float = 1e-6, max_priority: float = 1e6, beta_start: float = 0.4, beta_end: float = 1.0,
                 beta_steps: int = 100_000, resort_interval: int = 100, seed: int = 0):  # fmt: skip
        rules = ReplayRules(mode, alpha, eps, max_priority, BetaSchedule(beta_start, beta_end, beta_steps), resort_interval, seed)
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() and gpu.available() and not gpu.SIMULATED else "cpu"
        device = torch.device(device)
        if capacity is None:
            capacity = (
                auto_capacity(*torch.cuda.mem_get_info(device), row_bytes(state_width, mode)) if device.type == "cuda" else HOST_CAPACITY
            )
        if device.type == "cuda":
            try:
                self.backend = DeviceReplay(capacity, state_width, rules, device)
            except (torch.OutOfMemoryError, ReplayFailure) as error:
                _warn(error, 0)
                self.backend = HostReplay(capacity, state_width, rules, device)
        else:
            self.backend = HostReplay(capacity, state_width, rules, device)

    @classmethod
    def from_config(cls, config: ReplayConfig, state_width: int, *, device="auto", seed: int = 0) -> "PrioritizedReplay":
        """A replay with the settings of the `[replay]` section."""
        return cls(
            config.capacity, state_width, device=device, mode=config.mode, alpha=config.alpha, eps=config.eps,
            max_priority=config.max_priority, beta_start=config.beta_start, beta_end=config.beta_end, beta_steps=config.beta_steps,
            resort_interval=config.resort_interval, seed=seed,
        )  # fmt: skip

    # -- the four operations

    def insert(self, states, next_states, actions, rewards, discounts, flags=None, errors=None):
        """Appends n transitions; the oldest are overwritten. Of more than `capacity` the last are kept. n = 0 does nothing.

        states, next_states: float [n, width]; actions: integer [n]; rewards: float [n]; discounts: float [n] or one number, gamma^k of
        the k steps taken; flags: integer [n], bit 0 terminated, bit 1 truncated (bool: terminated), None for none;
        errors: td errors float [n] for the first priorities; None gives the largest priority now stored (1 in an empty ring).
        Raises ValueError for a wrong shape or device, TypeError for a wrong type.
        """
        self._do("insert", states, next_states, actions, rewards, discounts, flags, errors)

    def sample(self, size: int, dtype: torch.dtype = torch.float32) -> Batch:
        """Draws `size` transitions, one from each of `size` equal strata of the priorities' sum (with replacement between strata).

        dtype: of the states, float32 or bfloat16 (rounded to nearest even; on a GPU of compute capability 8.0 or newer).
        The batch's tensors are reused: they hold until the next `sample` of the same size and dtype. Weights are divided by the batch's
        largest. Slots without a priority are never drawn; if no slot has one, any filled slot is, with weight 1.
        In rank mode the order is sorted at the first draw after an insert and every `resort_interval` batches.
        Raises ValueError for size < 1 or an empty replay, TypeError for another dtype.
        """
        return self._do("sample", size, dtype)

    def update(self, batch: Batch, errors, skip: torch.Tensor | None = None):
        """New priorities from td errors, float [B], for a batch as drawn: |td|^alpha + eps, within [eps, max_priority].

        Slots overwritten since the draw keep their new priority. A slot drawn twice takes the larger. NaN keeps the old priority, an
        infinite error takes the largest priority stored when the batch was drawn; see `rejected`. Nothing in uniform mode.
        skip: float32 scalar on `device`; where it is not 0, as of a step that was not made, nothing is changed or counted.
        """
        self._do("update", batch, errors, skip)

    def update_slots(self, slots, errors):
        """As `update`, for slots of your own choice, integer [n]; those outside the filled ring are ignored and counted."""
        self._do("update_slots", slots, errors)

    # -- the rest

    def prepare(self, size: int, dtype: torch.dtype = torch.float32):
        """Loads the kernels and makes the buffers for `sample(size, dtype)`, so that it can be captured next. Changes nothing stored."""
        self._do("prepare", size, dtype)

    def batch(self, size: int, dtype: torch.dtype = torch.float32) -> Batch:
        """The buffers that `sample(size, dtype)` writes, for whoever builds a graph around them."""
        return self._do("batch", size, dtype)

    def refresh(self):
        """Sorts the ranks now (rank mode)."""
        self._do("refresh")

    def locate(self, masses) -> torch.Tensor:
        """int64 [n]: the slot under each mass, float64 [n], of [0, total); proportional mode's search without the draw."""
        return self._do("locate", masses)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Everything stored, as NumPy arrays (see numba_rl/replay/state.py)."""
        return self.backend.state_dict()

    def load_state_dict(self, state: dict[str, np.ndarray]):
        """Restores a `state_dict` of the same capacity and width, from either kind of replay. Raises CheckpointError if it does not fit."""
        self._do("load_state_dict", state)

    def to_host(self) -> HostReplay:
        """A replay in main memory with the same content; its batches go to this one's device."""
        host = HostReplay(self.capacity, self.state_width, self.backend.rules, self.device)
        host.load_state_dict(self.backend.state_dict())
        return host

    @property
    def capacity(self) -> int:
        return self.backend.capacity

    @property
    def state_width(self) -> int:
        return self.backend.state_width

    @property
    def device(self) -> torch.device:
        """Where arguments come from and batches go to."""
        return self.backend.device

    @property
    def on_host(self) -> bool:
        """Whether the transitions lie in main memory."""
        return isinstance(self.backend, HostReplay)

    @property
    def priorities(self) -> torch.Tensor:
        """float32 [capacity]: priority of each slot, 0 where nothing was written. A view: do not write to it."""
        return self.backend.priorities

    def total(self) -> float:
        """Sum of all priorities (waits for the GPU)."""
        return self.backend.total()

    def rejected(self) -> dict[str, int]:
        """Counts of nan, infinite, stale and outside updates so far, and `last_step`: batches drawn at the last NaN or infinite error."""
        return self.backend.rejected()

    def __len__(self) -> int:
        """Filled slots (waits for the GPU)."""
        return self.backend.size

    def _do(self, operation, *arguments):
        try:
            return getattr(self.backend, operation)(*arguments)
        except (torch.OutOfMemoryError, ReplayFailure) as error:
            if self.on_host or self.backend.capturing():
                raise
            kept = self.backend.size
            self.backend = self.to_host()
            _warn(error, kept)
        return getattr(self.backend, operation)(*arguments)


def _warn(error, kept):
    reason = str(error).splitlines()[0]
    warnings.warn(f"replay moved to main memory with {kept} transitions, and is slower there: {reason}", FallbackWarning, stacklevel=4)
