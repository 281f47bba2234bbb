"""C-03: compiled functions kept on disk follow edits anywhere in the package. Every child is a process of its own on a copy of the package."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba import njit

from numba_rl.data.synthetic import generate
from numba_rl.data.write import write_bars
from numba_rl.kernel_cache import cached

PACKAGE = Path(__file__).parents[2] / "numba_rl"
UNITS, PRICE, RATE = 50.0, 100.0, 0.001  # a notional of 5000
OLD, NEW = "fee = rate * abs(units * price)", "fee = 2.0 * rate * abs(units * price)"

# The fee comes from numba_rl/rules/portfolio.py; what is kept on disk is the function here that calls it, as kernels do.
ON_CPU = f"""
from numba import njit
from numba_rl.config import Config, MarketConfig
from numba_rl.kernel_cache import cache_directory, cached
from numba_rl.rules.parameters import rules_of
from numba_rl.rules.portfolio import fee_of

@cached
@njit(error_model="numpy")
def fee(units, price, rate, rules):
    return fee_of(units, price, rate, rules)

print(fee({UNITS}, {PRICE}, {RATE}, rules_of(Config(), 1.0)), sum(fee.stats.cache_hits.values()), cache_directory())
"""
ON_GPU = f"""
import torch
from numba_rl import gpu
from numba_rl.config import Config
from numba_rl.kernel_cache import cache_directory, cached
from numba_rl.rules.parameters import rules_of
from numba_rl.rules.portfolio import fee_of

@cached
@gpu.jit
def fee(out, units, price, rate, rules):
    out[0] = fee_of(units, price, rate, rules)

out = torch.zeros(1, dtype=torch.float64, device="cuda")
fee[1, 1, gpu.stream(torch.cuda.current_stream().cuda_stream)](gpu.view(out), {UNITS}, {PRICE}, {RATE}, rules_of(Config(), 1.0))
print(out.item(), sum(fee.stats.cache_hits.values()), cache_directory())
"""
ROUTE = """
import numpy as np
from numba_rl.kernels.route import route_cpu
out = np.zeros((1, 45), np.float32)
route_cpu(np.ones((1, 5), np.float32), np.zeros(1), np.ones(1, np.float32), out)
print([int(action) for action in np.flatnonzero(np.isfinite(out[0]))])
"""

# Kernels compiled for a GPU that is not there: what is found in the cache, and what is put there.
KERNELS = """
import numba.cuda.codegen
import numba.cuda.dispatcher as dispatcher
from numba import types

class Device:
    compute_capability = (9, 0)

class Context:
    device = Device

class Runtime:
    def get_version(self):
        return 13, 0

dispatcher.get_current_device = Device
numba.cuda.codegen.devices.get_context = Context
numba.cuda.codegen.runtime.runtime = Runtime()

from numba_rl.kernels import adam, gae
from numba_rl.kernels.replay_layout import choose_layout
from numba_rl.kernels.replay_sample import locate_kernel

def array(element, dimensions=1):
    return types.Array(element, dimensions, "C")

f32, f64, i64 = types.float32, types.float64, types.int64
floats, doubles, table = array(f32), array(f64), array(f32, 2)
locate = floats, doubles, doubles, doubles, i64, array(i64)
kernels = [
    (gae.gae_kernel, (table, table, array(types.int16, 2), table, f32, f32, table, table)),
    (adam.make_kernels()[0], (floats, table, floats, i64, i64, floats, table, floats, floats)),
    (locate_kernel(choose_layout(1000, 54), 8), locate), (locate_kernel(choose_layout(500_000, 54), 8), locate),
]
found = []
for kernel, signature in kernels:
    found.append(kernel._cache.load_overload(signature, kernel.targetctx) is not None)
    if not found[-1]:
        kernel._cache.save_overload(signature, dispatcher._Kernel(kernel.py_func, signature, **kernel.targetoptions))
