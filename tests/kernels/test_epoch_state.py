"""The persistent epoch state: kernel and CPU path against the float64 definition, resets that act once, order that is fixed."""

import numpy as np
import pytest
from ptx import arithmetic, compile_ptx
from reference.epoch_state import update as reference

from numba_rl import gpu
from numba_rl.config import Config
from numba_rl.kernels import epoch_state as kernels
from numba_rl.rules.parameters import rules_of

RULES = rules_of(Config())


def epoch(steps, slots, seed):
    rng = np.random.default_rng(seed)
    portfolio = np.abs(rng.normal(1.0, 0.2, (slots, 10))) + 0.1
    portfolio[:, 3] = 1.5
    portfolio[:, 9] = portfolio[:, 3] * rng.uniform(1.0, 1.4, slots)
    return {
        "returns": rng.normal(0, 0.02, 90).astype(np.float32), "bars": rng.integers(0, 90, (steps, slots)).astype(np.int32),
        "ends": rng.choice([0, 0, 0, -1, 1], (steps, slots)).astype(np.int16), "portfolio": portfolio,
        "barrier": rng.normal(size=(slots, 5)), "window": rng.integers(0, 9, (slots, 7)), "shaping": rng.normal(0, 0.1, (slots, 2)),
    }  # fmt: skip


class State:
    """The arrays of an epoch state, on the CPU path or behind the kernels."""

    def __init__(self, on, threads=4):
        self.on, self.threads = on, threads
        self.state = np.array([0.01, 0.01, 0, 0, 1, 1, 0, 0], np.float32)
        self.exact, self.reset, self.ticket = np.zeros(2, np.int64), np.zeros(1, np.int32), np.zeros(1, np.int32)

    def _call(self, launch, *arrays, **options):
        if gpu.SIMULATED:
            launch(*arrays, threads=self.threads, **options)
            return
        moved = [gpu.cuda.to_device(array) if isinstance(array, np.ndarray) else array for array in arrays]
        launch(*moved, threads=self.threads, **options)
        for here, there in zip(arrays, moved, strict=True):
            if isinstance(here, np.ndarray):
                there.copy_to_host(here)

    def begin(self, e):
        if self.on == "cpu":
            kernels.begin_cpu(self.reset, self.state, e["portfolio"], e["barrier"], e["window"], e["shaping"], RULES)
        else:
            self._call(kernels.launch_begin, self.reset, self.ticket, self.state, e["portfolio"], e["barrier"], e["window"], e["shaping"], RULES)

    def update(self, e):
        scratch = np.zeros(len(e["bars"]), np.float32), np.zeros(len(e["bars"]), np.int32)
        arrays = (self.state, self.exact, e["returns"], e["bars"], e["ends"], e["portfolio"], e["shaping"], RULES.multiplier, *scratch)
        if self.on == "cpu":
            kernels.update_cpu(*arrays)
        else:
            self._call(kernels.launch_update, *arrays)


@pytest.mark.parametrize("on", ["cpu", "kernel"])
@pytest.mark.parametrize("slots", [1, 4, 7])
def test_updates_follow_the_definition(on, slots):
    state = State(on)
    wanted, exact = state.state.copy(), state.exact.copy()
    for seed in range(2):
        e = epoch(5, slots, seed)
        state.update(e)
        wanted, exact = reference(wanted, exact, e["returns"], e["bars"], e["ends"], e["portfolio"], e["shaping"])
        np.testing.assert_allclose(state.state, wanted, rtol=1e-5, atol=1e-7)
        assert np.array_equal(state.exact, exact)
    assert state.state.nbytes == 32


@pytest.mark.parametrize("on", ["cpu", "kernel"])
def test_resets_act_once_and_on_what_they_name(on):
    for mask in range(8):
        state, e = State(on), epoch(3, 6, mask)
        state.state[:] = np.arange(8) + 3
        before = {name: array.copy() for name, array in e.items()}
        state.reset[0] = mask
        state.begin(e)
        assert state.reset[0] == 0 and state.ticket[0] == 0
        expected = np.arange(8.0) + 3
        if mask & 1:
            expected[:2] = 0.01
        if mask & 2:
            expected[4:6] = 1.0
            assert (e["portfolio"][:, 0] == RULES.initial_capital).all() and not e["portfolio"][:, 1].any() and not e["barrier"].any()
            assert np.array_equal(e["portfolio"][:, 5], before["portfolio"][:, 5])
        else:
            assert np.array_equal(e["portfolio"], before["portfolio"]) and np.array_equal(e["barrier"], before["barrier"])
        if mask & 4:
            expected[2:4] = 0.0
        assert np.array_equal(e["window"], before["window"])
        assert (not e["shaping"].any()) if mask & 4 else np.array_equal(e["shaping"], before["shaping"])
        np.testing.assert_allclose(state.state, expected)
        again = {name: array.copy() for name, array in e.items()}
        state.begin(e)  # nothing asked for: nothing happens
        assert all(np.array_equal(e[name], again[name]) for name in e)


def test_counts_are_exact_past_what_a_float_can_count():
    state = State("cpu")
    state.exact[:] = 20_000_001, 20_000_000
    state.update(epoch(3, 5, 0))
    assert state.exact[1] == 20_000_015 and state.state[7] == np.float32(20_000_015)


@pytest.mark.gpu
def test_reruns_on_a_gpu_are_bit_identical():
    e = epoch(500, 4097, 1)
    states = [State("kernel", threads=256) for _ in range(2)]
    for state in states:
        state.update(e)
    assert np.array_equal(states[0].state, states[1].state) and np.array_equal(states[0].exact, states[1].exact)
    wanted, exact = reference([0.01, 0.01, 0, 0, 1, 1, 0, 0], [0, 0], e["returns"], e["bars"], e["ends"], e["portfolio"], e["shaping"])
    np.testing.assert_allclose(states[0].state, wanted, rtol=1e-4, atol=1e-6)
    assert np.array_equal(states[0].exact, exact)


def test_ptx():
    found = compile_ptx(
        """
        from numba import typeof
        from numba_rl.config import Config
        from numba_rl.kernels import epoch_state
        from numba_rl.rules.parameters import rules_of

        rules, i16 = typeof(rules_of(Config())), types.int16
        steps, combine = epoch_state.update_kernels(256)
        KERNELS = {
            "begin": (epoch_state.begin_kernel, (array(i32), array(i32), array(f32), array(f64, 2), array(f64, 2), array(i64, 2), array(f64, 2), rules)),
            "steps": (steps, (array(f32), array(i32, 2), array(i16, 2), array(f32), array(i32))),
            "combine": (combine, (array(f32), array(i64), array(f64, 2), array(f64, 2), f64, array(f32), array(i32))),
        }
        """
    )
    for name, text in found.items():
        assert ".local" not in text, name
    assert arithmetic(found["steps"], "f64") == set()
