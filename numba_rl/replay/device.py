"""The replay in GPU memory. Nothing is allocated by `sample` and `update`, and every call can be captured in a CUDA graph.

Everything that changes from call to call (cursor, counters, beta, the place in the random numbers) is in device memory. Two
things do not happen inside a captured graph and are the caller's: the first call of each kernel (`prepare` makes it) and,
in rank mode, the sort (`refresh`).
"""

import numpy as np
import torch

from numba_rl import gpu
from numba_rl.kernels import replay_layout as at
from numba_rl.kernels.early import can_start_early
from numba_rl.kernels.rank import cumulated_ranks
from numba_rl.kernels.replay_insert import launch_insert, launch_resum
from numba_rl.kernels.replay_layout import Layout, choose_layout
from numba_rl.kernels.replay_sample import BatchViews, RingViews, launch_locate, launch_sample, posts_for
from numba_rl.kernels.replay_update import launch_peak, launch_update
from numba_rl.replay import interface
from numba_rl.replay.interface import Batch, ReplayFailure, ReplayRules
from numba_rl.replay.state import check_state, pack_state

_SIMULATED_LANES = 4


class DeviceReplay:
    """A ring of transitions on one GPU (in the simulator: in CPU tensors).

    capacity, state_width: slots, and floats of a state. layout: fans other than the chosen ones, for tests and benchmarks.
    sample_warps, update_warps: warps of a block; None: what suits a GPU. See `PrioritizedReplay` for the methods' meaning.
    """

    def __init__(self, capacity: int, state_width: int, rules: ReplayRules, device, layout: Layout | None = None,
                 sample_warps: int | None = None, update_warps: int | None = None):  # fmt: skip
        device = torch.device(device)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        if (device.type == "cuda") == gpu.SIMULATED:
            raise ValueError(f"device replay needs {'CPU tensors in the simulator' if gpu.SIMULATED else 'a CUDA device'}, got {device}")
        self.layout = layout or choose_layout(capacity, state_width, _SIMULATED_LANES if gpu.SIMULATED else 32)
        self.capacity, self.state_width, self.rules, self.device = capacity, state_width, rules, device
        self.mode = at.MODES[rules.mode]
        self._sample_warps = sample_warps or (1 if gpu.SIMULATED else 8)
        self._update_warps = update_warps or (1 if gpu.SIMULATED else None)
        self._multiprocessors = 1 if gpu.SIMULATED else torch.cuda.get_device_properties(device).multi_processor_count
        self._early = device.type == "cuda" and can_start_early(torch.cuda.get_device_capability(device))
        self._batches: dict[tuple[int, torch.dtype], Batch] = {}
        self._streams = {}
        self._since_sort = None  # batches since the last sort; None: something was inserted since
        self._known_filled = False

        def zeros(shape, dtype):
            return torch.zeros(shape, dtype=dtype, device=device)

        lay = self.layout
        ranks = capacity if self.mode == at.RANK else 1
        self.rows = zeros((capacity, lay.words), torch.int32)
        self.leaves = zeros(lay.leaves, torch.float32)
        self.sums, self.peaks = zeros(lay.nodes, torch.float64), zeros(lay.nodes, torch.float32)
        self.tops, self.top_peaks = zeros(lay.padded_tops, torch.float64), zeros(lay.padded_tops, torch.float32)
        self.counters = zeros(at.COUNTERS, torch.int64)
        self.settings = torch.tensor(rules.settings(), dtype=torch.float64, device=device)
        self._arrivals, self._posts = zeros(1, torch.int32), zeros(posts_for(self._multiprocessors), torch.int64)
        self._order, self._ranked = zeros(ranks, torch.int64), zeros(1, torch.int64)
        self._sorted = zeros(ranks, torch.float32)
        self._cumulated = zeros(1, torch.float64)
        if self.mode == at.RANK:
            self._cumulated = torch.from_numpy(cumulated_ranks(capacity, rules.alpha)).to(device)
        self._peak, self._never = zeros(1, torch.float32), zeros(1, torch.float32)
        view = gpu.view
        self._views = RingViews(
            leaves=view(self.leaves), bits=view(self.leaves.view(torch.int32)), sums=view(self.sums), peaks=view(self.peaks),
            tops=view(self.tops), top_peaks=view(self.top_peaks), rows=view(self.rows.view(torch.int64)), words=view(self.rows),
            counters=view(self.counters), settings=view(self.settings), arrivals=view(self._arrivals), posts=view(self._posts),
            order=view(self._order), cumulated=view(self._cumulated), ranked=view(self._ranked),
        )  # fmt: skip
        self._peak_view = view(self._peak)

    # -- what is stored

    @property
    def size(self) -> int:
        """Filled slots (waits for the GPU)."""
        return min(int(self.counters[at.INSERTED]), self.capacity)

    @property
    def priorities(self) -> torch.Tensor:
        """float32 [capacity]: priority of each slot, 0 where nothing was written. A view: do not write to it."""
        return self.leaves[: self.capacity]

    def total(self) -> float:
        """Sum of all priorities (waits for the GPU)."""
        return float(self.tops.sum())

    # -- the four operations

    def insert(self, states, next_states, actions, rewards, discounts, flags=None, errors=None):
        transitions, errors = interface.check_transitions(
            states, next_states, actions, rewards, discounts, flags, errors, self.state_width, self.device
        )
        count = states.shape[0]
        if count == 0:
            return
        self._insert(transitions, errors, count)
        self._since_sort = None
        self._known_filled = self._known_filled or not self.capturing()

    def sample(self, size: int, dtype: torch.dtype = torch.float32) -> Batch:
        batch = self.batch(size, dtype)
        if not self.capturing():
            if not self._known_filled:
                if self.size == 0:
                    raise ValueError("nothing to sample: the replay is empty")
                self._known_filled = True
            if self.mode == at.RANK and (self._since_sort is None or self._since_sort >= self.rules.resort_interval):
                self.refresh()
        if self._since_sort is not None:
            self._since_sort += 1
        self._draw(batch)
        return batch

    def update(self, batch: Batch, errors, skip=None):
        errors = interface.check_errors(errors, len(batch), self.device)
        if self.mode != at.UNIFORM:
            self._update(gpu.view(batch.indices), errors, gpu.view(batch.stamp), gpu.view(batch.peak), skip)

    def update_slots(self, slots, errors):
        slots = interface.check_slots(slots, self.device)
        errors = interface.check_errors(errors, slots.shape[0], self.device)
        if self.mode == at.UNIFORM or slots.shape[0] == 0:
            return
        self._launch(launch_peak, self.layout, self._views, self._peak_view)
        self._update(gpu.view(slots), errors, self._views.counters, self._peak_view, None)  # stamped now: nothing is stale

    def locate(self, masses) -> torch.Tensor:
        """int64 [n]: the slot under each mass, float64 [n] of [0, total); a mass at or past the total gives the last one."""
        slots = torch.empty(masses.shape[0], dtype=torch.int64, device=self.device)
        if len(slots):
            masses = masses.to(torch.float64).contiguous()
            self._launch(launch_locate, self.layout, self._views, gpu.view(masses), gpu.view(slots), warps=self._sample_warps)
        return slots

    def refresh(self):
        """Sorts the priorities for rank mode: stable, so that equal priorities stay in order of slot. Nothing in other modes."""
        if self.mode == at.RANK:
            torch.sort(self.priorities, descending=True, stable=True, out=(self._sorted, self._order))
            self._ranked.copy_(torch.count_nonzero(self._sorted))
            self._since_sort = 0

    # -- buffers and graphs

    def batch(self, size: int, dtype: torch.dtype = torch.float32) -> Batch:
        """The buffers that `sample(size, dtype)` writes; made at the first call for each size and dtype."""
        if (size, dtype) not in self._batches:
            batch = interface.new_batch(size, self.state_width, self.layout.padded, self.device, dtype)
            states = batch.stacked.view(torch.int64) if dtype == torch.float32 else batch.stacked.view(torch.int32).view(torch.uint32)
            bits = [gpu.view(t.view(torch.int32)) for t in (batch.rewards, batch.discounts)]
            batch.views = BatchViews(
                stacked=gpu.view(states), actions=gpu.view(batch.actions), rewards=bits[0],
                discounts=bits[1], flags=gpu.view(batch.flags), slots=gpu.view(batch.indices), raw=gpu.view(batch.raw_weights),
                weights=gpu.view(batch.weights), stamp=gpu.view(batch.stamp), peak=gpu.view(batch.peak),
            )  # fmt: skip
            self._batches[size, dtype] = batch
        return self._batches[size, dtype]

    def prepare(self, size: int, dtype: torch.dtype = torch.float32):
        """Compiles and loads every kernel and makes the buffers for batches of `size` and `dtype`, so that a capture can follow.
        Changes nothing."""
        batch, before, since = self.batch(size, dtype), self.counters.clone(), self._since_sort
        one = torch.zeros((1, self.layout.words), dtype=torch.int32, device=self.device)
        states = one[:, : self.state_width].contiguous()
        self._insert((states, states, *(one[:, k].contiguous() for k in range(4))), None, 0)
        self._draw(batch)
        self._launch(launch_peak, self.layout, self._views, self._peak_view)
        rejected = torch.full((size,), float("nan"), device=self.device)
        self._update(batch.views.slots, rejected, batch.views.stamp, batch.views.peak, None)
        self.counters.copy_(before)
        self._since_sort = since

    # -- saving

    def state_dict(self) -> dict[str, np.ndarray]:
        size = self.size
        rows = self.rows[:size].cpu().numpy()
        ranked = int(self._ranked)
        return pack_state(
            self.layout, rows, self.leaves[:size].cpu().numpy(), self.counters.cpu().numpy(), self.mode,
            self._order[:ranked].cpu().numpy() if self.mode == at.RANK else np.zeros(0, np.int64),
            -1 if self._since_sort is None else self._since_sort,
        )  # fmt: skip

    def load_state_dict(self, state: dict[str, np.ndarray]):
        rows, priorities, counters, order, since = check_state(state, self.layout, self.mode)
        self.rows.zero_()
        self.write_rows(0, rows)
        self.restore({"priorities": priorities, "counters": counters, "order": order, "since_sort": np.array([since])})

    def small_state(self) -> dict[str, np.ndarray]:
        """All of `state_dict` but what is in the rows."""
        ranked = int(self._ranked) if self.mode == at.RANK else 0
        return {
            "priorities": self.leaves[: self.size].cpu().numpy(), "counters": self.counters.cpu().numpy(),
            "shape": np.array([self.capacity, self.state_width, self.mode], np.int64), "order": self._order[:ranked].cpu().numpy(),
            "since_sort": np.array([-1 if self._since_sort is None else self._since_sort], np.int64),
        }  # fmt: skip

    def read_rows(self, low: int, high: int) -> np.ndarray:
        """int32 [high - low, words]: those slots as they lie in memory."""
        return self.rows[low:high].cpu().numpy()

    def write_rows(self, low: int, rows: np.ndarray):
        """Set the slots from `low` on; `restore` must follow."""
        self.rows[low : low + len(rows)].copy_(torch.from_numpy(rows))

    def restore(self, small: dict[str, np.ndarray]):
        """Take over a `small_state` of a replay like this, and sum anew."""
        priorities, order, since = small["priorities"], small["order"], int(small["since_sort"][0])
        self.leaves.zero_()
        self.leaves[: len(priorities)].copy_(torch.from_numpy(priorities))
        self.counters.copy_(torch.from_numpy(small["counters"]))
        if self.mode == at.RANK:
            self._order[: len(order)].copy_(torch.from_numpy(order))
            self._ranked.fill_(len(order))
        self._since_sort = None if since < 0 else since
        self._known_filled = len(priorities) > 0
        self._launch(launch_resum, self.layout, self._views, 0, self.capacity, 0, warps=self._sample_warps)

    def rejected(self) -> dict[str, int]:
        """What was rejected so far: counts of nan, infinite, stale and outside, and `last_step`, batches drawn at the last bad error."""
        return interface.rejected_of(self.counters.cpu().numpy())

    # -- inside

    def _insert(self, transitions, errors, count):
        views = [gpu.view(t.view(torch.int32)) for t in transitions]
        errors = gpu.view(errors) if errors is not None else None
        self._launch(launch_insert, self.layout, self._views, views, errors, count, warps=self._sample_warps)

    def _draw(self, batch):
        how = {"warps": self._sample_warps, "multiprocessors": self._multiprocessors}
        how |= {"bf16": batch.stacked.dtype == torch.bfloat16, "early": self._early}
        self._launch(launch_sample, self.layout, self.mode, self._views, batch.views, self.rules.seed, **how)

    def _update(self, slots, errors, stamp, peak, skip):
        skip = self._never if skip is None else skip.reshape(1)
        how = {"warps": self._update_warps, "early": self._early}
        self._launch(launch_update, self.layout, self._views, slots, gpu.view(errors), stamp, peak, gpu.view(skip), **how)

    def _launch(self, launch, *arguments, **options):
        try:
            launch(*arguments, stream=self._stream(), **options)
        except Exception as error:
            raise ReplayFailure(f"replay kernel {launch.__name__} failed: {type(error).__name__}: {error}") from error

    def _stream(self):
        if gpu.SIMULATED:
            return 0
        handle = torch.cuda.current_stream(self.device).cuda_stream
        if handle not in self._streams:
            self._streams[handle] = gpu.stream(handle)
        return self._streams[handle]

    def capturing(self) -> bool:
        """Whether calls are being recorded into a CUDA graph."""
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
