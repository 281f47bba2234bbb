"""Runs kernels in the CUDA simulator where there is no GPU, and skips the tests that need one."""

import ctypes
import os
import subprocess
import sys

import forks
import pytest
import warm

READ_AT_IMPORT = {"RLTRAIN_CACHE_DIR", "NUMBA_ENABLE_CUDASIM"}


def _has_gpu() -> bool:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int(0)
        return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    except OSError:
        return False


os.environ.setdefault("NUMBA_NUM_THREADS", "1")  # Numba hands the number on to torch, and the threads of all workers wait for each other
GPU = _has_gpu() and os.environ.get("NUMBA_ENABLE_CUDASIM", "0") == "0"
if not GPU:
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # before numba is imported anywhere
    sys.setswitchinterval(1e-5)  # simulated threads take turns so often that a barrier which is missing shows


def pytest_collection_modifyitems(items):
    for item in items:
        if "gpu" in item.keywords and not GPU:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.fixture(scope="session", autouse=True)
def compiled_once(request):
    """Before a run of the whole suite each worker compiles a part of the CPU path, and finds the other part on disk."""
    if len(request.session.items) >= warm.WHOLE_SUITE:
        for part in warm.PARTS.get(os.environ.get("PYTEST_XDIST_WORKER"), ()):
            part()


@pytest.fixture
def rltrain():
    """Runs the command line in a process of its own: `rltrain("train", "ppo", ...)` gives returncode, stdout and stderr.

    The environment is a user's: no simulator, no RLTRAIN_ variables but those of `env`.
    """

    def run(*arguments, env=None, timeout=120, cwd=None):
        words, environment = [*map(str, arguments)], forks.user_environment(env)
        if READ_AT_IMPORT.isdisjoint(env or ()):
            return forks.run(forks.command, *words, environment=environment, cwd=cwd, timeout=timeout)
        return subprocess.run(
            [sys.executable, "-m", "rltrain.main", *words],
            capture_output=True, text=True, timeout=timeout, cwd=cwd, check=False, env=environment,
        )  # fmt: skip

    return run


@pytest.fixture
def rltrain_process():
    """As `rltrain`, but gives the running process, to send signals to; it is killed at the end of the test."""
    processes = []

    def start(*arguments, env=None, cwd=None):
        process = subprocess.Popen(
            [sys.executable, "-m", "rltrain.main", *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd, env=forks.user_environment(env),
        )  # fmt: skip
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()
