"""Random numbers that networks draw: factorised Gaussian noise of noisy layers, and the quantile levels of IQN.

Every number is addressed by seed and counters (see rules.philox), so a resumed run repeats them. The counter, int64 [1], lies
beside the network in device memory and is moved by the caller, so that captured graphs advance.

`noise`: out float32 [units], layers and units int32 [units]: which layer a unit belongs to, and its number in there. Each is
f(x) = sign(x) sqrt(|x|) of a standard normal x (Fortunato et al. 2018, section 3.1), by Box and Muller.
`levels`: out float32 [samples], uniform in [0, 1).
Launch: a thread a number.
"""

import math

from numba import njit, uint32, uint64
from numpy import float32

from numba_rl.gpu import blocks_for, both, cuda, jit, rebound
from numba_rl.kernel_cache import cached
from numba_rl.rules.philox import NOISE, QUANTILE, philox, uniform

THREADS = 128
ONLINE, TARGET = 0, 1  # networks: each has noise of its own


@both()
def cosine_of_turns(u):
    """cos(2 pi u) for u of [0, 1), to 1e-6: a polynomial, since the library's takes local memory on a GPU."""
    distance = abs(u - float32(0.5))  # cos(2 pi u) = -cos(2 pi distance)
    sign = float32(-1.0)
    if distance > float32(0.25):
        distance = float32(0.5) - distance
        sign = float32(1.0)
    x = float32(2.0 * math.pi) * distance
    square = x * x
    result = float32(1.0 / 479001600.0)
    result = result * square - float32(1.0 / 3628800.0)
    result = result * square + float32(1.0 / 40320.0)
    result = result * square - float32(1.0 / 720.0)
    result = result * square + float32(1.0 / 24.0)
    result = result * square - float32(0.5)
    return sign * (result * square + float32(1.0))


@both(cosine_of_turns)
def noise_unit(i, out, layers, units, counter, seed, network):
    """Unit i."""
    key = (uint32(NOISE) << uint32(28)) | uint32(layers[i])
    step = uint64(counter[0])
    x0, x1, _, _ = philox(uint32(seed), key, uint32(step), uint32(step >> uint64(32)), uint32(network), uint32(units[i]))
    # (0, 1] for the logarithm, [0, 1) for the angle
    first = (float32(x0 >> uint32(8)) + float32(1.0)) * float32(1.0 / 16777216.0)
    second = float32(x1 >> uint32(8)) * float32(1.0 / 16777216.0)
    normal = float32(math.sqrt(float32(-2.0) * float32(math.log(first)))) * float32(cosine_of_turns(second))
    root = float32(math.sqrt(abs(normal)))
    out[i] = root if normal > float32(0.0) else -root


@both()
def level(i, out, counter, seed, network):
    """Sample i."""
    out[i] = uniform(seed, QUANTILE, network, 0, counter[0], i)


def _noise_all(out, layers, units, counter, seed, network):
    for i in range(out.shape[0]):
        noise_unit(i, out, layers, units, counter, seed, network)


def _noise_on_gpu(out, layers, units, counter, seed, network):
    i = cuda.grid(1)
    if i < out.shape[0]:
        noise_unit(i, out, layers, units, counter, seed, network)


def _levels_all(out, counter, seed, network):
    for i in range(out.shape[0]):
        level(i, out, counter, seed, network)


def _levels_on_gpu(out, counter, seed, network):
    i = cuda.grid(1)
    if i < out.shape[0]:
        level(i, out, counter, seed, network)


noise_cpu = cached(njit(error_model="numpy")(rebound(_noise_all, {"noise_unit": noise_unit.cpu})))
noise_kernel = cached(jit(rebound(_noise_on_gpu, {"noise_unit": noise_unit.device})))
levels_cpu = cached(njit(error_model="numpy")(rebound(_levels_all, {"level": level.cpu})))
levels_kernel = cached(jit(rebound(_levels_on_gpu, {"level": level.device})))


def launch_noise(out, layers, units, counter, seed, network, stream=0, threads=THREADS):
    """New noise for all units of a network, on a GPU or in the simulator."""
    noise_kernel[blocks_for(out.shape[0], threads), threads, stream](out, layers, units, counter, seed, network)


def launch_levels(out, counter, seed, network, stream=0, threads=THREADS):
    """New quantile levels, on a GPU or in the simulator."""
    levels_kernel[blocks_for(out.shape[0], threads), threads, stream](out, counter, seed, network)
