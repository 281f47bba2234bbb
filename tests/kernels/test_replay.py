"""The replay kernels against the float64 reference, over awkward capacities. Without a GPU they run in the simulator."""

import numpy as np
import pytest
import torch
from reference import replay as reference
from replay.helpers import DEVICE, check_rows, check_sums, insert, make, with_priorities

from numba_rl import gpu
from numba_rl.kernels import replay_layout as at
from numba_rl.kernels import replay_update
from numba_rl.kernels.rank import cumulated_ranks
from numba_rl.kernels.replay_layout import Layout, choose_layout, row_bytes
from numba_rl.kernels.replay_rules import beta_at, priority_of, raw_weight, rewritten
from numba_rl.rules import philox

CAPACITIES = [7, 32, 50, 100] if gpu.SIMULATED else [7, 32, 50, 100, 256, 1000, 1024, 100_000]


def uniforms(seed, count, drawn=0):
    """The draws of a batch, by the table in numba_rl/rules/philox.py."""
    words = [philox.bits(np.uint32(seed), np.int32(philox.REPLAY), q, np.int32(0), np.int64(drawn), np.int32(0)) for q in range(count)]
    return np.array(words, np.float64) / 2.0**32


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_random_operations_agree_with_the_reference(capacity):
    rng = np.random.default_rng(capacity)
    replay = make("device", capacity, seed=capacity)
    ring = reference.Ring(capacity, 0.6, 1e-6, 1e6)
    drawn = 0
    for step in range(4 if gpu.SIMULATED else 12):
        n = int(rng.integers(1, min(capacity + capacity // 4, 60) + 1))
        numbers = range(ring.inserted, ring.inserted + n)
        errors = rng.normal(size=n) * 10.0 ** rng.integers(-3, 3, n) if step % 2 else None
        insert(replay, numbers, errors)
        ring.insert(numbers, None if errors is None else errors.astype(np.float32))
        np.testing.assert_allclose(replay.priorities.cpu(), ring.priorities, rtol=1e-6)
        ring.priorities = replay.priorities.cpu().numpy().astype(np.float64)  # float32 powers differ in the last bit
        check_sums(replay)

        count = int(rng.integers(1, 9))
        batch = replay.sample(count)
        expected = reference.slots_at(ring.priorities, reference.stratified(uniforms(capacity, count, drawn), ring.priorities.sum()))
        drawn += count
        beta = reference.beta_at(step, 0.4, 1.0, 100_000)
        slots = batch.indices.cpu().numpy()
        np.testing.assert_array_equal(slots, expected)
        np.testing.assert_allclose(batch.weights.cpu(), reference.weights_of(ring.priorities, slots, ring.size, beta), rtol=2e-6)
        check_rows(batch, ring.items)
        assert float(batch.peak) == ring.priorities.max() and int(batch.stamp) == ring.inserted

        errors = rng.normal(size=count).astype(np.float32)
        replay.update(batch, torch.tensor(errors, device=DEVICE))
        ring.update(slots, errors)
        np.testing.assert_allclose(replay.priorities.cpu(), ring.priorities, rtol=1e-6)
        ring.priorities = replay.priorities.cpu().numpy().astype(np.float64)
        check_sums(replay)
        np.testing.assert_allclose(replay.total(), ring.priorities.sum(), rtol=1e-12)


def test_update_of_any_slots_in_any_order():
    rng = np.random.default_rng(5)
    replay, ring = make("device", 50), reference.Ring(50, 0.6, 1e-6, 1e6)
    insert(replay, range(37))
    ring.insert(range(37))
    slots = rng.integers(-3, 45, 40)
    errors = rng.normal(size=40).astype(np.float32)
    errors[[3, 11]] = np.nan
    errors[[5, 17]] = [np.inf, -np.inf]
    replay.update_slots(torch.tensor(slots, device=DEVICE), torch.tensor(errors, device=DEVICE))
    ring.update(slots, errors)
    np.testing.assert_allclose(replay.priorities.cpu(), ring.priorities, rtol=1e-6)
    rejected = replay.rejected()
    assert {name: rejected[name] for name in ring.rejected} == ring.rejected
    check_sums(replay)


@pytest.mark.skipif(not gpu.SIMULATED, reason="on a GPU the list's length is compiled in; test_replay_gpu.py fills the real one")
def test_update_of_more_samples_than_a_block_lists(monkeypatch):
    monkeypatch.setattr(replay_update, "_LISTED", 4)
    test_update_of_any_slots_in_any_order()
    test_update_sees_only_what_was_not_overwritten()


def test_update_sees_only_what_was_not_overwritten():
    replay, ring = make("device", 50, alpha=1.0), reference.Ring(50, 1.0, 1e-6, 1e6)
    insert(replay, range(70))
    ring.insert(range(70))
    batch = replay.sample(20)
    stamp = ring.inserted
    insert(replay, range(70, 82))
    ring.insert(range(70, 82))
    errors = np.linspace(2, 9, 20).astype(np.float32)
    replay.update(batch, torch.tensor(errors, device=DEVICE))
    ring.update(batch.indices.tolist(), errors, inserted=stamp)
    np.testing.assert_allclose(replay.priorities.cpu(), ring.priorities, rtol=1e-6)
    assert replay.rejected()["stale"] == ring.rejected["stale"] > 0


def test_a_tiny_priority_beside_a_huge_one_keeps_its_share():
    replay = make("device", 32)
    insert(replay, range(32))
    priorities = np.full(32, 1e-6, np.float32)
    priorities[13] = 1e6
    with_priorities(replay, priorities)
    edges = np.concatenate([[0], np.cumsum(priorities.astype(np.float64))])
    masses = torch.tensor((edges[:-1] + edges[1:]) / 2, device=DEVICE)
    assert replay.locate(masses).tolist() == list(range(32))  # in float32 all slots past 13 would coincide


def test_masses_outside_the_total():
    replay = make("device", 7)
    insert(replay, range(5))
    with_priorities(replay, [0.0, 1.0, 0.0, 2.0, 0.0])
    masses = torch.tensor([0.0, 1.0, 3.0 - 1e-12, 3.0, 1e9, -1.0], dtype=torch.float64, device=DEVICE)
    assert replay.locate(masses).tolist() == [1, 3, 3, 3, 3, 1]


def test_rank_draws_follow_the_sorted_order():
    replay = make("device", 32, mode="rank", alpha=0.7, resort_interval=3)
    errors = np.random.default_rng(1).normal(size=20)
    insert(replay, range(20), errors)
    order, p = reference.rank_distribution(replay.priorities.cpu().numpy(), 0.7)
    batch = replay.sample(8)
    expected = np.searchsorted(np.cumsum(p), reference.stratified(uniforms(0, 8), 1.0), side="right")
    np.testing.assert_array_equal(batch.indices.cpu(), order[expected])
    raw = (20 * p[expected]) ** -0.4
    np.testing.assert_allclose(batch.weights.cpu(), raw / raw.max(), rtol=2e-5)
    replay.update(batch, torch.full((8,), 50.0, device=DEVICE))
    replay.sample(4), replay.sample(4)
    assert int(replay._order[0]) == order[0]  # not yet sorted again
    replay.sample(4)
    assert int(replay._order[0]) == batch.indices.min()  # stable: the lowest of the equal slots first


def test_uniform_mode_takes_one_slot_from_each_stratum():
    replay = make("device", 32, mode="uniform")
    insert(replay, range(20))
    batch = replay.sample(10)
    np.testing.assert_array_equal(batch.indices.cpu() // 2, np.arange(10))
    assert (batch.weights == 1).all()
    check_rows(batch, range(20))
    before = replay.priorities.clone()
    replay.update(batch, torch.full((10,), 5.0, device=DEVICE))
    assert torch.equal(replay.priorities, before)


@pytest.mark.parametrize("width", [1, 2, 4, 7, 54, 130])
def test_any_state_width(width):
    replay = make("device", 16, width)
    insert(replay, range(12))
    batch = replay.sample(3)
    check_rows(batch, range(12))
    assert batch.stacked.shape[1] % 4 == 0 and row_bytes(width) >= 4 * (2 * width + 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_prepare_changes_nothing(dtype):
    first, second = make("device", 32, seed=3), make("device", 32, seed=3)
    first.prepare(4, dtype)
    for replay in (first, second):
        insert(replay, range(20), np.arange(20))
    first.prepare(4, dtype)
    assert torch.equal(first.priorities, second.priorities) and first.rejected() == second.rejected()
    assert torch.equal(first.sample(4, dtype).indices, second.sample(4, dtype).indices)


# -- the scalars


def test_priority_rule():
    for error, expected in [(4.0, 2.01), (-4.0, 2.01), (0.0, 0.01), (1e30, 100.0), (1e38, 100.0)]:
        assert abs(priority_of(np.float32(error), 0.5, 0.01, 100.0) - expected) < 1e-5
    assert priority_of(np.float32(0), 0.0, 0.5, 100.0) == 1.5  # 0^0 is 1


def test_weight_of_an_extreme_ratio_is_finite():
    assert np.isfinite(raw_weight(np.float32(1e-45), np.float32(1e-9), np.float32(1)))
    assert raw_weight(np.float32(2), np.float32(0.5), np.float32(0.7)) == 1


@pytest.mark.parametrize("step", [0, 1, 249, 500, 999, 1000, 1001, 2**33])
def test_beta_is_linear_then_constant(step):
    assert abs(beta_at(step, 0.4, 1.0, 1000) - reference.beta_at(step, 0.4, 1.0, 1000)) < 1e-6
    assert beta_at(step, 0.4, 1.0, 1000) <= 1


def test_rewritten_slots():
    for then in (0, 3, 7, 100):
        for now in range(then, then + 12):
            expected = {i % 7 for i in range(then, now)}
            assert {slot for slot in range(7) if rewritten(slot, then, now, 7)} == expected


# -- the layout


@pytest.mark.parametrize("capacity", [1, 31, 1024, 1025, 100_000, 1_000_000, 10_000_000, 42_000_000, 500_000_000])
def test_layout_covers_the_capacity(capacity):
    layout = choose_layout(capacity, 54)
    assert layout.leaves >= capacity > layout.leaves - layout.top_leaves
    assert layout.padded_tops >= layout.tops and layout.padded_tops % 32 == 0
    assert layout.words * 4 == 464


@pytest.mark.parametrize("fans", [(3, 4), (4, 6), (2048, 32), (2, 32)])
def test_impossible_fans_are_refused(fans):
    with pytest.raises(ValueError, match="power of two"):
        Layout(100, 3, *fans, lanes=4)


def test_running_sums_of_ranks():
    np.testing.assert_allclose(cumulated_ranks(4, 1.0), [1, 1.5, 1.5 + 1 / 3, 1.5 + 1 / 3 + 0.25])
    assert at.MODES.keys() == {"proportional", "rank", "uniform"}
