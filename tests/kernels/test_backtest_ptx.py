"""The backtest kernel compiles for the architectures with tensor cores: inlined, in registers, float64 for money alone."""

import re

import pytest
from ptx import MONEY, check_assembles, check_float64, check_inlined, compile_ptx

SOURCE = """
    from numba import typeof
    from numba_rl.config import Config
    from numba_rl.gpu import jit
    from numba_rl.kernels.backtest_policy import backtest_function
    from numba_rl.kernels.mma import tiles_of
    from numba_rl.kernels.settled import pattern_of
    from numba_rl.kernels.step import Launch
    from numba_rl.rules.parameters import rules_of

    rules, launch = rules_of(Config()), Launch(0, 0, 0, 0, 0, 1.0)
    outputs = (array(f64, 2), array(types.int8, 2), array(f64, 2), array(i32), array(i32))
    arguments = (
        array(types.uint64), array(f32), array(u32, 2), array(f64, 2), array(i32), array(i32), *outputs, typeof(launch), typeof(rules), i64
    )
    KERNELS = {
        name: (jit(backtest_function(tiles_of(51, (128, 64)), pattern_of(rules), name == "greedy")), arguments) for name in ("greedy", "softmax")
    }
"""


@pytest.fixture(scope="module")
def ptx():
    return compile_ptx(SOURCE)


def test_the_same_code_is_good_for_the_oldest_architecture(ptx):
    check_assembles(ptx, (8, 0))


def test_everything_is_inlined_and_stays_in_registers(ptx):
    check_inlined(ptx)
    for name, text in ptx.items():
        assert "mma.sync.aligned.m16n8k16" in text, name


def test_float64_is_for_money_alone(ptx):
    check_float64(ptx, MONEY | {"rcp.rn.f64"})


def test_nan_checks_are_there_and_greedy_draws_nothing(ptx):
    assert re.search(r"setp\.(nan|neu|equ|num)\.f32", ptx["greedy"])
    assert "ex2.approx" not in ptx["greedy"] and "ex2.approx" in ptx["softmax"]
