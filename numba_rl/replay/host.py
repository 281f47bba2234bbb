"""The replay in main memory: the interface, the rules and the draws of the one on the device, for machines without a GPU.

It also takes over from a device replay that ran out of memory or whose kernels failed; its batches then still go to the
learner's device.
"""

import numpy as np
import torch

from numba_rl.kernels import replay_host as loops
from numba_rl.kernels import replay_layout as at
from numba_rl.kernels.rank import cumulated_ranks
from numba_rl.kernels.replay_layout import choose_layout
from numba_rl.replay import interface
from numba_rl.replay.interface import Batch, ReplayRules
from numba_rl.replay.state import check_state, pack_state


class HostReplay:
    """A ring of transitions in main memory. device: where batches go and where the arguments of `insert` and `update` come from."""

    def __init__(self, capacity: int, state_width: int, rules: ReplayRules, device="cpu"):
        self.layout = lay = choose_layout(capacity, state_width)
        self.capacity, self.state_width, self.rules = capacity, state_width, rules
        self.device = torch.device(device)
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.mode = at.MODES[rules.mode]
        self.rows = np.zeros((capacity, lay.words), np.int32)
        self.leaves = np.zeros(lay.leaves, np.float32)
        self.sums, self.peaks = np.zeros(lay.nodes), np.zeros(lay.nodes, np.float32)
        self.tops, self.top_peaks = np.zeros(lay.padded_tops), np.zeros(lay.padded_tops, np.float32)
        self.counters = np.zeros(at.COUNTERS, np.int64)
        self.settings = np.array(rules.settings())
        self._order = np.zeros(0, np.int64)
        self._cumulated = cumulated_ranks(capacity, rules.alpha) if self.mode == at.RANK else np.zeros(0)
        self._since_sort = None
        self._batches: dict[tuple[int, torch.dtype], tuple[Batch, Batch]] = {}

    # -- what is stored

    @property
    def size(self) -> int:
        """Filled slots."""
        return min(int(self.counters[at.INSERTED]), self.capacity)

    @property
    def priorities(self) -> torch.Tensor:
        """float32 [capacity] on the CPU: priority of each slot, 0 where nothing was written. A view: do not write to it."""
        return torch.from_numpy(self.leaves)[: self.capacity]

    def total(self) -> float:
        """Sum of all priorities."""
        return float(self.tops.sum())

    # -- the four operations

    def insert(self, states, next_states, actions, rewards, discounts, flags=None, errors=None):
        transitions, errors = interface.check_transitions(
            states, next_states, actions, rewards, discounts, flags, errors, self.state_width, self.device
        )
        count = states.shape[0]
        if count == 0:
            return
        skip = max(count - self.capacity, 0)
        first = (int(self.counters[at.INSERTED]) + skip) % self.capacity
        written = count - skip
        slots = (first + np.arange(written)) % self.capacity
        arrays = [t[skip:].cpu().view(torch.int32).numpy() for t in transitions]
        width, padded = self.state_width, self.layout.padded
        self.rows[slots, :width] = arrays[0]
        self.rows[slots, padded : padded + width] = arrays[1]
        for k in range(4):
            self.rows[slots, 2 * padded + k] = arrays[2 + k]
        peak = self.top_peaks.max() or min(np.float32(1), np.float32(self.rules.max_priority))
        priorities = np.full(written, peak, np.float32)
        if errors is not None:
            loops.first_priorities(errors[skip:].cpu().numpy(), peak, self.settings, self.counters, priorities)
        self.leaves[slots] = priorities
        self._resum(first, written)
        self.counters[at.INSERTED] += count
        self._since_sort = None

    def sample(self, size: int, dtype: torch.dtype = torch.float32) -> Batch:
        batch, given = self._buffers(size, dtype)
        if self.size == 0:
            raise ValueError("nothing to sample: the replay is empty")
        if self.mode == at.RANK and (self._since_sort is None or self._since_sort >= self.rules.resort_interval):
            self.refresh()
        if self._since_sort is not None:
            self._since_sort += 1
        lay = self.layout
        numpy = {name: getattr(batch, name).numpy() for name in ("indices", "raw_weights", "weights", "stamp", "peak")}
        loops.draw(
            self.leaves, self.sums, self.tops, self.top_peaks, lay.leaf_fan, lay.node_fan, self.capacity, self.counters, self.settings,
            self.mode, self._order, self._cumulated, len(self._order), self.rules.seed, *numpy.values(),
        )  # fmt: skip
        loops.gather(
            self.rows, numpy["indices"], lay.padded,
            *(t.view(torch.int32).numpy() for t in (batch.stacked, batch.actions, batch.rewards, batch.discounts, batch.flags)),
        )  # fmt: skip
        if given is not batch:
            given.stacked[:, : lay.padded].copy_(batch.stacked)
            for name in ("actions", "rewards", "discounts", "flags", "weights", "indices", "raw_weights", "stamp", "peak"):
                getattr(given, name).copy_(getattr(batch, name))
        return given

    def update(self, batch: Batch, errors, skip=None):
        errors = interface.check_errors(errors, len(batch), self.device)
        if self.mode != at.UNIFORM and (skip is None or not skip):
            self._update(batch.indices.cpu().numpy(), errors, int(batch.stamp), np.float32(float(batch.peak)))

    def update_slots(self, slots, errors):
        slots = interface.check_slots(slots, self.device)
        errors = interface.check_errors(errors, slots.shape[0], self.device)
        if self.mode != at.UNIFORM and slots.shape[0]:
            self._update(slots.cpu().numpy(), errors, int(self.counters[at.INSERTED]), self.top_peaks.max())

    def locate(self, masses) -> torch.Tensor:
        """int64 [n]: the slot under each mass, float64 [n] of [0, total); a mass at or past the total gives the last one."""
        slots = torch.empty(masses.shape[0], dtype=torch.int64)
        lay = self.layout
        masses = masses.cpu().to(torch.float64).contiguous().numpy()
        loops.locate(self.leaves, self.sums, self.tops, lay.leaf_fan, lay.node_fan, masses, slots.numpy())
        return slots.to(self.device)

    def refresh(self):
        """Sorts the priorities for rank mode: stable, so that equal priorities stay in order of slot. Nothing in other modes."""
        if self.mode == at.RANK:
            priorities = self.leaves[: self.size]
            self._order = np.argsort(-priorities, kind="stable")[: np.count_nonzero(priorities)]
            self._since_sort = 0

    def prepare(self, size: int, dtype: torch.dtype = torch.float32):
        """Makes the buffers for batches of `size` and `dtype`. Changes nothing."""
        self._buffers(size, dtype)

    def batch(self, size: int, dtype: torch.dtype = torch.float32) -> Batch:
        """The buffers that `sample(size, dtype)` writes."""
        return self._buffers(size, dtype)[1]

    # -- saving

    def state_dict(self) -> dict[str, np.ndarray]:
        size = self.size
        since = -1 if self._since_sort is None else self._since_sort
        return pack_state(self.layout, self.rows[:size], self.leaves[:size], self.counters, self.mode, self._order, since)

    def load_state_dict(self, state: dict[str, np.ndarray]):
        rows, priorities, counters, order, since = check_state(state, self.layout, self.mode)
        self.write_rows(0, rows)
        self.restore({"priorities": priorities, "counters": counters, "order": order, "since_sort": np.array([since])})

    def small_state(self) -> dict[str, np.ndarray]:
        """All of `state_dict` but what is in the rows."""
        return {
            "priorities": self.leaves[: self.size].copy(), "counters": self.counters.copy(),
            "shape": np.array([self.capacity, self.state_width, self.mode], np.int64), "order": self._order.copy(),
            "since_sort": np.array([-1 if self._since_sort is None else self._since_sort], np.int64),
        }  # fmt: skip

    def read_rows(self, low: int, high: int) -> np.ndarray:
        """int32 [high - low, words]: those slots as they lie in memory."""
        return self.rows[low:high]

    def write_rows(self, low: int, rows: np.ndarray):
        """Set the slots from `low` on; `restore` must follow."""
        self.rows[low : low + len(rows)] = rows

    def restore(self, small: dict[str, np.ndarray]):
        """Take over a `small_state` of a replay like this, and sum anew."""
        priorities, since = small["priorities"], int(small["since_sort"][0])
        self.leaves[:] = 0
        self.leaves[: len(priorities)] = priorities
        self.counters[:] = small["counters"]
        self._order, self._since_sort = small["order"], None if since < 0 else since
        self._resum(0, self.capacity)

    def rejected(self) -> dict[str, int]:
        """What was rejected so far: counts of nan, infinite, stale and outside, and `last_step`, batches drawn at the last bad error."""
        return interface.rejected_of(self.counters)

    # -- inside

    def _buffers(self, size, dtype):
        """(float32 buffers on the CPU, those of `dtype` on the learner's device), the same where these are float32 on the CPU."""
        if (size, dtype) not in self._batches:
            given = interface.new_batch(size, self.state_width, self.layout.padded, self.device, dtype)
            own = self.device.type != "cpu" or dtype != torch.float32
            batch = interface.new_batch(size, self.state_width, self.layout.padded, "cpu") if own else given
            self._batches[size, dtype] = (batch, given)
        return self._batches[size, dtype]

    def _resum(self, first, count):
        lay = self.layout
        loops.resum_slots(
            first, count, self.leaves, self.sums, self.peaks, self.tops, self.top_peaks, lay.leaf_fan, lay.node_fan, self.capacity
        )

    def _update(self, slots, errors, stamp, peak):
        lay = self.layout
        loops.update(
            slots, errors.cpu().numpy(), stamp, np.float32(peak), self.leaves, self.sums, self.peaks, self.tops, self.top_peaks,
            lay.leaf_fan, lay.node_fan, self.capacity, self.counters, self.settings,
        )  # fmt: skip
