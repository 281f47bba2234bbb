"""A layer's backward with the ReLU below it in one launch: it compiles without spills, and what was compiled is run by tests/ptx_machine.py."""

import numpy as np
import pytest
from ptx import check_code, check_float64, check_inlined, check_registers, compile_ptx
from ptx_machine import Machine, Played

from numba_rl.kernels import hidden_gradient
from numba_rl.kernels.q_layout import as_float, as_pairs

INNER = (8, 48, 256, hidden_gradient.MOST_INNER)
SOURCE = f"""
    from numba_rl.gpu import jit
    from numba_rl.kernels.hidden_gradient import function

    pairs = array(u32, 2)
    KERNELS = {{str(inner): (jit(function(inner)), (pairs, pairs, pairs, pairs, array(f32, 2), i64)) for inner in {INNER}}}
"""


@pytest.fixture(scope="module")
def ptx():
    return compile_ptx(SOURCE)


def test_everything_is_inlined_and_nothing_is_spilled(ptx):
    check_inlined(ptx)
    check_float64(ptx, frozenset())
    check_registers(ptx, 128)
    for name, text in ptx.items():
        assert Machine(text).program.shared_bytes <= 48 * 1024, name


def test_the_code_is_small(ptx):
    check_code(ptx, dict.fromkeys(ptx, 8_000))


def test_products_are_on_tensor_cores(ptx):
    for name, text in ptx.items():
        steps = hidden_gradient.steps_of(int(name))
        assert text.count("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") == 2 * steps, name
        assert text.count("ldmatrix.sync.aligned.m8n8.x4.trans") == text.count("ldmatrix.sync.aligned.m8n8.x4.shared") == steps, name


@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 8, 8), (32, 48, 32), (70, 48, 72), (33, 256, 40), (64, 304, 64)])
def test_what_was_compiled_gives_the_gradient_and_its_sums(ptx, rows, inner, columns):
    random = np.random.default_rng(rows)
    above, weight, hidden = (random.standard_normal(size).astype(np.float32) for size in ((rows, inner), (inner, columns), (rows, columns)))
    hidden = np.maximum(hidden, 0)
    hidden[::3] *= random.choice(np.float32([1, -0.0]), hidden[::3].shape)
    hidden[0, 0] = np.float32(1e-40)  # the smallest numbers are above zero
    pairs = [as_pairs(values) for values in (above, weight, hidden)]
    above, weight, hidden = (as_float(words) for words in pairs)
    wanted = np.where(hidden > 0, above.astype(np.float64) @ weight, 0)
    groups = -(-rows // hidden_gradient.SIDE)
    partial = np.full((groups + 1, columns + 5), 9, np.float32)
    gradient = np.full((rows, columns // 2), 0x7FC17FC1, np.uint32)  # not a number
    hidden_gradient.launch(Played(ptx[str(inner)]), *pairs, gradient, partial, 3)
    scale = np.sqrt(inner)
    np.testing.assert_allclose(as_float(gradient), wanted, rtol=2**-8, atol=1e-6 * scale)
    assert (as_float(gradient)[hidden == 0] == 0).all()
    by_group = [wanted[k * hidden_gradient.SIDE :][: hidden_gradient.SIDE].sum(0) for k in range(groups)]
    np.testing.assert_allclose(partial[:groups, 3:-2], by_group, rtol=0, atol=1e-5 * scale)
    assert (partial[:, :3] == 9).all() and (partial[:, -2:] == 9).all() and (partial[groups] == 9).all(), "the rest is left alone"


def test_small_batches_pay_and_large_ones_do_not():
    assert hidden_gradient.pays(1024, 256, 132) and not hidden_gradient.pays(2048, 256, 132)
