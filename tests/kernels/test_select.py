"""Choosing actions from values: greedy, epsilon-greedy over one head, three heads and routed exposures, softmax; kernel and CPU agree."""

import numpy as np
import pytest
from scipy import stats

from numba_rl import gpu
from numba_rl.kernels import noise, route, select
from numba_rl.kernels.select import BRANCHING, EXPOSURE, FLAT, WIDTHS
from numba_rl.rules.routing import route as route_one

KINDS = (FLAT, BRANCHING, EXPOSURE)


class Slots:
    """Slots at random bars, and values for them."""

    def __init__(self, kind, count, seed=0, played=0):
        rng = np.random.default_rng(seed)
        self.kind, self.seed = kind, seed
        self.clock = np.zeros((count, 4), np.int64)
        self.clock[:, 0], self.clock[:, 2] = rng.integers(0, 30, count), played
        self.portfolio = rng.choice([-1, -0.5, 0, 0.25, 1], (count, 10)).astype(np.float64)
        self.regime = rng.uniform(0.5, 2, (30, 3)).astype(np.float32)
        self.q = rng.standard_normal((count, WIDTHS[kind])).astype(np.float32)

    def choose(self, start=0.0, end=0.0, steps=100, temperature=None, run=select.select_cpu, **options):
        settings = np.array([start, end, steps, 0 if temperature is None else 1 / temperature], np.float32)
        actions = np.full((2, len(self.clock)), -7, np.int32)
        run(np.array([1], np.int32), self.q, self.clock, self.portfolio, self.regime, actions, settings, self.seed, self.kind, **options)
        assert (actions[0] == -7).all()
        return actions[1]

    def greedy(self):
        """By NumPy."""
        if self.kind == FLAT:
            return self.q.argmax(1)
        exposure = self.q[:, :5].argmax(1)
        if self.kind == BRANCHING:
            return exposure * 9 + self.q[:, 5:8].argmax(1) * 3 + self.q[:, 8:].argmax(1)
        volatility = self.regime[self.clock[:, 0], 2]
        return np.array([route_one(x, h, v) for x, h, v in zip(exposure, self.portfolio[:, 8], volatility, strict=True)])


@pytest.mark.parametrize("kind", KINDS)
def test_without_exploration_the_largest_value_wins(kind):
    slots = Slots(kind, 200)
    np.testing.assert_array_equal(slots.choose(), slots.greedy())


def test_the_first_of_equals_wins():
    slots = Slots(FLAT, 3)
    slots.q[:] = 1.0
    assert (slots.choose() == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_epsilon_is_the_share_of_random_actions(kind):
    slots = Slots(kind, 20_000, seed=3)
    slots.q[:] = np.linspace(1, 0, WIDTHS[kind])
    differs = np.mean(slots.choose(start=0.5, end=0.5) != slots.greedy())
    same = {FLAT: 1 / 45, BRANCHING: 1 / 45, EXPOSURE: 1 / 5}[kind]  # a random action may be the greedy one
    assert differs == pytest.approx(0.5 * (1 - same), abs=0.015)


@pytest.mark.parametrize("kind", [FLAT, BRANCHING])
def test_random_actions_are_uniform(kind):
    slots = Slots(kind, 45_000, seed=5)
    counts = np.bincount(slots.choose(start=1.0, end=1.0), minlength=45)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_epsilon_is_a_function_of_the_steps_played_by_all_slots():
    for played, wanted in ((0, 1.0), (25, 0.55), (50, 0.1), (5000, 0.1)):
        slots = Slots(FLAT, 20_000, played=played)
        slots.q[:] = np.linspace(1, 0, 45)
        share = np.mean(slots.choose(start=1.0, end=0.1, steps=50 * 20_000) != 0) / (1 - 1 / 45)
        assert share == pytest.approx(wanted, abs=0.015)


def test_softmax_draws_by_its_temperature():
    slots = Slots(FLAT, 50_000, seed=7)
    slots.q[:] = np.arange(45) / 10
    for temperature in (0.5, 2.0):
        mass = np.exp(np.arange(45) / 10 / temperature)
        counts = np.bincount(slots.choose(temperature=temperature), minlength=45)
        assert stats.chisquare(counts, mass / mass.sum() * 50_000).pvalue > 1e-4


def test_large_values_do_not_overflow_softmax():
    slots = Slots(FLAT, 4)
    slots.q[:] = -1e30
    slots.q[:, 17] = 3e30
    assert (slots.choose(temperature=1e-3) == 17).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_broken_values_give_minus_one(kind, bad):
    slots = Slots(kind, 4)
    slots.q[1, 2] = bad
    slots.q[2, :] = -np.inf
    for options in ({}, {"start": 1.0, "end": 1.0}, {"temperature": 1.0}):
        actions = slots.choose(**options)
        assert (actions[[1, 2]] == -1).all() and (actions[[0, 3]] >= 0).all()


def test_wrong_shapes_are_refused():
    slots = Slots(FLAT, 4)
    slots.q = slots.q[:, :44]
    with pytest.raises(ValueError, match=r"shape \(4, 44\), expected \(4, 45\)"):
        slots.choose()
    empty = Slots(FLAT, 0)
    with pytest.raises(ValueError, match="the batch is empty"):
        empty.choose()


@pytest.mark.skipif(not gpu.SIMULATED, reason="launches kernels on CPU arrays, which only the simulator can")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"start": 0.7, "end": 0.3}, {"temperature": 0.8}])
def test_the_kernel_chooses_the_same(kind, options):
    slots = Slots(kind, 13, seed=2, played=40)
    np.testing.assert_array_equal(slots.choose(**options, run=select.launch_select, threads=8), slots.choose(**options))


