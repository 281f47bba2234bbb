"""GAE on the CPU path and as a kernel against the float64 definition, with ruin, truncation and the launch's end."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ptx import arithmetic, compile_ptx
from reference.gae import gae as reference

from numba_rl import gpu
from numba_rl.kernels.gae import gae_cpu, launch_gae

GAMMA, LAMBDA = 0.99, 0.95


def launch(steps, slots, seed, finals=3):
    """Random rewards and values; each slot ends a few times, its truncations numbered from 1."""
    rng = np.random.default_rng(seed)
    ends = np.zeros((steps, slots), np.int16)
    for e in range(slots):
        number = 0
        for t in range(steps):
            draw = rng.random()
            if draw < 0.1:
                ends[t, e] = -1
            elif draw < 0.2 and number < finals:
                number += 1
                ends[t, e] = number
    rewards, values, final_values = (
        rng.standard_normal(shape).astype(np.float32) * 5 for shape in ((steps, slots), (steps + 1, slots), (finals, slots))
    )
    return rewards, values, ends, final_values


def run_cpu(rewards, values, ends, final_values, gamma=GAMMA, gae_lambda=LAMBDA):
    advantages, returns = np.full_like(rewards, np.nan), np.full_like(rewards, np.nan)
    gae_cpu(rewards, values, ends, final_values, np.float32(gamma), np.float32(gae_lambda), advantages, returns)
    return advantages, returns


@settings(max_examples=20, deadline=None)
@given(steps=st.integers(1, 40), slots=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
def test_cpu_matches_the_definition(steps, slots, seed):
    arguments = launch(steps, slots, seed)
    for found, wanted in zip(run_cpu(*arguments), reference(*arguments, GAMMA, LAMBDA), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize(("steps", "slots", "threads"), [(1, 1, 8), (16, 5, 4), (7, 8, 8)])
def test_kernel_matches_the_cpu_path(steps, slots, threads):
    arguments = launch(steps, slots, seed=3)
    advantages, returns = np.zeros((steps, slots), np.float32), np.zeros((steps, slots), np.float32)
    if gpu.SIMULATED:
        launch_gae(*arguments, GAMMA, LAMBDA, advantages, returns, threads=threads)
    else:
        on_gpu = [gpu.cuda.to_device(array) for array in (*arguments, advantages, returns)]
        launch_gae(*on_gpu[:4], GAMMA, LAMBDA, *on_gpu[4:], threads=threads)
        advantages, returns = on_gpu[4].copy_to_host(), on_gpu[5].copy_to_host()
    cpu = run_cpu(*arguments)
    np.testing.assert_allclose(advantages, cpu[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(returns, cpu[1], rtol=1e-5, atol=1e-5)


def one_step(end):
    """Advantage of one step: reward 1, value 10, next state's value 20 (seen by the policy) or 30 (the true one)."""
    rewards, values, final_values = (np.array(column, np.float32)[:, None] for column in ([1], [10, 20], [30]))
    return float(run_cpu(rewards, values, np.array([[end]], np.int16), final_values, gamma=0.5)[0][0, 0])


def test_what_each_kind_of_end_bootstraps_from():
    assert one_step(0) == 1 + 0.5 * 20 - 10  # the launch ends, the episode does not
    assert one_step(-1) == 1 - 10  # ruin: nothing follows
    assert one_step(1) == 1 + 0.5 * 30 - 10  # cut: the true next state, not the next episode's first


def test_nothing_leaks_over_an_episode_end():
    rewards, values, ends, final_values = launch(20, 1, seed=1)
    ends[:] = 0
    ends[9, 0] = 1
    before = run_cpu(rewards, values, ends, final_values)[0][:10]
    rewards[10:] += 100
    values[10:] -= 50
    np.testing.assert_array_equal(run_cpu(rewards, values, ends, final_values)[0][:10], before)


@pytest.mark.parametrize("capability", [(7, 5)])
def test_compiles_without_float64_or_local_memory(capability):
    source = """
        from numba_rl.kernels.gae import gae_kernel
        from numba_rl.kernels.shuffle import shuffle_kernel

        table = array(f32, 2)
        KERNELS = {
            "gae": (gae_kernel, (table, table, array(types.int16, 2), table, f32, f32, table, table)),
            "shuffle": (shuffle_kernel, (array(i64), i64, array(i64))),
        }
    """
    for name, text in compile_ptx(source, capability).items():
        assert ".entry" in text and ".local" not in text and not arithmetic(text, "f64"), name
