"""Philox-4x32-10: the published answers, the same draws on every path, and draws that are uniform and addressed."""

import numpy as np
import pytest
from numba import njit
from scipy import stats

from numba_rl.gpu import cuda, jit
from numba_rl.rules.philox import ACTION, START, below, bits, philox, uniform

ONES = 0xFFFFFFFF
# Random123 1.14, kat_vectors: counter, key, answer
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


@jit
def words_kernel(inputs, words):
    row = cuda.grid(1)
    if row < inputs.shape[0]:
        a, b, c, d = philox(inputs[row, 4], inputs[row, 5], inputs[row, 0], inputs[row, 1], inputs[row, 2], inputs[row, 3])
        words[row, 0] = a
        words[row, 1] = b
        words[row, 2] = c
        words[row, 3] = d


@jit
def uniforms_kernel(seed, first, values):
    slot = cuda.grid(1)
    if slot < values.shape[1]:
        for step in range(values.shape[0]):
            values[step, slot] = uniform(seed, ACTION, slot, 0, first + step, 0)


@njit
def uniforms(seed, purpose, slots, steps, first=0):
    values = np.empty((steps, slots), np.float32)
    for step in range(steps):
        for slot in range(slots):
            values[step, slot] = uniform(seed, purpose, slot, 0, first + step, 0)
    return values


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter, key, answer):
    assert tuple(int(word) for word in philox(*key, *counter)) == answer


def test_known_answers_in_a_kernel():
    inputs = np.array([counter + key for counter, key, _ in KNOWN], np.int64)
    words = np.zeros((3, 4), np.int64)
    words_kernel[1, 4](inputs, words)
    assert words.tolist() == [list(answer) for _, _, answer in KNOWN]


def test_a_kernel_draws_as_the_cpu_at_any_launch_length():
    values = np.zeros((6, 5), np.float32)
    uniforms_kernel[2, 4](7, 0, values)
    assert np.array_equal(values, uniforms(7, ACTION, 5, 6))
    late = np.zeros((3, 5), np.float32)
    uniforms_kernel[5, 1](7, 3, late)
    assert np.array_equal(late, values[3:])


def test_uniforms_are_in_range_and_uniform():
    values = uniforms(1, ACTION, 1000, 1000)
    assert values.dtype == np.float32 and values.min() >= 0.0 and values.max() < 1.0
    assert stats.kstest(values.ravel()[::7], "uniform").pvalue > 1e-4
    counts = np.bincount((values * 256).astype(int).ravel(), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_streams_and_steps_are_uncorrelated():
    values = uniforms(1, ACTION, 200, 5000) - 0.5
    bound = 5 / 12 / np.sqrt(4999)  # 5 deviations of a mean of products of two uniforms' deviations
    assert np.abs((values[:, :-1] * values[:, 1:]).mean(0)).max() < bound  # neighbouring slots
    assert np.abs((values[:-1] * values[1:]).mean(0)).max() < bound  # neighbouring steps


def test_every_part_of_the_address_matters():
    address = {"seed": 3, "purpose": ACTION, "slot": 5, "restart": 0, "step": 9, "draw": 0}
    base = bits(*address.values())
    for name, other in {"seed": 4, "purpose": START, "slot": 6, "restart": 1, "step": 10, "draw": 1}.items():
        assert bits(*(address | {name: other}).values()) != base, name
    assert bits(*(address | {"step": 9 + 2**32}).values()) != base  # 64-bit steps
    assert bits(*(address | {"slot": 2**28 - 1}).values()) != bits(*(address | {"slot": 2**28 - 2}).values())


def test_below_covers_its_range_evenly():
    @njit
    def draw(n, times):
        out = np.empty(times, np.int64)
        for i in range(times):
            out[i] = below(n, 1, START, i, 0, 0, 0)
        return out

    drawn = draw(7, 70_000)
    assert stats.chisquare(np.bincount(drawn, minlength=7)).pvalue > 1e-4 and drawn.max() == 6
    assert draw(1, 10).tolist() == [0] * 10
    assert draw(2**32 - 1, 2000).max() > 2**31 and draw(2**32 - 1, 2000).min() >= 0
