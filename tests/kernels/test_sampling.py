"""Softmax sampling and greedy choice on both paths, and case B-04: what has no probability is never drawn."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from numba import njit
from scipy import stats

from numba_rl.gpu import cuda, jit
from numba_rl.kernels.sampling import draw, greedy, launch_sample
from numba_rl.rules.philox import ACTION, uniform

CASE = Path(__file__).parents[1] / "cases" / "B-04"
ROWS = [
    (np.array([float(x) for x in row["logits"].strip("[]").split(",")], np.float32), np.float32(row["u"]), {int(a) for a in row["allowed_action"].split(" or ")})
    for row in csv.DictReader((CASE / "cases.csv").open())
]  # fmt: skip
_draw, _draw_row = draw.cpu, draw.device


@njit
def count(logits, seed, draws):
    """How often each action comes out of `draws` draws from one row of logits."""
    counts = np.zeros(logits.shape[1], np.int64)
    for i in range(draws):
        action, _ = _draw(logits, 0, logits.shape[1], uniform(seed, ACTION, 0, 0, i, 0), np.float32(1.0))
        counts[action] += 1
    return counts


def on_cpu(logits, u, temperature=1.0):
    return draw.cpu(logits[None], 0, len(logits), np.float32(u), np.float32(1 / temperature))


def in_kernel(logits, u, temperature=1.0):
    actions, log_probs = np.full(1, -9, np.int32), np.zeros(1, np.float32)
    launch_sample(np.ascontiguousarray(logits[None]), np.array([u], np.float32), temperature, actions, log_probs, threads=4)
    return int(actions[0]), float(log_probs[0])


PATHS = pytest.mark.parametrize("path", [on_cpu, in_kernel])
INFINITE = pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")  # the simulator computes by NumPy


@PATHS
@INFINITE
@pytest.mark.parametrize(("logits", "u", "allowed"), ROWS)
def test_the_cases_draws(path, logits, u, allowed):
    action, log_prob = path(logits, u)
    assert action in allowed and math.isfinite(log_prob)


@PATHS
def test_log_probabilities_come_from_log_softmax(path):
    assert path(np.array([0.0, -200.0], np.float32), 0.0)[1] == 0.0
    drawn = [path(np.array(row, np.float32), u)[1] for row, u in (([1000, 999, 0], 0.5), ([1000, 999, 0], 0.9))]
    assert drawn == pytest.approx([math.log(0.7310586), math.log(0.2689414)], abs=1e-6)
    assert path(np.full(3, -1e9, np.float32), 0.34)[1] == pytest.approx(-math.log(3), abs=1e-6)


def test_the_log_probability_of_an_unlikely_action():
    # exp(-80) of the mass: drawn only where nothing else is left, so that its log-probability can be read
    row = np.array([[0.0, -80.0]], np.float32)
    assert draw.cpu(row, 0, 2, np.float32(1.0), np.float32(1.0)) == (1, pytest.approx(-80.0, abs=1e-5))


def test_ten_million_draws_never_hit_a_zero():
    counts = count(np.array([[0.0, -np.inf, 0.0]], np.float32), 1, 10_000_000)
    assert counts[1] == 0 and counts.sum() == 10_000_000 and abs(counts[0] - 5_000_000) < 5 * 1582


@pytest.mark.gpu
def test_ten_million_draws_on_a_gpu_never_hit_a_zero():
    logits = cuda.to_device(np.tile(np.array([0.0, -np.inf, 0.0], np.float32), (10_000_000, 1)))
    u = np.random.default_rng(0).random(10_000_000, np.float32)
    u[:2] = 0.0, 1.0
    actions, log_probs = cuda.device_array(10_000_000, np.int32), cuda.device_array(10_000_000, np.float32)
    launch_sample(logits, cuda.to_device(u), 1.0, actions, log_probs)
    counts = np.bincount(actions.copy_to_host(), minlength=3)
    assert counts[1] == 0 and abs(counts[0] - 5_000_000) < 5 * 1582 and np.all(log_probs.copy_to_host() == np.float32(-math.log(2)))


def test_draws_follow_the_softmax():
    logits = np.random.default_rng(3).normal(0, 1.5, (1, 45)).astype(np.float32)
    logits[0, 7] = -np.inf
    p = np.exp(logits[0].astype(np.float64))
    counts = count(logits, 2, 1_000_000)
    assert counts[7] == 0
    kept = np.arange(45) != 7
    assert stats.chisquare(counts[kept], (p / p.sum() * 1_000_000)[kept]).pvalue > 1e-4


def test_every_uniform_draws_the_first_action_whose_edge_lies_above_it():
    logits = np.random.default_rng(4).normal(0, 1, 45).astype(np.float32)
    edges = np.cumsum(np.exp(logits.astype(np.float64)))
    for u in np.linspace(0, 0.9999, 300, dtype=np.float32):
        wanted = int(np.searchsorted(edges / edges[-1], u, side="right"))
        assert on_cpu(logits, u)[0] == wanted or np.abs(edges / edges[-1] - u).min() < 1e-5


@INFINITE
@PATHS
@pytest.mark.parametrize("row", [[0, math.nan, 1], [math.nan, 0, 0], [0, math.inf, 1], [-math.inf, -math.inf, -math.inf]])
def test_no_distribution_is_no_action(path, row):
    action, log_prob = path(np.array(row, np.float32), 0.3)
    assert action == -1 and math.isnan(log_prob)


def test_greedy():
    def best(*row):
        return greedy.cpu(np.array([row], np.float32), 0, len(row))

    assert (best(1, 3, 2), best(2, 2, 2), best(-math.inf, -5, -9)) == (1, 0, 1)
    assert best(1, math.nan, 2) == best(1, math.inf, 2) == best(-math.inf, -math.inf) == -1


def test_temperature():
    row = np.array([0.0, 1.0], np.float32)
    for path in (on_cpu, in_kernel):
        assert path(row, 0.9, temperature=0.3)[1] == pytest.approx(-math.log1p(math.exp(-1 / 0.3)), abs=1e-6)


@jit
def flag_rows(table, broken):
    """Which rows of a table are no distribution, by the sampler's own check, in the product's compile options."""
    row = cuda.grid(1)
    if row < table.shape[0]:
        action, _ = _draw_row(table, row, table.shape[1], np.float32(0.5), np.float32(1.0))
        broken[row] = action < 0


@INFINITE
def test_c_02_rows_that_are_not_finite_are_flagged():
    table = np.genfromtxt(CASE.parent / "C-02" / "features.csv", delimiter=",", skip_header=1, dtype=np.float32)[:, 1:].copy()
    assert [on_cpu(row, 0.5)[0] < 0 for row in table] == [False, True, True, False]
    assert [greedy.cpu(table, row, 3) < 0 for row in range(4)] == [False, True, True, False]
    broken = np.zeros(4, np.bool_)
    flag_rows[1, 4](table, broken)
    assert broken.tolist() == [False, True, True, False]
