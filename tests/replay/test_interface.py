"""What users meet: capacity, arguments, saving, and the replay that moves to main memory when the GPU fails."""

import warnings

import numpy as np
import pytest
import torch
from replay.helpers import DEVICE, KINDS, check_rows, check_sums, insert, items, make

from numba_rl import gpu
from numba_rl.config import ReplayConfig
from numba_rl.errors import CheckpointError
from numba_rl.replay import Batch, BetaSchedule, PrioritizedReplay, ReplayFailure, ReplayRules, auto_capacity, row_bytes
from numba_rl.replay import device as device_module
from numba_rl.replay import prioritized as prioritized_module

both = pytest.mark.parametrize("kind", KINDS)


def test_capacity_of_a_card():
    gb, row = 10**9, 500
    assert auto_capacity(140 * gb, 140 * gb, row) == 28 * gb // row  # a fifth
    assert auto_capacity(4 * gb, 4 * gb, row) == gb // row  # 1 GB where a fifth is less
    assert auto_capacity(1 * gb, 4 * gb, row) == gb // 2 // row  # never more than half of what is free
    assert auto_capacity(10 * gb, 140 * gb, row) == 5 * gb // row
    with pytest.raises(ValueError, match="no room"):
        auto_capacity(900, 10**9, row)


def test_hundred_thousand_items_take_about_fifty_megabytes():
    assert 45e6 < 100_000 * row_bytes(54) < 55e6
    assert row_bytes(54, "rank") > row_bytes(54)


def test_public_use():
    replay = PrioritizedReplay(100, state_width=3, device="cpu", seed=1, alpha=1.0, eps=0.0)
    assert replay.on_host and replay.capacity == 100 and replay.state_width == 3 and replay.device.type == "cpu"
    replay.insert(*items(range(40)))
    replay.insert(*items(range(40, 60))[:4], 0.99)
    batch = replay.sample(16)
    assert isinstance(batch, Batch) and len(batch) == 16 and len(replay) == 60 and replay.batch(16) is batch
    assert batch.terminated.tolist() == [bool(f & 1) for f in batch.flags.tolist()]
    replay.update(batch, torch.full((16,), 2.0))
    assert (replay.priorities[batch.indices] == 2).all()
    assert replay.total() == 60 + len(set(batch.indices.tolist()))
    replay.update_slots(torch.tensor([3], dtype=torch.int32), torch.tensor([7.0]))
    assert replay.priorities[3] == 7 and replay.rejected()["nan"] == 0
    assert int(replay.locate(torch.tensor([0.0]))[0]) == 0
    replay.prepare(16)
    replay.refresh()


def test_settings_come_from_the_configuration():
    config = ReplayConfig(capacity=77, mode="rank", alpha=0.3, beta_start=0.2, beta_steps=5, max_priority=9.0)
    rules = PrioritizedReplay.from_config(config, 4, device="cpu", seed=3).backend.rules
    assert rules == ReplayRules("rank", 0.3, 1e-6, 9.0, BetaSchedule(0.2, 1.0, 5), 100, 3)
    assert PrioritizedReplay.from_config(ReplayConfig(), 4, device="cpu").capacity == 100_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "best"},
        {"alpha": 1.5},
        {"eps": -1.0},
        {"max_priority": 0.0},
        {"beta_start": 2.0},
        {"beta_steps": 0},
        {"resort_interval": 0},
    ],
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValueError, match="got"):
        PrioritizedReplay(10, 2, device="cpu", **wrong)


@both
def test_same_seed_same_draws_on_host_and_device(kind):
    host, other = make("host", 50, seed=11), make(kind, 50, seed=11)
    for replay in (host, other):
        insert(replay, range(64), np.random.default_rng(0).normal(size=64))
    for _ in range(2):
        first, second = host.sample(5), other.sample(5)
        np.testing.assert_array_equal(first.indices, second.indices.cpu())
        np.testing.assert_allclose(first.weights, second.weights.cpu(), rtol=1e-5)
        for replay, batch in ((host, first), (other, second)):
            replay.update(batch, torch.arange(5.0, device=replay.device))
    different = make("host", 50, seed=12)
    insert(different, range(64), np.random.default_rng(0).normal(size=64))
    assert different.sample(64).indices.tolist() != host.sample(64).indices.tolist()


