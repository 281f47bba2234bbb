"""C-03: compiled functions kept on disk follow edits anywhere in the package. Every child is a process of its own on a copy of the package."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.fixture
def child(tmp_path):
    """Runs a program on a copy of the package, with a cache of its own; gives what it printed, as words, and its warnings."""
    shutil.copytree(PACKAGE, tmp_path / "numba_rl", ignore=shutil.ignore_patterns("__pycache__"))

    def run(program, cache="cache", gpu=False):
        (tmp_path / "program.py").write_text(program)
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
