"""Replays of both kinds under one roof: on a GPU where there is one, else the kernels run in the simulator with narrow warps."""

import torch

from numba_rl import gpu
from numba_rl.kernels.replay_layout import Layout
from numba_rl.replay import BetaSchedule, ReplayRules
from numba_rl.replay.device import DeviceReplay
from numba_rl.replay.host import HostReplay

KINDS = ("host", "device")
DEVICE = "cpu" if gpu.SIMULATED else "cuda"


def make(kind, capacity, width=3, *, beta=None, warps=None, fans=(4, 4), **rules):
    """A replay of `kind`. Simulated warps have two lanes, and small fans give small rings several tops."""
    rules = ReplayRules(beta=beta or BetaSchedule(), **rules)
    if kind == "host":
        return HostReplay(capacity, width, rules)
    layout = Layout(capacity, width, *fans, lanes=2) if gpu.SIMULATED else None
    warps = None if gpu.SIMULATED else warps
    return DeviceReplay(capacity, width, rules, DEVICE, layout=layout, update_warps=warps)


def items(numbers, width=3, device="cpu"):
    """Transitions whose every field tells the item's number: arguments of `insert` up to the flags."""
    number = torch.as_tensor(numbers, dtype=torch.float32)
    column = torch.arange(width) / 100
    states = number[:, None] + column
    whole = number.to(torch.int32)
    fields = (states, states + 0.5, whole % 45, number + 0.25, 1 / (1 + number), whole % 4)
    return tuple(field.to(device) for field in fields)


def insert(replay, numbers, errors=None):
    """Inserts items by number."""
    numbers = list(numbers)
    errors = None if errors is None else torch.as_tensor(errors, dtype=torch.float32, device=replay.device)
    replay.insert(*items(numbers, replay.state_width, replay.device), errors=errors)


def check_rows(batch, number_of):
    """That every sample of the batch is one whole item; number_of[slot] is the item's number."""
    numbers = [number_of[slot] for slot in batch.indices.tolist()]
    width = batch.states.shape[1]
    expected = items(numbers, width)
    found = (batch.states, batch.next_states, batch.actions, batch.rewards, batch.discounts, batch.flags)
    for want, got in zip(expected, found, strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=0, atol=0)
    assert (batch.stacked[:, width:] == 0).all()


def with_priorities(replay, priorities):
    """Gives slots 0 .. n - 1 of a replay with n items these priorities."""
    state = replay.state_dict()
    state["priorities"] = torch.as_tensor(priorities, dtype=torch.float32).numpy()
    replay.load_state_dict(state)
    return replay


def check_sums(replay):
    """That every level is the sum and the maximum of the one below it, to the bit where float64 sums are exact."""
    lay = replay.layout
    leaves, sums, tops, peaks, top_peaks = (
        torch.as_tensor(a).cpu() for a in (replay.leaves, replay.sums, replay.tops, replay.peaks, replay.top_peaks)
    )
    groups = leaves.double().view(-1, lay.leaf_fan)
    torch.testing.assert_close(sums, groups.sum(1), rtol=1e-14, atol=0)
    torch.testing.assert_close(peaks.double(), groups.max(1).values, rtol=0, atol=0)
    torch.testing.assert_close(tops[: lay.tops], sums.view(-1, lay.node_fan).sum(1), rtol=1e-14, atol=0)
    torch.testing.assert_close(top_peaks[: lay.tops], peaks.view(-1, lay.node_fan).max(1).values, rtol=0, atol=0)
    assert (leaves[replay.capacity :] == 0).all() and (tops[lay.tops :] == 0).all()
