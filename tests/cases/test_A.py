"""A-01 .. A-13: prioritized replay, on the host and in the kernels (the simulator draws less, it is slow)."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from reference import replay as reference
from replay.helpers import KINDS, check_rows, check_sums, insert, make, with_priorities
from scipy import stats

from numba_rl import gpu
from numba_rl.kernels import replay_layout as at
from numba_rl.replay import BetaSchedule

CASES = Path(__file__).parent
both = pytest.mark.parametrize("kind", KINDS)


def case(name):
    return json.loads((CASES / name / "input.json").read_text())


def less(kind, many, few):
    """How often to repeat: the simulator gets few."""
    return few if kind == "device" and gpu.SIMULATED else many


def draw(replay, total, size):
    """Slots of `total` draws in batches of `size`, and the smallest and largest weight."""
    slots, low, high = [], 1.0, 0.0
    for _ in range(total // size):
        batch = replay.sample(size)
        slots.append(batch.indices.cpu().numpy().copy())
        low, high = min(low, float(batch.weights.min())), max(high, float(batch.weights.max()))
    return np.concatenate(slots), low, high


def as_td(replay, values):
    return torch.tensor(values, dtype=torch.float32, device=replay.device)


def set_slots(replay, slots, errors):
    replay.update_slots(torch.tensor(slots, device=replay.device), as_td(replay, errors))


@both
@pytest.mark.parametrize("filled", [2048, 2047, 1])
def test_a01_full_power_of_two(kind, filled):
    given = case("A-01")
    for seed in range(less(kind, 1000 if kind == "host" else 50, 2)):
        replay = make(kind, given["capacity"], 1, seed=seed, alpha=given["alpha"], beta=BetaSchedule(given["beta"]), fans=(32, 16))
        insert(replay, range(filled))
        with_priorities(replay, np.full(filled, given["priority_all"]))
        batch = replay.sample(1)
        assert 0 <= int(batch.indices[0]) < filled
        assert abs(float(batch.weights[0]) - 1) < 1e-6


@both
def test_a03_zero_priorities_are_never_drawn(kind):
    given = case("A-03")
    replay = make(kind, given["capacity"])
    insert(replay, range(given["filled"]))
    with_priorities(replay, given["priorities"])
    total = replay.total()
    assert total == 5
    masses = torch.tensor(given["u"], dtype=torch.float64, device=replay.device) * total
    slots = replay.locate(masses).tolist()
    assert slots[:2] == [1, 1] and slots[2] in (1, 4) and slots[3:] == [4, 4, 4]
    if kind == "host" or not gpu.SIMULATED:
        drawn, low, _ = draw(replay, given["draws"], 1000)
        counts = np.bincount(drawn, minlength=8)
        assert counts[[0, 2, 3, 5, 6, 7]].sum() == 0 and low > 0
        assert 597_000 <= counts[1] <= 603_000 and 397_000 <= counts[4] <= 403_000
    else:
        assert set(draw(replay, 16, 4)[0]) == {1, 4}


@both
def test_a03_no_priority_at_all_draws_filled_slots_uniformly(kind):
    replay = make(kind, 8, eps=0)
    insert(replay, range(6))
    with_priorities(replay, np.zeros(6))
    batch = replay.sample(6)  # one from each sixth of the filled slots
    assert batch.indices.tolist() == [0, 1, 2, 3, 4, 5] and (batch.weights == 1).all()


@both
@pytest.mark.parametrize(("capacity", "priority"), [(5, 2.0), (6, 0.8)])
def test_a05_capacity_no_power_of_two(kind, capacity, priority):
    replay = make(kind, capacity)
    insert(replay, range(capacity))
    with_priorities(replay, np.full(capacity, priority))
    masses = torch.tensor([(k + 0.5) * priority for k in range(capacity)], dtype=torch.float64, device=replay.device)
    assert replay.locate(masses).tolist() == list(range(capacity))


def thousand(kind):
    priorities = np.loadtxt(CASES / "A-05" / "priorities_1000.csv", delimiter=",", skiprows=1)[:, 1]
    replay = make(kind, 1000, 1, fans=(16, 8))
    insert(replay, range(1000))
    return with_priorities(replay, priorities), priorities


@both
def test_a05_thousand_masses(kind):
    replay, _ = thousand(kind)
    table = np.loadtxt(CASES / "A-05" / "expected_1000.csv", delimiter=",", skiprows=1)
    table = table[: less(kind, len(table), 20)]
    assert replay.locate(torch.tensor(table[:, 0], device=replay.device)).tolist() == table[:, 1].astype(int).tolist()


@pytest.mark.parametrize("kind", ["host", pytest.param("device", marks=pytest.mark.gpu)])
def test_a05_two_million_draws(kind):
    replay, priorities = thousand(kind)
    counts = np.bincount(draw(replay, 2_000_000, 1000)[0], minlength=1000)
    assert stats.chisquare(counts, priorities / priorities.sum() * counts.sum()).pvalue > 1e-4


@both
@pytest.mark.parametrize("beta", [0.4, 0.0, 1.0])
def test_a06_weights(kind, beta):
    given = case("A-06")
    replay = make(kind, given["capacity"], alpha=given["alpha"], eps=given["eps"], beta=BetaSchedule(beta, beta))
    insert(replay, range(given["filled"]))
    set_slots(replay, list(range(5)), given["td_error"])
    priorities = replay.priorities.cpu().numpy()
    np.testing.assert_allclose(priorities, [0.669754, 1.285425, 1.742862, 2.307397, 0.01, 0, 0, 0], atol=1e-6)
    batch = replay.sample(less(kind, 4096, 10))
    slots = batch.indices.cpu().numpy()
    np.testing.assert_allclose(batch.weights.cpu(), reference.weights_of(priorities, slots, 5, beta), atol=1e-5)
    raw = dict(zip(slots, batch.raw_weights.tolist(), strict=True))
    if beta == 0.4:
        expected = {0: 1.264017, 1: 0.973868, 2: 0.862211, 3: 0.770673, 4: 6.793896}
        assert all(abs(raw[slot] - expected[slot]) < 1e-5 for slot in raw) and {1, 2, 3} <= raw.keys()
        chosen = np.array([raw[slot] for slot in given["batch"]])
        np.testing.assert_allclose(chosen / chosen.max(), [1.0, 0.791352, 0.885347, 0.791352], atol=1e-5)
    if beta == 0:
        assert (batch.weights == 1).all()
    if beta == 1 and len(raw) == 5:
        mean = sum(raw[slot] * priorities[slot] for slot in range(5)) / priorities.sum()
        assert abs(mean - 1) < 1e-5


@both
def test_a07_new_items_take_the_largest_priority(kind):
    given = case("A-07")
    replay = make(kind, 4, alpha=given["alpha"], eps=given["eps"])
    insert(replay, [0])
    assert replay.priorities[0] == 1.0  # the first item ever
    set_slots(replay, [0], [given["td"]])
    insert(replay, [1])
    np.testing.assert_allclose(replay.priorities[:2].cpu(), [2.01, 2.01], atol=1e-6)
    for largest in given["max_cases"]:
        fresh = make(kind, 4)
        insert(fresh, [0])
        with_priorities(fresh, [largest])
        insert(fresh, [1])
        assert fresh.priorities[1] == np.float32(largest)
    # the current maximum: an outlier that is overwritten hands its priority to the item that overwrites it, once
    set_slots(replay, [0, 1], [given["outlier"], 0.0])
    insert(replay, range(2, 6))
    stored = replay.priorities.cpu()
    assert torch.isfinite(stored).all() and stored[1] == stored.max() == 1000.01
    set_slots(replay, [0, 1, 2, 3], [1.0] * 4)
    insert(replay, [6])
    np.testing.assert_allclose(replay.priorities[2].cpu(), 1.01, atol=1e-6)


@both
def test_a08_overwritten_slots_keep_the_new_priority(kind):
    given = case("A-08")
    replay = make(kind, given["capacity"], alpha=1.0, eps=0.0)
    insert(replay, range(given["filled"]))
    batch = replay.sample(6)  # equal priorities: one slot a stratum
    assert batch.indices.tolist() == [0, 1, 2, 3, 4, 5]
    insert(replay, range(6, 6 + given["appended"]))
    td = [1.0] * 6
    for slot, priority in zip(given["sampled"], given["new_priorities"], strict=True):
        td[slot] = priority
    replay.update(batch, as_td(replay, td))
    assert replay.priorities.tolist() == [1, 1, 1, 1, 7, 8]
    assert replay.rejected()["stale"] == 3
    check_sums(replay)


@both
def test_a08_a_whole_round_of_the_ring(kind):
    replay = make(kind, 6, alpha=1.0, eps=0.0)
    insert(replay, range(6))
    batch = replay.sample(6)
    insert(replay, range(6))
    replay.update(batch, as_td(replay, [5.0] * 6))
    assert replay.priorities.tolist() == [1] * 6 and replay.rejected()["stale"] == 6


@both
def test_a10_more_items_than_slots(kind):
    given = case("A-10")
    first = None
    for _ in range(less(kind, 100, 2)):
        replay = make(kind, given["capacity"])
        insert(replay, range(given["items"]), np.arange(given["items"]))
        kept = [16, 17, 18, 19, 20, 13, 14, 15]
        state = replay.state_dict()
        assert state["counters"][at.INSERTED] % 8 == 5 and replay.size == 8
        check_rows(replay.sample(4), kept)
        np.testing.assert_allclose(state["priorities"], reference.priorities_of(kept, 0.6, 1e-6, 1e6), rtol=1e-6)
        check_sums(replay)
        first = first or state
        assert all(np.array_equal(first[name], state[name]) for name in state)


@both
@pytest.mark.parametrize("warps", [4, 16])
def test_a11_the_largest_of_duplicates(kind, warps):
    given = case("A-11")
    replay = make(kind, 4, alpha=1.0, eps=0.0, warps=warps)
    insert(replay, range(4))
    for _ in range(less(kind, 1000, 3)):
        with_priorities(replay, given["priorities"])
        set_slots(replay, given["idx"], given["td"])
        assert replay.priorities.tolist() == [1, 4, 1, 2]
        assert replay.total() == 8
    check_sums(replay)


def test_a12_beta():
    beta = BetaSchedule(0.4, 1.0, 1000)
    steps = [0, 250, 500, 1000, 1001, 50_000, 2**40]
    np.testing.assert_allclose([beta.at(step) for step in steps], [0.4, 0.55, 0.7, 1, 1, 1, 1], atol=1e-6)
    assert max(beta.at(step) for step in range(990, 1010)) <= 1


@both
@pytest.mark.parametrize(("step", "beta"), [(0, 0.4), (250, 0.55), (500, 0.7), (1000, 1.0), (50_000, 1.0)])
def test_a12_beta_after_resume(kind, step, beta):
    saved = make(kind, 4, beta=BetaSchedule(0.4, 1.0, 1000))
    insert(saved, range(4))
    state = with_priorities(saved, [1.0, 2.0, 3.0, 4.0]).state_dict()
    state["counters"][at.BATCHES] = step
    replay = make(kind, 4, beta=BetaSchedule(0.4, 1.0, 1000))
    replay.load_state_dict(state)
    batch = replay.sample(2)
    expected = reference.raw_weights(state["priorities"], batch.indices.cpu().numpy(), 4, beta)
    np.testing.assert_allclose(batch.raw_weights.cpu(), expected, rtol=1e-6)
    assert replay.state_dict()["counters"][at.BATCHES] == step + 1


@both
def test_a13_bad_errors(kind):
    given = case("A-13")
    replay = make(kind, given["capacity"], alpha=given["alpha"], eps=given["eps"])
    insert(replay, range(given["filled"]))
    replay.sample(2)
    set_slots(replay, given["idx"], [float(value) for value in given["td"]])
    np.testing.assert_allclose(replay.priorities.cpu(), [1, 1, 0.669754, 0.01, 1, 1, 1, 1], atol=1e-6)
    assert replay.rejected() == {"nan": 1, "infinite": 1, "stale": 0, "outside": 0, "last_step": 1}
    assert np.isfinite(replay.total())
    check_sums(replay)
    slots, low, high = draw(replay, less(kind, 100_000, 16), less(kind, 100, 16))
    assert 0 < low and high <= 1 and set(slots) <= set(range(8)) and set(range(4, 8)) <= set(slots)
