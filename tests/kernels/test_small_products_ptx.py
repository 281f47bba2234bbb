"""Products of small batches, forward and backward: they compile without spills, and what was compiled is run by tests/ptx_machine.py."""

import numpy as np
import pytest
from ptx import assembled, check_float64, check_inlined, compile_ptx
from ptx_machine import Machine, Played

from numba_rl.kernels import small_products
from numba_rl.kernels.q_layout import as_float, as_pairs

INNER = (8, 56, 256, small_products.MOST_INNER)
NAMES = small_products.Kernels._fields
SOURCE = f"""
    from numba_rl.gpu import jit
    from numba_rl.kernels.small_products import functions

    pairs, table = array(u32, 2), array(f32, 2)
    ARGUMENTS = (pairs, pairs, array(u32), pairs), (pairs, pairs, table), (pairs, pairs, pairs, pairs, table, i64)
    KERNELS = {{
        f"{{name}} {{inner}}": (jit(function), arguments)
        for inner in {INNER}
        for name, function, arguments in zip({NAMES}, functions(inner), ARGUMENTS)
    }}
"""


@pytest.fixture(scope="module")
def ptx():
    return compile_ptx(SOURCE)


def test_everything_is_inlined_and_nothing_is_spilled(ptx):
    check_inlined(ptx)
    check_float64(ptx, frozenset())
    for name, text in ptx.items():
        for capability in ((8, 0), (9, 0)):
            registers, spilled = assembled(text, capability)
            assert registers <= 128 and spilled == 0, (name, capability, registers, spilled)
        assert Machine(text).program.shared_bytes <= 48 * 1024, name


def test_products_are_on_tensor_cores(ptx):
    for name, text in ptx.items():
        kind, inner = name.split()
        steps = small_products.steps_of(int(inner))
        assert text.count("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") == 2 * steps, name
        turned, straight = (text.count(f"ldmatrix.sync.aligned.m8n8.x4.{word}") for word in ("trans", "shared"))
        assert (turned, straight) == ((steps, steps) if kind == "hidden_gradient" else (0, 2 * steps)), name


def kernels(ptx, inner):
    return small_products.Kernels(*(Played(ptx[f"{name} {inner}"]) for name in NAMES))


@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 8, 8), (32, 56, 32), (70, 56, 72), (33, 256, 48), (64, 304, 64)])
def test_what_was_compiled_gives_the_layers(ptx, rows, inner, columns):
    random = np.random.default_rng(rows)
    values = (random.standard_normal(size).astype(np.float32) for size in ((rows, inner), (columns, inner), (1, columns)))
    x, weight, bias = (as_pairs(value) for value in values)
    sums = as_float(x).astype(np.float64) @ as_float(weight).T
    out, last = np.full((rows, columns // 2), 0x7FC17FC1, np.uint32), np.full((rows, columns), np.nan, np.float32)
    small_products.launch_dense(kernels(ptx, inner), x, weight, bias[0], out)
    small_products.launch_last(kernels(ptx, inner), x, weight, last)
    np.testing.assert_allclose(as_float(out), np.maximum(sums + as_float(bias), 0), rtol=2**-8, atol=1e-5 * inner**0.5)
    np.testing.assert_allclose(last, sums, rtol=0, atol=1e-6 * inner)


def test_a_number_that_is_none_stays_none(ptx):
    x = as_pairs(np.full((4, 8), np.nan, np.float32))
    out = np.zeros((4, 4), np.uint32)
    small_products.launch_dense(kernels(ptx, 8), x, as_pairs(np.ones((8, 8), np.float32)), np.zeros(4, np.uint32), out)
    assert np.isnan(as_float(out)).all()


@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 8, 8), (32, 56, 32), (70, 56, 72), (33, 256, 40), (64, 304, 64)])
def test_what_was_compiled_gives_the_gradient_and_its_sums(ptx, rows, inner, columns):
    random = np.random.default_rng(rows)
    above, weight, hidden = (random.standard_normal(size).astype(np.float32) for size in ((rows, inner), (inner, columns), (rows, columns)))
    hidden = np.maximum(hidden, 0)
    hidden[::3] *= random.choice(np.float32([1, -0.0]), hidden[::3].shape)
    hidden[0, 0] = np.float32(1e-40)  # the smallest numbers are above zero
    pairs = [as_pairs(values) for values in (above, weight, hidden)]
    above, weight, hidden = (as_float(words) for words in pairs)
    wanted = np.where(hidden > 0, above.astype(np.float64) @ weight, 0)
    groups = -(-rows // small_products.SIDE)
    partial = np.full((groups + 1, columns + 5), 9, np.float32)
    gradient = np.full((rows, columns // 2), 0x7FC17FC1, np.uint32)  # not a number
    small_products.launch_hidden_gradient(kernels(ptx, inner), *pairs, gradient, partial, 3)
    scale = np.sqrt(inner)
    np.testing.assert_allclose(as_float(gradient), wanted, rtol=2**-8, atol=1e-6 * scale)
    assert (as_float(gradient)[hidden == 0] == 0).all()
    by_group = [wanted[k * small_products.SIDE :][: small_products.SIDE].sum(0) for k in range(groups)]
    np.testing.assert_allclose(partial[:groups, 3:-2], by_group, rtol=0, atol=1e-5 * scale)
    assert (partial[:, :3] == 9).all() and (partial[:, -2:] == 9).all() and (partial[groups] == 9).all(), "the rest is left alone"


def test_small_batches_pay_and_large_ones_do_not():
    assert small_products.pays(1024, 256, 132) and not small_products.pays(16_384, 256, 132)
