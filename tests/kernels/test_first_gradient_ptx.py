"""The first layer's backward in one pass: it compiles without spills, and what was compiled is run by tests/ptx_machine.py."""

import numpy as np
import pytest
from ptx import check_code, check_float64, check_inlined, check_registers, compile_ptx
from ptx_machine import Machine, Played
from reference.ppo import first_layer

from numba_rl.gpu import most_registers
from numba_rl.kernels import first_gradient
from numba_rl.kernels.q_layout import as_float, as_pairs

INPUTS = (8, 40, 56, 64)
SOURCE = f"""
    from numba_rl.gpu import jit
    from numba_rl.kernels.first_gradient import functions

    pairs, table, parts = array(u32, 2), array(f32, 2), array(f32, 3)
    KERNELS = {{str(inputs): (jit(functions(inputs)[0]), (pairs, pairs, pairs, parts, table, i64)) for inputs in {INPUTS}}}
    KERNELS["total"] = (jit(functions(8)[1]), (parts, table))
"""


@pytest.fixture(scope="module")
def ptx():
    return compile_ptx(SOURCE)


def test_everything_is_inlined_and_nothing_is_spilled(ptx):
    check_inlined(ptx)
    check_float64(ptx, frozenset())
    check_registers(ptx, most_registers(first_gradient.RESIDENT * first_gradient.THREADS))
    check_code(ptx, dict.fromkeys(ptx, 9_500))


def test_copies_are_asynchronous_and_products_on_tensor_cores(ptx):
    for name, text in ptx.items():
        if name != "total":
            tiles = first_gradient.tiles_of(int(name))
            assert text.count("cp.async.cg.shared.global") == 5 and text.count("cp.async.wait_group 2") == 1, name
            assert text.count("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") == 4 * tiles, name
            assert text.count("ldmatrix.sync.aligned.m8n8.x4.trans") == 4 + tiles, name


def random_layer(rows, first, inputs):
    """Gradient, outputs with zeros of both signs among them, and inputs: as pairs and as float32."""
    random = np.random.default_rng(rows)
    gradient, hidden, x = (random.standard_normal((rows, size)).astype(np.float32) for size in (first, first, inputs))
    hidden = np.maximum(hidden, 0)
    hidden[::3] *= random.choice(np.float32([1, -0.0]), hidden[::3].shape)
    hidden[0, 0] = np.float32(1e-40)  # the smallest numbers are above zero
    pairs = [as_pairs(values) for values in (gradient, hidden, x)]
    return pairs, [as_float(words) for words in pairs]


@pytest.mark.parametrize(("rows", "first", "inputs", "groups"), [
    (1, 8, 8, 1), (16, 128, 56, 1), (150, 136, 56, 2), (250, 40, 64, 3), (77, 264, 40, 4),
])  # fmt: skip
def test_what_was_compiled_gives_the_gradients(ptx, rows, first, inputs, groups):
    pairs, values = random_layer(rows, first, inputs)
    weight, bias = first_layer(*values)
    parts = np.full((groups, first, inputs), np.nan, np.float32)
    partial = np.full((groups + 1, first + 5), 9, np.float32)
    found = np.full((first, inputs), np.nan, np.float32)
    before = [part.copy() for part in pairs]
    first_gradient.launch((Played(ptx[str(inputs)]), Played(ptx["total"])), *pairs, parts, partial, 3, found)
    np.testing.assert_allclose(found, weight, rtol=0, atol=1e-6 * rows)
    np.testing.assert_allclose(partial[:groups, 3:-2].astype(np.float64).sum(0), bias, rtol=0, atol=1e-6 * rows)
    assert (partial[:, :3] == 9).all() and (partial[:, -2:] == 9).all() and (partial[groups] == 9).all(), "other columns are left alone"
    for part, was in zip(pairs, before, strict=True):
        np.testing.assert_array_equal(part, was)


def test_static_shared_memory_is_enough(ptx):
    for name, text in ptx.items():
        assert Machine(text).program.shared_bytes <= 48 * 1024, name


def test_groups_fill_a_gpu_and_keep_their_rows():
    assert first_gradient.groups_for(131_072, 640, 132) == 52 and first_gradient.groups_for(16_000, 640, 132) == 31
    assert first_gradient.groups_for(10, 640, 132) == 1
    assert first_gradient.pays(16_000, 640, 132) and not first_gradient.pays(4_000, 640, 132)
