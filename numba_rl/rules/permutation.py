"""A random permutation without memory or sorting: where item i goes is computed from i alone.

An unbalanced Feistel network over the smallest power of two that holds n, walked until the value falls below n (Black and
Rogaway 2002, "Ciphers with arbitrary finite domains"). It is a bijection of 0..n-1 for every key; 12 rounds mix well enough
to shuffle minibatches, not to hide secrets.
"""

from numba import njit, uint32, uint64

ROUNDS = 12


@njit(error_model="numpy")
def mixed(x, key):
    """A 32-bit hash of x under a key (two rounds of multiply and xor-shift, constants of Wellons' lowbias32)."""
    x = uint32(uint32(x) ^ uint32(key))
    x = uint32(x ^ (x >> uint32(16)))
    x = uint32(uint64(x) * uint64(0x7FEB352D))
    x = uint32(x ^ (x >> uint32(15)))
    x = uint32(uint64(x) * uint64(0x846CA68B))
    return uint32(x ^ (x >> uint32(16)))


@njit(error_model="numpy")
def permuted(i, n, seed, turn):
    """The place of item i (0 <= i < n < 2**31) in permutation number `turn` of seed `seed`; an int64 in [0, n)."""
    bits = 1
    while (uint64(1) << uint64(bits)) < uint64(n):
        bits += 1
    low_bits = uint32(bits // 2)
    high_bits = uint32(bits - bits // 2)
    low_mask = uint32((uint32(1) << low_bits) - uint32(1))
    high_mask = uint32((uint32(1) << high_bits) - uint32(1))
    key = mixed(uint32(turn), mixed(uint32(seed), uint32(0x9E3779B9)))
    x = uint32(i)
    while True:
        low = uint32(x & low_mask)
        high = uint32(x >> low_bits)
        for turn_of in range(ROUNDS // 2):
            high = uint32(high ^ (mixed(low, uint32(key + uint32(2 * turn_of))) & high_mask))
            low = uint32(low ^ (mixed(high, uint32(key + uint32(2 * turn_of + 1))) & low_mask))
        x = uint32((high << low_bits) | low)
        if x < uint32(n):
            break
    return int(x)
