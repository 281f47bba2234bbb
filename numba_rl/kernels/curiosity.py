"""The curiosity bonus of a whole rollout, its forward model evaluated inside one kernel.

The model (see trainer.curiosity): the first m = min(32, F) market features of a bar and the three parts of the action in
[-1, 1] -> hidden (ReLU) -> the same features of the next bar. Bonus = min(mean squared error, ceiling), float32.

features float32 [T, F]; bars int32, actions int32, bonus float32 [S]; w1 float32 [hidden, m + 3], b1 [hidden], w2 [m, hidden],
b2 [m]. Launch: a thread a sample, weights in shared memory (17 KB for 35-64-32), hidden units in registers.
"""

from functools import cache

from numba_rl.gpu import blocks_for, cuda, float32, jit, uint32
from numba_rl.kernel_cache import cached

FEATURES, CEILING, THREADS = 32, 0.1, 128


@cache
def curiosity_kernel(m, hidden):
    """The kernel for a model of `m` features and `hidden` units."""
    inputs = m + 3

    def curiosity(features, bars, actions, w1, b1, w2, b2, ceiling, bonus):
        first = cuda.shared.array((inputs, hidden), float32)  # transposed: neighbouring units side by side
        second = cuda.shared.array((m, hidden), float32)
        bias1 = cuda.shared.array(hidden, float32)
        bias2 = cuda.shared.array(m, float32)
        for i in range(cuda.threadIdx.x, inputs * hidden, cuda.blockDim.x):
            first[i % inputs, i // inputs] = w1[i // inputs, i % inputs]
        for i in range(cuda.threadIdx.x, m * hidden, cuda.blockDim.x):
            second[i // hidden, i % hidden] = w2[i // hidden, i % hidden]
        for i in range(cuda.threadIdx.x, hidden, cuda.blockDim.x):
            bias1[i] = b1[i]
        for i in range(cuda.threadIdx.x, m, cuda.blockDim.x):
            bias2[i] = b2[i]
        cuda.syncthreads()
        sample = uint32(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x)
        if sample >= bars.shape[0]:
            return
        bar = uint32(bars[sample])
        action = actions[sample]
        units = cuda.local.array(hidden, float32)
        for o in range(hidden):
            units[o] = bias1[uint32(o)]
        for i in range(inputs):
            x = float32(action // 9) * float32(0.5) - float32(1.0)
            if i < m:
                x = features[bar, uint32(i)]
            elif i == m + 1:
                x = float32(action // 3 % 3) - float32(1.0)
            elif i == m + 2:
                x = float32(action % 3) - float32(1.0)
            for o in range(hidden):
                units[o] += first[uint32(i), uint32(o)] * x
        for o in range(hidden):
            units[o] = max(units[o], float32(0.0))
        error = float32(0.0)
        for k in range(m):
            predicted = bias2[uint32(k)]
            for o in range(hidden):
                predicted += second[uint32(k), uint32(o)] * units[o]
            apart = predicted - features[uint32(bar + 1), uint32(k)]
            error += apart * apart
        bonus[sample] = min(error / float32(m), ceiling)

    return cached(jit(curiosity))


def launch_curiosity(features, bars, actions, layers, bonus, ceiling=CEILING, stream=0, threads=THREADS):
    """Fill `bonus`; layers: (w1, b1, w2, b2)."""
    w1, b1, w2, b2 = layers
    kernel = curiosity_kernel(w2.shape[0], w1.shape[0])
    kernel[blocks_for(bars.shape[0], threads), threads, stream](features, bars, actions, w1, b1, w2, b2, float32(ceiling), bonus)
