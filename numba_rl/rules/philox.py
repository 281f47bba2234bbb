"""Counter-based random numbers: Philox-4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").

A draw is a pure function of where it is used, so every grid, block and launch length, and the GPU, the simulator and the
CPU, see the same numbers. The 64-bit key is (seed, purpose and slot); the 128-bit counter is (step, restart, draw):

    key     k0 = seed (32 bits)                k1 = purpose (4 bits) << 28 | slot (28 bits)
    counter c0, c1 = step, low and high half   c2 = restart (32 bits)   c3 = draw (32 bits)

Which draw is which (`slot` is the episode slot unless another meaning is given):

    purpose      slot            step                     restart           draw
    START        episode slot    0                        episode number    0: first bar of the episode
    ACTION       episode slot    steps played by the slot 0                 0: action of the policy
    EXPLORE      episode slot    steps played by the slot 0                 0: explore or not, 1-3: the random action's parts
    REPLAY       sample number   samples drawn so far     0                 0: place in the stratum
    NOISE        layer           noise resets so far      network           unit
    EVALUATE     window          step in the window       0                 0: action of a softmax policy
    BASELINE     path            step                     0                 0: trade or not, 1: which exposure
    QUANTILE     network         batches drawn so far     0                 sample: level of a quantile
"""

from numba import njit, uint32, uint64
from numpy import float32

START, ACTION, EXPLORE, REPLAY, NOISE, EVALUATE, BASELINE, QUANTILE = range(1, 9)


@njit(error_model="numpy")
def philox(k0, k1, c0, c1, c2, c3):
    """Four random 32-bit words for key (k0, k1) and counter (c0, c1, c2, c3), all uint32. 10 rounds."""
    k0 = uint32(k0)
    k1 = uint32(k1)
    x0 = uint32(c0)
    x1 = uint32(c1)
    x2 = uint32(c2)
    x3 = uint32(c3)
    for _ in range(10):
        p0 = uint64(0xD2511F53) * uint64(x0)
        p1 = uint64(0xCD9E8D57) * uint64(x2)
        x0 = uint32(uint32(p1 >> uint64(32)) ^ x1 ^ k0)
        x1 = uint32(p1 & uint64(0xFFFFFFFF))
        x2 = uint32(uint32(p0 >> uint64(32)) ^ x3 ^ k1)
        x3 = uint32(p0 & uint64(0xFFFFFFFF))
        k0 = uint32(k0 + uint32(0x9E3779B9))
        k1 = uint32(k1 + uint32(0xBB67AE85))
    return x0, x1, x2, x3


@njit(error_model="numpy")
def uniform(seed, purpose, slot, restart, step, draw):
    """One uniform float32 in [0, 1), never 1, with 24 random bits. step is 64 bits wide, the others 32 (slot 28)."""
    word = bits(seed, purpose, slot, restart, step, draw)
    return float32(word >> uint32(8)) * float32(1.0 / 16777216.0)


@njit(error_model="numpy")
def bits(seed, purpose, slot, restart, step, draw):
    """One random uint32, addressed as in `uniform`."""
    key = (uint32(purpose) << uint32(28)) | uint32(slot)
    x0, _, _, _ = philox(seed, key, uint32(step), uint32(uint64(step) >> uint64(32)), restart, draw)
    return uint32(x0)


@njit(error_model="numpy")
def below(n, seed, purpose, slot, restart, step, draw):
    """One random integer in [0, n), n below 2**32, by the high half of a 32 x 32 bit product (bias below n / 2**32)."""
    return uint32((uint64(bits(seed, purpose, slot, restart, step, draw)) * uint64(n)) >> uint64(32))
