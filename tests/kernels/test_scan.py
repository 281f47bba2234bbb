"""Prefix sums of awkward lengths against float64, in place or not, over one to three levels."""

import numpy as np
import pytest
from ptx import arithmetic, compile_ptx
from reference.scan import scan as reference

from numba_rl import gpu
from numba_rl.kernels.scan import launch_scan, levels


def run(values, threads, in_place=False):
    scratch = [np.zeros(length, np.float32) for length in levels(len(values), threads)]
    sums = values.copy()
    if gpu.SIMULATED:
        launch_scan(sums if in_place else values, sums, scratch, threads=threads)
        return sums
    on_gpu = gpu.cuda.to_device(sums)
    launch_scan(on_gpu if in_place else gpu.cuda.to_device(values), on_gpu, [gpu.cuda.to_device(part) for part in scratch], threads=threads)
    return on_gpu.copy_to_host()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("n", [1, 3, 4, 5, 16, 17, 70])
def test_small_lengths(n, in_place):
    values = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    np.testing.assert_allclose(run(values, 4, in_place), reference(values), atol=1e-5)


def test_levels_need_memory_in_proportion_to_the_length():
    assert levels(1, 4) == [1] and levels(16, 4) == [4, 1] and levels(70, 4) == [18, 5, 2, 1]
    assert sum(levels(1_000_000)) < 1_000_000 / 1000


def test_whole_numbers_are_exact_and_order_is_kept():
    values = np.ones(37, np.float32)
    assert np.array_equal(run(values, 8), np.arange(1, 38))


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1000, 1024, 1_000_003, 3_000_000])
def test_long_arrays_on_a_gpu(n):
    values = np.random.default_rng(n).random(n).astype(np.float32)
    found = run(values, 1024)
    np.testing.assert_allclose(found, reference(values), rtol=1e-5)
    assert np.array_equal(found, run(values, 1024))


@pytest.mark.parametrize("capability", [(7, 5)])
def test_ptx(capability):
    found = compile_ptx(
        """
        from numba_rl.kernels.scan import scan_kernels
        scan, add = scan_kernels(256)
        KERNELS = {"scan": (scan, (array(f32),) * 3), "add": (add, (array(f32),) * 2)}
        """,
        capability,
    )
    for text in found.values():
        assert arithmetic(text, "f64") == set() and ".local" not in text