print(*found)
"""


@pytest.fixture
def child(tmp_path):
    """Runs a program on a copy of the package, with a cache of its own; gives what it printed, as words, and its warnings."""
    shutil.copytree(PACKAGE, tmp_path / "numba_rl", ignore=shutil.ignore_patterns("__pycache__"))

    def run(program, cache="cache", gpu=False):
        path = tmp_path / "program.py"
        if not path.exists() or path.read_text() != program:  # its time is part of what CUDA's functions are found by
            path.write_text(program)
        beside = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(beside), "RLTRAIN_CACHE_DIR": str(tmp_path / cache)}
        environment["NUMBA_ENABLE_CUDASIM"] = "0" if gpu else "1"
        done = subprocess.run(
            [sys.executable, "program.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1], done.stderr

    run.folder = tmp_path
    return run


def edit(path, old, new):
    source = path.read_text()
    assert source.count(old) == 1, f"{path} does not say {old!r} once: adapt this test"
    path.write_text(source.replace(old, new))


def fee_in(child, program, **options):
    said, _ = child(program, **options)
    fee, hits, folder = said.split()
    return float(fee), int(hits), Path(folder).name


def check_fees(child, program, **options):
    assert fee_in(child, program, **options)[:2] == (5.0, 0)
    fee, hits, before = fee_in(child, program, **options)
    assert (fee, hits) == (5.0, 1), "the second process does not compile again"
    edit(child.folder / "numba_rl" / "rules" / "portfolio.py", OLD, NEW)
    fee, hits, after = fee_in(child, program, **options)
    assert (fee, hits) == (10.0, 0), "the edit of another module is followed"
    assert before != after, "two versions side by side share nothing"
    edit(child.folder / "numba_rl" / "rules" / "portfolio.py", NEW, OLD)
    assert fee_in(child, program, **options) == (5.0, 1, before), "and the old version finds its own entries again"


def test_a_fee_in_another_module(child):
    check_fees(child, ON_CPU)


@pytest.mark.gpu
def test_a_fee_in_another_module_on_a_gpu(child):
    check_fees(child, ON_GPU, gpu=True)


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_second_start_compiles_nothing(rltrain, tmp_path, algorithm):
    write_bars(tmp_path / "bars.parquet", generate("mean_reverting", 3000, 1).bars)
    kept = []
    for run in ("first", "second"):
        done = rltrain(
            "train", algorithm, "--data", "bars.parquet", "--out", run, "--device", "cuda", "--steps", "30000", "--set", "episodes.launch=64",
            cwd=tmp_path, env={"RLTRAIN_CACHE_DIR": str(tmp_path / "cache")}, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        kept.append(sorted(path.name for path in (tmp_path / "cache").rglob("*.nbc")))
    assert len(kept[0]) > 5 and kept[1] == kept[0]


def test_kernels_are_found_by_another_process(child):
    assert child(KERNELS, gpu=True)[0] == "False False False False"
    assert child(KERNELS, gpu=True)[0] == "True True True True"


def test_a_closure_over_a_function_is_refused():
    helper = njit(lambda x: x + 1)

    def outer(x):
        return helper(x)

    with pytest.raises(TypeError, match="outer cannot be kept on disk: its closure holds the function helper"):
        cached(njit(outer))


def test_a_constant_of_the_rules_in_a_function_of_the_product(child):
    ioc = child(ROUTE)[0]
    edit(child.folder / "numba_rl" / "rules" / "routing.py", "LOW_VOLATILITY = 1.0", "LOW_VOLATILITY = 2.0")
    limit = child(ROUTE)[0]
    assert ioc != limit, "small changes in low volatility now go by limit orders"


def test_a_cache_that_cannot_be_written_costs_a_warning(child):
    (child.folder / "file").touch()
    said, warned = child(ON_CPU, cache="file/cache")
    assert said.startswith("5.0 0 ")
    assert "compiled kernels are not kept" in warned and "set RLTRAIN_CACHE_DIR to a writable folder" in warned


def test_nothing_in_the_package_uses_numba_s_own_cache():
    """It looks at one file alone."""
    wrong = [
        path
        for path in PACKAGE.rglob("*.py")
        for line in path.read_text().splitlines()
        if "cache=True" in line.replace(" ", "").partition("#")[0]
    ]
    assert [path.name for path in wrong if path.name != "kernel_cache.py"] == []
