"""The monitor's 12 floats against float64: ordinary epochs, constants, broken rewards, and no steps at all."""

import numpy as np
import pytest
from ptx import arithmetic, compile_ptx
from reference.monitor import monitor as reference

from numba_rl import gpu
from numba_rl.kernels.monitor import FIGURES, launch_monitor


def run(rewards, actions, blocks=3, threads=4, count=None, repeats=1):
    rewards, actions = np.asarray(rewards, np.float32), np.asarray(actions, np.int32)
    count = len(rewards) if count is None else count
    arrays = [rewards, actions, np.zeros((blocks, 5), np.float32), np.zeros((blocks, 7), np.int32), np.zeros(1, np.int32), np.full(12, 7.0, np.float32)]
    moved = arrays if gpu.SIMULATED else [gpu.cuda.to_device(array) for array in arrays]
    for _ in range(repeats):
        launch_monitor(moved[0], moved[1], count, *moved[2:], threads=threads)
    figures = moved[5] if gpu.SIMULATED else moved[5].copy_to_host()
    return np.array(figures)


@pytest.mark.parametrize("n", [1, 2, 5, 12, 61])
def test_ordinary_epochs(n):
    rng = np.random.default_rng(n)
    rewards, actions = rng.normal(0.3, 2.0, n), rng.integers(0, 45, n)
    rewards[: n // 5] = [np.nan, np.inf, -np.inf][n % 3]
    found = run(rewards, actions, repeats=2)  # the second launch finds the ticket cleared
    np.testing.assert_allclose(found, reference(np.float32(rewards), actions), rtol=2e-5, atol=1e-6)
    assert len(FIGURES) == 12 and found.nbytes == 48


def test_small_variation_about_a_large_mean_keeps_its_digits():
    rewards = np.float32(1000.0) + np.random.default_rng(1).normal(0, 0.1, 200).astype(np.float32)
    np.testing.assert_allclose(run(rewards, np.zeros(200), blocks=2), reference(rewards, np.zeros(200, int)), rtol=1e-4)


def test_constant_series_have_no_sharpe_ratio():
    for value in (0.0, 0.1, -3.3):
        found = run(np.full(40, value), np.full(40, 22))
        assert np.isnan(found[4]) and found[0] == np.float32(value) and found[1] == pytest.approx(0, abs=1e-6) and found[7] == 40


def test_no_steps_and_no_finite_reward_are_legal():
    found = run([1.0], [44], count=0)
    assert np.isnan(found[:5]).all() and (found[5:] == 0).all()
    found = run([np.nan, np.nan], [0, 44])
    assert np.isnan(found[:5]).all() and found[5:].tolist() == [1, 0, 0, 0, 1, 2, 2]


@pytest.mark.gpu
def test_a_whole_epoch_on_a_gpu():
    rng = np.random.default_rng(3)
    rewards, actions = rng.normal(0.01, 1.0, 4_000_001).astype(np.float32), rng.integers(0, 45, 4_000_001)
    found = run(rewards, actions, 264, 256)
    np.testing.assert_allclose(found, reference(rewards, actions), rtol=1e-4)
    assert np.array_equal(found, run(rewards, actions, 264, 256))


@pytest.mark.parametrize("capability", [(7, 5)])
def test_ptx(capability):
    text = compile_ptx(
        """
        from numba_rl.kernels.monitor import monitor_kernel
        KERNELS = {"monitor": (monitor_kernel(256), (array(f32), array(i32), i64, array(f32, 2), array(i32, 2), array(i32), array(f32)))}
        """,
        capability,
    )["monitor"]
    assert arithmetic(text, "f64") == set() and ".local" not in text
    assert "atom" in text and ".add.f32" not in [word for word in text.split() if word.startswith("atom")]
