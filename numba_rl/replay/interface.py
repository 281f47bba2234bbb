"""What a replay takes and gives: the batch, its rules, the checks of its inputs, and how large it may be.

Both replays, on the device and on the host, follow this page; `PrioritizedReplay` (see the package) chooses between them.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from numba_rl.kernels import replay_layout as at
from numba_rl.replay.schedule import BetaSchedule

_GB = 10**9


class ReplayFailure(RuntimeError):
    """A kernel could not be compiled or launched; what is stored may still be readable."""


@dataclass(frozen=True)
class ReplayRules:
    """Settings of a replay.

    mode: "proportional" (P ~ priority), "rank" (P ~ 1 / rank^alpha) or "uniform". alpha, eps, max_priority: a td error becomes the
    priority |td|^alpha + eps, within [eps, max_priority]. beta: schedule of the importance exponent. resort_interval: batches between
    two sorts in rank mode. seed: of the draws, 32 bits.
    """

    mode: str = "proportional"
    alpha: float = 0.6
    eps: float = 1e-6
    max_priority: float = 1e6
    beta: BetaSchedule = field(default_factory=BetaSchedule)
    resort_interval: int = 100
    seed: int = 0

    def __post_init__(self):
        if self.mode not in at.MODES:
            raise ValueError(f"replay mode must be one of {', '.join(at.MODES)}, got {self.mode!r}")
        if not (0 <= self.alpha <= 1 and self.eps >= 0 and self.max_priority > self.eps):
            raise ValueError(
                f"replay needs alpha in [0, 1], eps >= 0 and max_priority > eps, got {self.alpha}, {self.eps}, {self.max_priority}"
            )
        if self.resort_interval < 1:
            raise ValueError(f"resort_interval must be at least 1, got {self.resort_interval}")

    def settings(self) -> list[float]:
        """The numbers that kernels read, in the order of replay_layout."""
        return [self.alpha, self.eps, self.max_priority, self.beta.start, self.beta.end, float(self.beta.steps)]


@dataclass
class Batch:
    """B transitions. The tensors belong to the replay and are written again by its next `sample` of the same size and dtype.

    states, next_states: float32 or, where that was asked for, bfloat16 [B, width], views of `stacked`
    stacked: their dtype, [2 B, padded width]: the states, then the next states, for one forward pass over both; rows are padded with
        zeros to a multiple of 4, in bfloat16 of 8
    actions: int32 [B];  rewards, discounts: float32 [B] (the discount is gamma^k of the k steps really taken)
    flags: int32 [B], bit 0 terminated, bit 1 truncated
    weights: float32 [B], importance weights in (0, 1], the largest is 1
    indices: int64 [B], the slots
    """

    states: torch.Tensor
    next_states: torch.Tensor
    stacked: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    discounts: torch.Tensor
    flags: torch.Tensor
    weights: torch.Tensor
    indices: torch.Tensor
    raw_weights: torch.Tensor  # float32 [B], before the division
    stamp: torch.Tensor  # int64 [1], transitions ever inserted when the batch was drawn
    peak: torch.Tensor  # float32 [1], largest priority stored then
    views: Any = None  # the same as kernel arguments

    def __len__(self) -> int:
        return self.indices.shape[0]

    @property
    def terminated(self) -> torch.Tensor:
        """bool [B]: no bootstrap from the next state."""
        return (self.flags & at.TERMINATED).bool()


def new_batch(size: int, state_width: int, padded: int, device, dtype: torch.dtype = torch.float32) -> Batch:
    """Zeroed buffers for `size` samples. padded: columns of a float32 state; dtype: of the states."""
    if size < 1:
        raise ValueError(f"a batch needs at least one sample, got size {size}")
    if dtype not in (torch.float32, torch.bfloat16):
        raise TypeError(f"a batch's states are float32 or bfloat16, got {str(dtype).removeprefix('torch.')}")
    columns = padded if dtype == torch.float32 else -(-padded // 8) * 8
    stacked = torch.zeros((2 * size, columns), dtype=dtype, device=device)
    empty = {"float": torch.float32, "int": torch.int32, "long": torch.int64}

    def make(kind, n=size):
        return torch.zeros(n, dtype=empty[kind], device=device)

    return Batch(
        states=stacked[:size, :state_width], next_states=stacked[size:, :state_width], stacked=stacked,
        actions=make("int"), rewards=make("float"), discounts=make("float"), flags=make("int"), weights=make("float"),
        indices=make("long"), raw_weights=make("float"), stamp=make("long", 1), peak=make("float", 1),
    )  # fmt: skip


def _tensor(name, value, shape, dtype, device, kinds):
    """`value` as a contiguous, detached tensor of `dtype` on `device`; converted where nothing is lost in meaning, else refused."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} must be a torch tensor, got {type(value).__name__}")
    if value.device != device:
        raise ValueError(f"{name} is on {value.device}, the replay is on {device}; move it with .to({str(device)!r})")
    if tuple(value.shape) != shape:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(value.shape)}")
    if value.dtype not in kinds:
        raise TypeError(f"{name} must be {' or '.join(str(k).removeprefix('torch.') for k in kinds)}, got {value.dtype}")
    if value.is_cuda:  # the caller may drop it at once: its memory is not given away while this stream still has to read it
        value.record_stream(torch.cuda.current_stream(value.device))
    return value.detach().to(dtype).contiguous()