def test_routed_values_lie_at_the_routed_actions():
    rng = np.random.default_rng(0)
    q, held, volatility = rng.standard_normal((9, 5)).astype(np.float32), rng.choice([-1.0, 0.0, 0.5], 9), rng.uniform(0.5, 2, 9).astype(np.float32)
    out = np.zeros((9, 45), np.float32)
    route.route_cpu(q, held, volatility, out)
    assert (np.isfinite(out).sum(1) == 5).all()
    for n in range(9):
        for exposure in range(5):
            assert out[n, route_one(exposure, held[n], volatility[n])] == q[n, exposure]
    if gpu.SIMULATED:
        kernel = np.zeros_like(out)
        route.launch_route(q, held, volatility, kernel, threads=4)
        np.testing.assert_array_equal(kernel, out)


def test_noise_is_the_signed_root_of_a_normal():
    units = 40_000
    out, layers = np.zeros(units, np.float32), np.zeros(units, np.int32)
    layers[units // 2 :] = 1
    numbers = np.tile(np.arange(units // 2, dtype=np.int32), 2)
    noise.noise_cpu(out, layers, numbers, np.array([3], np.int64), 1, noise.ONLINE)
    normal = np.sign(out) * out.astype(np.float64) ** 2
    assert stats.kstest(normal, "norm").pvalue > 1e-4
    assert abs(np.corrcoef(out[: units // 2], out[units // 2 :])[0, 1]) < 0.03
    others = [(np.array([4], np.int64), 1, noise.ONLINE), (np.array([3], np.int64), 1, noise.TARGET), (np.array([3], np.int64), 2, noise.ONLINE)]
    for arguments in others:
        another = np.zeros_like(out)
        noise.noise_cpu(another, layers, numbers, *arguments)
        assert abs(np.corrcoef(out, another)[0, 1]) < 0.03


@pytest.mark.skipif(not gpu.SIMULATED, reason="launches kernels on CPU arrays, which only the simulator can")
def test_noise_and_levels_of_the_kernels_are_those_of_the_cpu():
    counter = np.array([2**33 + 5], np.int64)
    layers, units = np.array([0, 0, 1, 2, 2], np.int32), np.array([0, 1, 0, 0, 1], np.int32)
    cpu, kernel = np.zeros(5, np.float32), np.zeros(5, np.float32)
    noise.noise_cpu(cpu, layers, units, counter, 9, noise.TARGET)
    noise.launch_noise(kernel, layers, units, counter, 9, noise.TARGET, threads=4)
    np.testing.assert_allclose(kernel, cpu, rtol=1e-5)
    noise.levels_cpu(cpu, counter, 9, noise.ONLINE)
    noise.launch_levels(kernel, counter, 9, noise.ONLINE, threads=4)
    np.testing.assert_array_equal(kernel, cpu)
    assert ((cpu >= 0) & (cpu < 1)).all()
