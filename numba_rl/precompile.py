"""Compiling what a training on a GPU needs side by side, before its first start on a machine.

Numba compiles one kernel at a time in a process. So a few processes meet the kernels of the training that is to come, on the GPU but
without launching one; each compiles those that no other has begun, into the cache on disk. The training's own process imports and reads
its market meanwhile, waits for them, and finds everything there. It compiles itself whatever a process that fails leaves undone.

Only the standard library is imported here until a process works, so that the processes start before anything else is imported.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Self

import msgspec

from numba_rl.config import Config
from numba_rl.host import main_memory
from numba_rl.kernel_cache import cache_directory

MOST = 4  # processes: the longest kernel takes as long as a quarter of them all
MEMORY = 4e9  # bytes of main memory that must be free for each
LEAST_LIMIT_GB = 8.0  # of train.memory_limit_gb: each process takes half a gigabyte of the card beside it, for a moment
PATIENCE = 120.0  # seconds that the processes have in all
BARS = 3000
_PROGRAM = ("-P", "-m", "numba_rl.precompile")


def processes(config: Config) -> int:
    """How many processes would compile for a training by `config` on this machine; 0: it compiles by itself."""
    if config.train.device == "cpu" or os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0"):
        return 0
    if config.train.memory_limit_gb is not None and config.train.memory_limit_gb < LEAST_LIMIT_GB:
        return 0
    count = min(MOST, len(os.sched_getaffinity(0)) - 1, int(main_memory()[0] / MEMORY))
    return count if count > 1 and _has_driver() else 0


def marker(config: Config) -> Path:
    """The file that says that the kernels of such settings have been compiled here.

    Of the settings it knows what most often picks a kernel, not the values of rates; where it is wrong, that costs time alone.
    """
    ppo, dqn, train = config.ppo, config.dqn, config.train
    own: tuple = ppo.actor, ppo.critic, ppo.leaky_slope, ppo.minibatches
    if config.algorithm == "dqn":
        own = (
            dqn.variant,
            dqn.hidden,
            dqn.head,
            dqn.quantiles,
            dqn.n_step,
            dqn.batch,
            dqn.accumulate,
            config.replay.mode,
            config.replay.capacity,
        )
    game = [_kind(getattr(section, name)) for section in (config.market, config.reward) for name in section.__struct_fields__]
    sizes = config.episodes.count, config.episodes.launch, train.memory_limit_gb, train.collector, train.precision
    what = config.algorithm, own, game, sizes, config.data.features, config.guard.enabled, config.evaluate.policy, _cards()
    return cache_directory() / f"precompiled-{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}"


def _kind(value):
    """Kernels know whether a rate is off, 0 or 1, not what it is."""
    return "a number" if isinstance(value, int | float) and value not in (0, 1) else value


def _cards() -> list[str]:
    """What the driver calls its cards, where it says so in a file."""
    lines = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        with contextlib.suppress(OSError):
            lines += [line for line in path.read_text().splitlines() if line.startswith("Model")]
    return lines


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


class Precompiler:
    """The processes that compile for one training: a context manager, at whose end none of them is left.

    Where these settings have been compiled for, or the machine is too small, there are none. Where another start compiles into the same
    cache, there are none either, and `wait` waits for that one.
    """

    def __init__(self, config: Config, say: Callable[[str], None] = lambda line: None) -> None:
        """say: told in a line that kernels are being compiled."""
        self._processes: list[tuple[subprocess.Popen, BinaryIO]] = []
        self._began = time.monotonic()
        self._lock: BinaryIO | None = None
        self._others = False
        self._claims: tempfile.TemporaryDirectory | None = None
        try:
            self._start(config, say)
        except OSError:  # a cache that cannot be written, which `kernel_cache` tells, or no room for processes
            self.close()

    def _start(self, config: Config, say: Callable[[str], None]) -> None:
        count = processes(config)
        self._marker = marker(config)
        if not count or self._marker.exists():
            return
        self._marker.parent.mkdir(parents=True, exist_ok=True)
        self._lock = (self._marker.parent / ".precompiling").open("ab")
        self._others = not self._locked()
        if self._others:
            say("kernels are being compiled by another start")
            return
        say(f"compiling kernels with {count} processes, once for this version and such settings")
        self._claims = tempfile.TemporaryDirectory(prefix="rltrain-")
        for number in range(count):
            self._processes.append(_process(config, self._claims.name, number, count))

    @property
    def busy(self) -> bool:
        """Whether there is something to wait for."""
        return self._others or bool(self._processes)

    def _locked(self) -> bool:
        """Whether this start is now the one that compiles."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            return True
        return True

    def wait(self, log: Callable[[str], None]) -> None:
        """Until all is compiled, or too much time has passed. log: told in a line how it went, where there was something to wait for."""
        end = self._began + PATIENCE
        if self._others:
            while not self._locked() and time.monotonic() < end:
                time.sleep(0.1)
            log(f"kernels were compiled by another start, until {time.monotonic() - self._began:.1f} s after this one's")
        elif self._processes:
            failed = []
            for process, errors in self._processes:
                try:
                    code = process.wait(max(0.0, end - time.monotonic()))
                except subprocess.TimeoutExpired:
                    failed.append("took too long")
                else:
                    failed += [_last_line(errors) or f"exit code {code}"] if code else []
            with contextlib.suppress(OSError):
                self._marker.touch()  # whatever they left undone the training compiles, and keeps
            line = f"{len(self._processes)} processes compiled kernels, for {time.monotonic() - self._began:.1f} s"
            log(line + (f"; {len(failed)} of them failed, the first: {failed[0]}" if failed else ""))
        self.close()

    def close(self) -> None:
        """End the processes."""
        for process, _ in self._processes:
            process.kill()
        for process, errors in self._processes:
            process.wait()
            errors.close()
        self._processes.clear()
        if self._claims is not None:
            self._claims.cleanup()
            self._claims = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        self._others = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _process(config: Config, claims: str, number: int, count: int) -> tuple[subprocess.Popen, BinaryIO]:
    """One process and its standard error. It is in a session of its own: a Ctrl-C is the training's, which ends it."""
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
    words = [sys.executable, *_PROGRAM, str(number), str(count), claims, str(os.getpid())]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    with contextlib.suppress(BrokenPipeError), process.stdin as stream:
        stream.write(msgspec.json.encode(config))
    return process, errors


