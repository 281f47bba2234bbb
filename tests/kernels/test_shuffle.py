"""Permutations without sorting: each is a bijection, turns and seeds differ, places look uniform, the kernel agrees."""

import numpy as np
import pytest

from numba_rl import gpu
from numba_rl.kernels.shuffle import launch_shuffle, shuffle_cpu


def order(n, seed=0, turn=0):
    result = np.full(n, -1, np.int64)
    shuffle_cpu(result, seed, np.array([turn], np.int64))
    return result


@pytest.mark.parametrize("n", [1, 2, 3, 5, 64, 65, 1000, 8192, 8193])
def test_is_a_permutation(n):
    for turn in (0, 1, 2**31):
        np.testing.assert_array_equal(np.sort(order(n, 7, turn)), np.arange(n))


def test_turns_and_seeds_differ():
    orders = [order(1000, seed, turn) for seed in (0, 1) for turn in (0, 1)]
    for i, first in enumerate(orders):
        for second in orders[:i]:
            assert (first == second).sum() < 10  # about 1 is expected by chance


def test_places_of_a_large_permutation_look_uniform():
    n, groups = 8192, 16
    place = order(n, 3, 11)
    table = np.zeros((groups, groups))
    np.add.at(table, (np.arange(n) * groups // n, place * groups // n), 1)
    expected = n / groups**2
    assert ((table - expected) ** 2 / expected).sum() < 340  # 225 degrees of freedom; one in a million by chance


@pytest.mark.parametrize("n", [1, 13])
def test_kernel_gives_the_same_order(n):
    turn = np.array([3], np.int64)
    result = np.zeros(n, np.int64)
    if gpu.SIMULATED:
        launch_shuffle(result, 9, turn, threads=8)
    else:
        on_gpu = gpu.cuda.to_device(result)
        launch_shuffle(on_gpu, 9, gpu.cuda.to_device(turn), threads=8)
        result = on_gpu.copy_to_host()
    np.testing.assert_array_equal(result, order(n, 9, 3))
