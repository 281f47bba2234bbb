"""The GAE scan against the float64 definition and the plain kernel: chunks, rounds, tails and every kind of end."""

import numpy as np
import pytest
from ptx import arithmetic, compile_ptx
from reference.gae import gae as reference

from numba_rl import gpu
from numba_rl.kernels.gae_scan import launch_gae_scan, shape_for

GAMMA, LAMBDA = 0.99, 0.95


def launch(steps, slots, seed, finals=3):
    random = np.random.default_rng(seed)
    ends = np.zeros((steps, slots), np.int16)
    for e in range(slots):
        number = 0
        for t in range(steps):
            draw = random.random()
            if draw < 0.05:
                ends[t, e] = -1
            elif draw < 0.1 and number < finals:
                number += 1
                ends[t, e] = number
    shapes = (steps, slots), (steps + 1, slots), (finals, slots)
    rewards, values, final_values = (random.standard_normal(shape).astype(np.float32) * 5 for shape in shapes)
    return rewards, values, ends, final_values


def run(arguments, shape=None):
    outputs = [np.full_like(arguments[0], np.nan) for _ in range(2)]
    if gpu.SIMULATED:
        launch_gae_scan(*arguments, GAMMA, LAMBDA, *outputs, shape=shape)
        return outputs
    on_gpu = [gpu.cuda.to_device(array) for array in (*arguments, *outputs)]
    launch_gae_scan(*on_gpu[:4], GAMMA, LAMBDA, *on_gpu[4:], shape=shape)
    return [array.copy_to_host() for array in on_gpu[4:]]


@pytest.mark.parametrize(
    ("steps", "slots", "shape"),
    [(1, 1, (2, 2, 4)), (16, 3, (2, 2, 8)), (17, 2, (2, 2, 4)), (33, 5, (4, 2, 3)), (40, 2, (2, 4, 10))],
)
def test_scan_matches_the_definition(steps, slots, shape):
    arguments = launch(steps, slots, seed=steps)
    for found, wanted in zip(run(arguments, shape), reference(*arguments, GAMMA, LAMBDA), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.gpu
@pytest.mark.parametrize(("steps", "slots"), [(500, 128), (512, 4096), (128, 65_536), (1000, 77)])
def test_scan_at_size(steps, slots):
    arguments = launch(steps, min(slots, 256), seed=1)
    arguments = [np.ascontiguousarray(np.tile(part, (1, -(-slots // part.shape[1])))[:, :slots]) for part in arguments]
    found = run(arguments)
    again = run(arguments)
    some = np.random.default_rng(0).choice(slots, 8)
    wanted = reference(*(part[:, some] for part in arguments), GAMMA, LAMBDA)
    for one, other, expected in zip(found, again, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one[:, some], expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_a_block_is_small_enough():
    for steps, slots in ((1, 1), (500, 128), (512, 4096), (128, 65_536), (10_000, 8)):
        narrow, chunks, _ = shape_for(steps, slots)
        assert narrow * chunks <= 512


def test_ptx():
    source = """
    from numba_rl.kernels.gae_scan import gae_scan_kernel
    table = array(f32, 2)
    KERNELS = {"gae": (gae_scan_kernel(8, 64, 8), (table, table, array(types.int16, 2), table, f32, f32, table, table))}
    """
    ptx = compile_ptx(source)["gae"]
    assert not arithmetic(ptx, "f64") and ".local" not in ptx
