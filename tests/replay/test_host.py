"""The host replay against the reference: operations over awkward capacities, and the distribution of its draws."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import replay as reference
from replay.helpers import check_rows, check_sums, insert, make, with_priorities
from scipy import stats


@pytest.mark.parametrize("capacity", [1, 7, 32, 50, 100, 256, 1000, 1024, 100_000])
def test_random_operations_agree_with_the_reference(capacity):
    rng = np.random.default_rng(capacity)
    replay, ring = make("host", capacity), reference.Ring(capacity, 0.6, 1e-6, 1e6)
    for step in range(20):
        n = int(rng.integers(1, min(2 * capacity, 3000) + 1))
        numbers = range(ring.inserted, ring.inserted + n)
        errors = rng.normal(size=n).astype(np.float32) if step % 2 else None
        if errors is not None:
            errors[rng.integers(n)] = rng.choice([np.nan, np.inf, 0.0])
        insert(replay, numbers, errors)
        ring.insert(numbers, errors)
        batch = replay.sample(64)
        slots = batch.indices.numpy()
        check_rows(batch, ring.items)
        weights = reference.weights_of(replay.priorities.numpy(), slots, ring.size, reference.beta_at(step, 0.4, 1.0, 100_000))
        np.testing.assert_allclose(batch.weights, weights, rtol=2e-5)
        stamp = ring.inserted
        if step % 3 == 0:
            insert(replay, [ring.inserted])
            ring.insert([ring.inserted])
        errors = rng.normal(size=64).astype(np.float32)
        errors[rng.integers(64)] = rng.choice([np.nan, np.inf, 0.0])
        replay.update(batch, torch.from_numpy(errors))
        ring.update(slots, errors, inserted=stamp, peak=float(batch.peak))
        np.testing.assert_allclose(replay.priorities, ring.priorities, rtol=1e-6)
        ring.priorities = replay.priorities.numpy().astype(np.float64)  # float32 powers differ in the last bit
        check_sums(replay)
    rejected = replay.rejected()
    assert {name: rejected[name] for name in ring.rejected} == ring.rejected


@settings(max_examples=60, deadline=None)
@given(
    priorities=st.lists(st.one_of(st.just(0.0), st.floats(2.0**-20, 2.0**20, width=32)), min_size=1, max_size=200).filter(any),
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=50),
)
def test_locate_agrees_with_one_cumulative_sum(priorities, shares):
    replay = make("host", 256, 1)
    insert(replay, range(len(priorities)))
    with_priorities(replay, priorities)
    stored = replay.priorities[: len(priorities)].numpy().astype(np.float64)
    masses = np.array(shares) * stored.sum()
    slots = replay.locate(torch.from_numpy(masses)).numpy()
    assert (stored[slots] > 0).all()
    edges = np.concatenate([[0.0], np.cumsum(stored)])
    slack = 1e-12 * edges[-1]
    assert ((edges[slots] <= masses + slack) & (masses - slack <= edges[slots + 1])).all()


def test_draws_of_ten_thousand_follow_the_priorities():
    rng = np.random.default_rng(0)
    replay = make("host", 5000, 1, seed=9)
    insert(replay, range(5000), rng.exponential(size=5000))
    drawn = np.concatenate([replay.sample(100).indices.numpy().copy() for _ in range(100)])
    priorities = replay.priorities.numpy().astype(np.float64)
    independent = rng.choice(5000, 10_000, p=priorities / priorities.sum())
    assert stats.ks_2samp(drawn, independent).pvalue > 1e-4


def test_one_sample_batches_are_independent_draws():
    rng = np.random.default_rng(3)
    replay = make("host", 40, 1, seed=1)
    insert(replay, range(40), rng.exponential(size=40))
    drawn = np.array([int(replay.sample(1).indices) for _ in range(40_000)])
    priorities = replay.priorities.numpy().astype(np.float64)
    expected = priorities / priorities.sum()
    assert stats.chisquare(np.bincount(drawn, minlength=40), expected * len(drawn)).pvalue > 1e-4
    pairs = np.zeros((40, 40))
    np.add.at(pairs, (drawn[:-1:2], drawn[1::2]), 1)
    keep = np.outer(expected, expected) * pairs.sum() > 5
    together = np.outer(expected, expected)[keep]
    assert stats.chisquare(pairs[keep], together / together.sum() * pairs[keep].sum()).pvalue > 1e-4


@pytest.mark.parametrize("mode", ["rank", "uniform"])
def test_other_modes_follow_their_distribution(mode):
    rng = np.random.default_rng(4)
    replay = make("host", 300, 1, mode=mode, alpha=0.8)
    insert(replay, range(200), rng.exponential(size=200))
    expected = np.zeros(300)
    if mode == "rank":
        order, p = reference.rank_distribution(replay.priorities.numpy(), 0.8)
        expected[order] = p
    else:
        expected[:200] = 1 / 200
    drawn = np.concatenate([replay.sample(250).indices.numpy().copy() for _ in range(400)])
    counts = np.bincount(drawn, minlength=300)
    assert counts[expected == 0].sum() == 0
    assert stats.chisquare(counts[expected > 0], expected[expected > 0] * len(drawn)).pvalue > 1e-4


def test_rank_order_is_sorted_again_after_an_insert_and_at_the_interval():
    replay = make("host", 20, 1, mode="rank", resort_interval=5)
    insert(replay, range(10), np.arange(10.0))
    replay.sample(4)
    assert replay._order.tolist() == list(range(9, -1, -1))
    replay.update_slots(torch.tensor([0]), torch.tensor([100.0]))
    for _ in range(4):
        replay.sample(4)
    assert replay._order[0] == 9
    replay.sample(4)
    assert replay._order[0] == 0
    insert(replay, [10], [1000.0])
    replay.sample(4)
    assert replay._order[0] == 10 and len(replay._order) == 11
