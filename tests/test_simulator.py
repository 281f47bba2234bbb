"""What numba_rl/simulator.py exchanges in Numba's simulator still keeps its threads in step, ends with them and hides no failure."""

import numpy as np
import pytest

from numba_rl import gpu
from numba_rl.gpu import cuda, jit

pytestmark = pytest.mark.skipif(not gpu.SIMULATED, reason="on a GPU nothing is simulated")


@jit
def shift(out, rounds, leavers):
    """Each thread hands its value on, round after round; the last `leavers` threads end before the first one."""
    shared = cuda.shared.array(8, np.int64)
    lane, threads = cuda.threadIdx.x, cuda.blockDim.x - leavers
    if lane >= threads:
        return
    value = lane
    for _ in range(rounds):
        shared[lane] = value
        cuda.syncthreads()
        value = shared[(lane + 1) % threads]
        cuda.syncthreads()
    out[cuda.blockIdx.x, lane] = gpu.warp_max(value, shared) * 10 + value


@pytest.mark.parametrize(("threads", "leavers", "rounds"), [(8, 0, 30), (8, 3, 7), (1, 0, 2), (5, 4, 3)])
def test_nobody_passes_a_barrier_alone(threads, leavers, rounds):
    out, left = np.full((3, 8), -1), threads - leavers
    shift[3, threads](out, rounds, leavers)
    if not leavers:
        assert (out[:, :left] == 10 * (left - 1) + (np.arange(left) + rounds) % left).all()
    assert (out[:, left:] == -1).all() and (out[:, :left] % 10 == (np.arange(left) + rounds) % left).all()


@jit
def failing(out, culprit):
    cuda.syncthreads()
    if cuda.threadIdx.x == culprit:
        out[99] = 1
    cuda.syncthreads()
    out[cuda.threadIdx.x] = 1


@pytest.mark.parametrize("culprit", [0, 3])
def test_a_failure_is_raised_and_ends_the_block(culprit):
    out = np.zeros(4, np.int64)
    with pytest.raises(IndexError, match=rf"tid=\[{culprit}, 0, 0\].*out of bounds"):
        failing[2, 4](out, culprit)
    assert not out.any()
    failing[2, 4](out, -1)
    assert out.all(), "the next launch is as if nothing had been"


def test_modules_have_their_own_cuda_again_after_a_launch():
    shift[1, 2](np.zeros((1, 8), np.int64), 1, 0)
    assert gpu.cuda is cuda and not hasattr(cuda, "gridDim")
