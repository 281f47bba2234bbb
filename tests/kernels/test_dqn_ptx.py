"""The kernels of DQN as PTX: no float64 but where it is meant, no local memory, NaN checks still there."""

import re

import pytest
from ptx import arithmetic, assembled, check_code, compile_ptx

SOURCE = """
from numba_rl.kernels import noise, n_step, route, select
from numba_rl.kernels.dqn_loss import make_dqn_loss
floats, column, integers, pairs = array(f32, 2), array(f32), array(i32), array(u32, 2)
tail = (array(f32, 3), array(f32, 3), array(i32, 2), floats, array(types.int16, 2))
out = (floats, floats, integers, column, column, integers)
KERNELS = {
    "select": (select.select_kernel, (integers, floats, array(i64, 2), array(f64, 2), floats, array(i32, 2), column, i64, i64)),
    "route": (route.route_kernel, (floats, array(f64), column, floats)),
    "noise": (noise.noise_kernel, (column, integers, integers, array(i64), i64, i64)),
    "levels": (noise.levels_kernel, (column, array(i64), i64, i64)),
    "n_step": (n_step.transitions_kernel, (i64, i64, i64, f32, i64, *tail, *tail, *out)),
    "dqn_loss": (make_dqn_loss(45, 48), (floats, column, floats, column, integers, column, column, integers, column, column, i64, column,
                 column, pairs, floats, i64, floats, floats)),
}
"""


@pytest.fixture(scope="module")
def ptx():
    return compile_ptx(SOURCE)


def test_the_same_code_is_good_for_the_oldest_architecture(ptx):
    for name, text in ptx.items():
        registers, spilled = assembled(text, (8, 0) if name == "dqn_loss" else (7, 5))
        assert registers > 0 == spilled, name


def test_no_local_memory_and_no_float64(ptx):
    for name, text in ptx.items():
        assert ".local" not in text, f"{name} spills to local memory"
        # what is held is money's float64, which routing compares
        meant = {"abs.f64", "neg.f64", "sub.f64", "add.f64", "mul.f64", "fma.rn.f64", "add.rn.f64", "sub.rn.f64", "mul.rn.f64"}
        assert arithmetic(text, "f64") <= (meant if name in ("select", "route") else set()), name


def test_the_code_of_an_update_is_small(ptx):
    check_code(ptx, {"dqn_loss": 7_500, "n_step": 6_000})


def test_nan_is_still_looked_for(ptx):
    # isnan compiles to an unordered "greater than infinity" of the magnitude; without the check none is left
    assert re.search(r"setp\.gtu\.f32\s+%p\d+, %f\d+, 0f7F800000", ptx["select"])
