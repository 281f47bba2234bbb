"""Processes that start at once: forked from a server that has imported what takes seconds, in the environment of a user."""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from multiprocessing import forkserver
from pathlib import Path

PRELOAD = ["numba_rl.trainer.session", "numba_rl.data.synthetic", "polars", "pyarrow.parquet", "torch.utils.tensorboard"]
OF_TESTS = {"NUMBA_ENABLE_CUDASIM", "NUMBA_NUM_THREADS"}  # see conftest

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(PRELOAD)


def user_environment(extra=None):
    """This process's environment without the tests' settings of Numba and RLTRAIN_ ones, with one thread of torch."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in OF_TESTS and (name == "RLTRAIN_CACHE_DIR" or not name.startswith("RLTRAIN_"))
    }
    return kept | {"OMP_NUM_THREADS": "1"} | (extra or {})


def start(target, *arguments, daemon=False):
    """A process that calls `target`, a function of a module."""
    here = dict(os.environ)
    try:
        _take(user_environment())
        forkserver.ensure_running()
    finally:
        _take(here)
    process = _context.Process(target=target, args=arguments, daemon=daemon)
    process.start()
    return process


def run(target, *arguments, environment, cwd=None, timeout=120) -> subprocess.CompletedProcess:
    """As subprocess.run, of a function. What is read from the environment by an import was read by the server, from its own."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("stdout", "stderr")]
        process = start(_run, target, arguments, environment, str(cwd or os.getcwd()), *map(str, files))
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(arguments, timeout, *(file.read_bytes() for file in files))
        return subprocess.CompletedProcess(arguments, process.exitcode, *(file.read_text() for file in files))


def _take(environment):
    os.environ.clear()
    os.environ.update(environment)


def _run(target, arguments, environment, cwd, *files):
    for number, file in enumerate(files, 1):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    os.chdir(cwd)
    _take(environment)
    target(*arguments)


def command(*words):
    """Becomes `rltrain` with its arguments."""
    sys.argv[1:] = words
    runpy.run_module("rltrain.main", run_name="__main__", alter_sys=True)
