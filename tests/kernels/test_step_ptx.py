"""The kernels that step slots and windows, and the sampling one, compile, with float64 for money alone and their NaN checks."""

import re

import pytest
from ptx import arithmetic, check_assembles, compile_ptx

from numba_rl.rules.user_reward import ARGUMENTS

SOURCE = """
    import os, tempfile
    from numba import typeof
    from numba_rl.config import Config
    from numba_rl.kernels import backtest
    from numba_rl.kernels.sampling import sample_kernel
    from numba_rl.kernels.step import Launch, steppers
    from numba_rl.rules.parameters import rules_of
    from numba_rl.rules.user_reward import load_reward

    path = os.path.join(tempfile.mkdtemp(), "mine.py")
    with open(path, "w") as file:
        file.write("import math\\ndef reward({arguments}):\\n    return 100 * math.sqrt(equity_after / equity_before) - 0.1 * cost * step\\n")
    rules, launch = typeof(rules_of(Config())), typeof(Launch(0, 0, 0, 0, 0, 1.0))
    floats, doubles, integers, longs = array(f32, 2), array(f64, 2), array(i32, 2), array(i64, 2)
    slots = (doubles, doubles, longs, doubles, longs)
    market = (doubles, floats)
    outputs = (array(f32, 3), array(f32, 3), array(i32), integers, floats, floats, integers, array(types.int16, 2), array(i32))
    step = (array(i32), floats, *slots, *market, *outputs, launch, rules)
    game = (*slots, *market, array(f32, 3), floats, array(f64), array(f32))  # of windows: the states, and what routing needs
    results = (doubles, integers, floats, array(f64, 3), array(i64), array(i32), array(i32))
    KERNELS = {
        "open windows": (backtest.open_kernel, (*game, rules)),
        "step windows": (backtest.step_kernel, (floats, *game, *results, launch, rules)),
        "step": (steppers().step_kernel, step),
        "step with a user's reward": (steppers(load_reward(path + ":reward")).step_kernel, step),
        "start": (steppers().start_kernel, (*slots, *market, array(f32, 3), i64, launch, rules)),
        "sample": (sample_kernel, (floats, array(f32), f32, array(i32), array(f32))),
    }
""".replace("{arguments}", ", ".join(ARGUMENTS))


@pytest.fixture(scope="module")
def ptx():
    return compile_ptx(SOURCE)


def test_the_same_code_is_good_for_the_oldest_architecture(ptx):
    check_assembles(ptx, (7, 5))


def test_every_kernel_compiles_without_local_memory(ptx):
    assert len(ptx) == 6
    for name, text in ptx.items():
        assert ".entry" in text and ".local" not in text, name


def test_float64_is_for_money_alone(ptx):
    assert arithmetic(ptx["sample"], "f64") == set()
    # the ledger and the differential Sharpe ratio; logarithms and exponentials are float32
    meant = {"add.f64", "sub.f64", "mul.f64", "fma.rn.f64", "div.rn.f64", "abs.f64", "neg.f64", "min.f64", "max.f64", "sqrt.rn.f64"}
    for name in ("step", "step with a user's reward", "start", "open windows", "step windows"):
        found = {word.replace(".rn.f64", ".f64") if word.startswith(("add", "sub", "mul")) else word for word in arithmetic(ptx[name], "f64")}
        assert found <= meant, name
    assert not re.search(r"lg2\.approx|sin\.approx|cos\.approx|div\.approx|sqrt\.approx", ptx["step"])  # no fast math near money


def test_nan_logits_are_still_looked_for(ptx):
    for name in ("sample", "step", "step windows"):
        # the total must be greater than 0 and less than infinity, which a NaN is not: both comparisons, on the same register
        below = set(re.findall(r"setp\.(?:lt|geu)\.f32\s+%p\d+, (%f\d+), 0f7F800000", ptx[name]))
        above = set(re.findall(r"setp\.(?:gt|leu)\.f32\s+%p\d+, (%f\d+), 0f00000000", ptx[name]))
        assert below & above, name