_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_INTEGERS = (torch.int32, torch.int64, torch.int16, torch.uint8, torch.bool)


def check_transitions(states, next_states, actions, rewards, discounts, flags, errors, state_width, device):
    """The arguments of `insert` as contiguous tensors of the ring's types; n is read off the states. Raises ValueError or TypeError.

    Strided and gradient-carrying tensors are copied or detached; other float types are converted. discounts may be one number.
    """
    if not isinstance(states, torch.Tensor) or states.dim() != 2:
        raise ValueError(f"states must be a tensor of shape (n, {state_width}), got {getattr(states, 'shape', type(states).__name__)}")
    n = states.shape[0]
    if isinstance(discounts, int | float):
        discounts = torch.full((n,), float(discounts), device=device)
    if flags is None:
        flags = torch.zeros(n, dtype=torch.int32, device=device)
    checked = (
        _tensor("states", states, (n, state_width), torch.float32, device, _FLOATS),
        _tensor("next_states", next_states, (n, state_width), torch.float32, device, _FLOATS),
        _tensor("actions", actions, (n,), torch.int32, device, _INTEGERS),
        _tensor("rewards", rewards, (n,), torch.float32, device, _FLOATS),
        _tensor("discounts", discounts, (n,), torch.float32, device, _FLOATS),
        _tensor("flags", flags, (n,), torch.int32, device, _INTEGERS),
    )
    return checked, None if errors is None else check_errors(errors, n, device)


def check_errors(errors, n, device):
    """td errors float32 [n] on `device`, detached and contiguous."""
    return _tensor("td errors", errors, (n,), torch.float32, device, _FLOATS)


def check_slots(slots, device):
    """Slots int64 [n] on `device`."""
    shape = tuple(slots.shape[:1]) if isinstance(slots, torch.Tensor) else (0,)
    return _tensor("slots", slots, shape, torch.int64, device, (torch.int64, torch.int32))


def auto_capacity(free: int, total: int, row_bytes: int) -> int:
    """Slots for a card: up to 20% of its memory, or 1 GB where 20% is less, and never more than half of what is free.

    free, total: bytes of the card; row_bytes: bytes a slot (`replay_layout.row_bytes`). Raises ValueError if not one slot fits.
    """
    slots = int(min(max(total // 5, _GB), free // 2) // row_bytes)
    if slots < 1:
        raise ValueError(f"no room for a replay: {free} bytes are free and half of them do not hold one transition of {row_bytes} bytes")
    return slots


def rejected_of(counters) -> dict[str, int]:
    """The rejects among the counters, by name."""
    names = {"nan": at.NAN, "infinite": at.INFINITE, "stale": at.STALE, "outside": at.OUTSIDE, "last_step": at.LAST_BAD}
    return {name: int(counters[place]) for name, place in names.items()}