def _last_line(errors: BinaryIO) -> str:
    errors.seek(0)
    lines = errors.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


# --------------------------------------------------------------------------------------------------- in a process


def main(arguments: list[str]) -> None:
    """Compile the part `number` of `count`: what no other process of the same claims has begun."""
    number, count, claims, parent = int(arguments[0]), int(arguments[1]), Path(arguments[2]), int(arguments[3])
    _end_with(parent)
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=Config)

    from numba_rl import gpu

    gpu.compile_only(claims_in(claims))
    compile_part(config, last=number == count - 1)


def claims_in(folder: Path) -> Callable[[str], bool]:
    """A function name -> whether this process is the first to ask for it, of those with the same folder."""

    def claim(name: str) -> bool:
        try:
            (folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    return claim


def compile_part(config: Config, *, last: bool) -> None:
    """Meet all kernels of a training by `config`; the last process begins with those of its validation. RuntimeError: there is no GPU."""
    from numba_rl.evaluate.validation import validator
    from numba_rl.trainer.building import compile_for, spare_gpu

    device = spare_gpu(config)
    market = market_for(config)
    parts = [lambda: compile_for(config, market, device), lambda: validator(market, config)]
    problems = []
    for part in reversed(parts) if last else parts:
        try:
            part()
        except Exception as problem:  # noqa: BLE001 - what one part meets may keep another from nothing
            problems.append(problem)
    if problems:
        raise problems[0]


def market_for(config: Config):
    """A small market with as many features as that of `config`; its own only where the features are the user's."""
    import numpy as np

    from numba_rl.config import DataConfig
    from numba_rl.data.bars import Bars
    from numba_rl.data.market import load_market

    if config.data.features != DataConfig().features:
        return load_market(config).for_training()
    close = 100.0 + np.sin(np.arange(BARS))
    minutes = 60_000_000_000 * np.arange(BARS, dtype=np.int64)
    bars = Bars(
        timestamp=minutes, open=close, high=close + 1.0, low=close - 1.0, close=close, volume=np.ones(BARS), interval_ns=int(minutes[1]),
        bars_per_year=365.0 * 24 * 60, source="precompile",
    )  # fmt: skip
    return load_market(msgspec.structs.replace(config, data=DataConfig()), bars)


def _end_with(parent: int) -> None:
    """Have the system end this process when the training's ends, in whatever way."""
    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