@both
@pytest.mark.parametrize("mode", ["proportional", "rank", "uniform"])
@pytest.mark.parametrize("count", [20, 70])
def test_a_restored_replay_goes_on_as_if_nothing_had_happened(kind, mode, count):
    errors = np.random.default_rng(2).normal(size=count)
    first, second = make(kind, 50, mode=mode, seed=5), make(kind, 50, mode=mode, seed=5)
    insert(first, range(count), errors)
    batch = first.sample(4)
    first.update(batch, torch.tensor([0.5, float("nan"), 2.0, 0.1], device=first.device))
    second.load_state_dict(first.state_dict())
    assert second.rejected() == first.rejected() and second.size == first.size
    for replay in (first, second):
        insert(replay, [count], [0.3]) if mode != "rank" else None
    a, b = first.sample(4), second.sample(4)
    for name in ("states", "next_states", "actions", "rewards", "discounts", "flags", "weights", "indices"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name
    for replay, batch in ((first, a), (second, b)):
        replay.update(batch, torch.arange(4.0, device=replay.device))
    assert torch.equal(first.priorities, second.priorities) and first.total() == second.total()


@both
def test_state_that_does_not_fit_is_refused(kind):
    saved = make(kind, 20)
    insert(saved, range(10))
    state = saved.state_dict()
    with pytest.raises(CheckpointError, match="20 slots of width 3, this replay has 21"):
        make(kind, 21).load_state_dict(state)
    with pytest.raises(CheckpointError, match="lacks rewards"):
        make(kind, 20).load_state_dict({name: array for name, array in state.items() if name != "rewards"})
    with pytest.raises(CheckpointError, match="damaged: actions"):
        make(kind, 20).load_state_dict(state | {"actions": state["actions"][:-1]})
    with pytest.raises(CheckpointError, match="damaged: priorities"):
        make(kind, 20).load_state_dict(state | {"priorities": state["priorities"] * np.nan})
    with pytest.raises(CheckpointError, match="damaged: order"):
        make(kind, 20).load_state_dict(state | {"order": np.array([11])})


@both
@pytest.mark.parametrize("mode", ["proportional", "uniform"])
@pytest.mark.parametrize("width", [5, 54, 60, 130])
def test_a_bfloat16_batch_is_the_float32_one_rounded(kind, mode, width):
    plain, rounded = make(kind, 16, width, mode=mode, seed=2), make(kind, 16, width, mode=mode, seed=2)
    states = torch.randn(2, 12, width, generator=torch.Generator().manual_seed(0))
    states[0, :, 0], states[1, :, -1] = 1 + 2.0**-8, 1 + 3 * 2.0**-8  # ties: down and up to the even one
    states[0, :6, 1], states[0, 6:, 1] = -3.4e38, 1e-40  # past the largest number, and below the least normal one
    for replay in (plain, rounded):
        _, _, *others = items(range(12), width, replay.device)
        replay.insert(*states.to(replay.device), *others, errors=torch.arange(12.0, device=replay.device))
    for _ in range(2):
        wanted, found = plain.sample(3), rounded.sample(3, torch.bfloat16)
        for name in ("states", "next_states"):
            one, other = getattr(wanted, name).bfloat16(), getattr(found, name)
            assert torch.equal(other.contiguous().view(torch.int16), one.view(torch.int16)), f"{name}, bit for bit"
        for name in ("actions", "rewards", "discounts", "flags", "weights", "indices", "stamp", "peak"):
            assert torch.equal(getattr(found, name), getattr(wanted, name)), name
        for replay, batch in ((plain, wanted), (rounded, found)):
            replay.update(batch, torch.tensor([3.0, 0.1, 7.0], device=replay.device))
    assert torch.equal(plain.priorities, rounded.priorities)
    assert found.stacked.shape[1] == -(-width // 8) * 8 and (found.stacked[:, width:] == 0).all()
    assert torch.equal(found.stacked[3:, :width], found.next_states), "views"
    assert rounded.batch(3, torch.bfloat16) is found and rounded.batch(3).states.dtype == torch.float32


def on_device(capacity=32, **settings):
    """A public replay whose transitions lie in kernels' memory."""
    replay = PrioritizedReplay(capacity, 3, device="cpu", **settings)
    replay.backend = make("device", capacity, **settings)
    return replay


@pytest.mark.parametrize("operation", ["sample", "insert", "update"])
def test_main_memory_takes_over_when_a_kernel_fails(monkeypatch, operation):
    replay, twin = on_device(seed=4), make("host", 32, seed=4)
    for each in (replay, twin):
        each.insert(*items(range(20), device=each.device), errors=torch.arange(20.0, device=each.device))
    batch, expected = replay.sample(4), twin.sample(4)

    def broken(*arguments, **options):
        raise RuntimeError("launch out of resources")

    monkeypatch.setattr(device_module, f"launch_{operation}", broken)
    errors = torch.arange(4.0)
    calls = {
        "sample": lambda each, _: each.sample(4),
        "insert": lambda each, _: each.insert(*items(range(20, 30), device=each.device)),
        "update": lambda each, drawn: each.update(drawn, errors.to(each.device)),
    }
    with pytest.warns(RuntimeWarning, match=r"replay moved to main memory with 20 transitions.*launch out of resources"):
        calls[operation](replay, batch)
    calls[operation](twin, expected)
    assert replay.on_host
    torch.testing.assert_close(replay.priorities.cpu(), twin.priorities)
    batch, expected = replay.sample(4), twin.sample(4)
    assert batch.indices.tolist() == expected.indices.tolist() and batch.states.device.type == torch.device(DEVICE).type
    check_rows(batch, range(30))
    check_sums(replay.backend)


def test_out_of_memory_takes_over_and_keeps_what_is_stored(monkeypatch):
    replay = on_device()
    replay.insert(*items(range(20), device=replay.device))

    def full(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(replay.backend, "batch", full)
    with pytest.warns(RuntimeWarning, match="20 transitions.*out of memory"):
        batch = replay.sample(8)
    check_rows(batch, range(20))


def test_wrong_arguments_do_not_move_the_replay():
    replay = on_device()
    replay.insert(*items(range(20), device=replay.device))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="size 0"):
            replay.sample(0)
        with pytest.raises(TypeError, match="float32 or bfloat16, got float16"):
            replay.sample(4, torch.float16)
        with pytest.raises(ValueError, match="shape"):
            replay.insert(*items(range(4), width=2, device=replay.device))
    assert not replay.on_host


def test_a_failure_on_the_host_is_not_hidden(monkeypatch):
    replay = PrioritizedReplay(8, 3, device="cpu")
    replay.insert(*items(range(4)))

    def broken(size, dtype):
        raise ReplayFailure("no")

    monkeypatch.setattr(replay.backend, "sample", broken)
    with pytest.raises(ReplayFailure):
        replay.sample(2)


def test_to_host_copies():
    replay = on_device()
    replay.insert(*items(range(20), device=replay.device))
    host = replay.to_host()
    replay.insert(*items(range(20, 25), device=replay.device))
    assert host.size == 20 and replay.backend.size == 25 and not replay.on_host


@pytest.mark.skipif(not gpu.SIMULATED, reason="a GPU is present")
def test_auto_device_without_a_gpu_is_the_host():
    assert PrioritizedReplay(10, 2).on_host


def test_no_room_on_the_card_at_the_start_falls_back(monkeypatch):
    def full(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")

    monkeypatch.setattr(prioritized_module, "DeviceReplay", full)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with pytest.warns(RuntimeWarning, match="0 transitions.*out of memory"):
        replay = PrioritizedReplay(10, 2, device="cuda")
    assert replay.on_host and replay.device == torch.device("cuda", 0)
