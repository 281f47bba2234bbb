"""On-disk cache of compiled functions whose key covers every source file of the package.

Numba's own `cache=True` looks at the file of the cached function alone and misses edits of the functions that it calls
(numba#9483). Here the cache directory carries a hash of all sources of the package and of the versions that compile them,
so an edit anywhere, or another version of the product, starts an empty cache. A directory that cannot be written means no
cache, with a warning.
"""

import contextlib
import fcntl
import hashlib
import os
import types
import warnings
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGE = Path(__file__).parent
WHOLE_BARRIERS = os.environ.get("RLTRAIN_WHOLE_BARRIERS") == "1"  # see kernels.ptx: other code comes of it
problems: list[str] = []  # what was warned of in this process, for the logs of its runs


def sources_digest(package: Path = PACKAGE) -> str:
    """Hash of every Python file below `package`, with its relative path, and of the compiler's versions."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode())
        digest.update(path.read_bytes())
    for name in ("numba", "numba-cuda", "llvmlite", "numpy"):
        try:
            digest.update(f"{name}={version(name)}".encode())
        except PackageNotFoundError:
            digest.update(f"{name}=none".encode())
    return digest.hexdigest()[:16]


@cache
def cache_directory() -> Path:
    """Where this version's compiled functions lie: RLTRAIN_CACHE_DIR or the user's cache folder, then the digest."""
    root = os.environ.get("RLTRAIN_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"), "numba_rl"
    )
    return Path(root) / (sources_digest() + "-whole-barriers" * WHOLE_BARRIERS)


def cached(dispatcher):
    """Give a dispatcher (CPU or CUDA) the package's on-disk cache; returns it. Kernels of the simulator need none, and stay as they are.

    What its closure holds is part of the cache's key. A function there is another one in every process, so that nothing would be
    found again: it raises TypeError, and belongs into the globals (see `rebound`).
    """
    if not hasattr(dispatcher, "enable_caching"):
        return dispatcher
    function = dispatcher.py_func
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if callable(cell.cell_contents) and not isinstance(cell.cell_contents, type):
            raise TypeError(f"{function.__qualname__} cannot be kept on disk: its closure holds the function {name}")
    from numba import config as numba_config  # where the directory alone is asked for, nothing has to wait for Numba

    before = numba_config.CACHE_DIR
    numba_config.CACHE_DIR = str(cache_directory())
    try:
        os.makedirs(cache_directory(), exist_ok=True)
        dispatcher.enable_caching()
        file = dispatcher._cache._cache_file
        file.save = _one_at_a_time(file.save)
        if hasattr(dispatcher, "configure"):  # a kernel
            dispatcher._cache.load_overload = _without_compiler(dispatcher._cache.load_overload)
    except (OSError, RuntimeError) as problem:
        line = f"compiled kernels are not kept: {problem}; set RLTRAIN_CACHE_DIR to a writable folder"
        if line not in problems:
            problems.append(line)
            warnings.warn(line, stacklevel=2)
    finally:
        numba_config.CACHE_DIR = before
    return dispatcher


def _one_at_a_time(save):
    """`save` of Numba's cache, for one process at a time.

    It reads the index of a function's versions, gives the new one the first free name and writes both: two processes that do so at
    once give two versions one name, and what is found under it later may be the other's code.
    """

    def alone(key, data):
        with (cache_directory() / ".lock").open("ab") as lock:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            save(key, data)

    return alone


def _without_compiler(load):
    """`load` of a kernel's cache, which would first load all that kernels can be made of: half a second that only a compilation needs."""

    def loaded(signature, context):
        return load(signature, types.SimpleNamespace(refresh=lambda: None, codegen=context.codegen))

    return loaded


def rebound(function, names):
    """A copy of a plain function whose globals `names` are replaced; unlike a closure over functions, it can be cached on disk."""
    globals_ = {**function.__globals__, **names}
    copy = types.FunctionType(function.__code__, globals_, function.__name__, function.__defaults__, function.__closure__)
    copy.__doc__ = function.__doc__
    copy.__module__ = function.__module__
    copy.__qualname__ = function.__qualname__
    return copy
