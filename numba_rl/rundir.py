"""A run directory: everything that one training run leaves behind, never shared and never overwritten.

    RUN/config.toml     all settings, resolved          RUN/checkpoints/    latest, best and final .safetensors
    RUN/meta.json       versions, status, digests       RUN/evaluation/     tables of `rltrain evaluate`
    RUN/metrics.csv     one row an epoch                RUN/report.html     the report, alone in one file
    RUN/tensorboard/    event files                     RUN/log.txt         notices and warnings, with times
    RUN/.lock           held (flock) by the process that works on the run
    RUN/folds/          only of `rltrain walk-forward`: a run directory for each fold and seed
    RUN/bars.parquet    only where the run made its own market (`rltrain demo`)

A directory with anything in it is refused, or an automatic name counts on (-2, -3, ...). Only ``overwrite=True`` replaces
a run, and only one that holds nothing beside the above. Imports no torch.
"""

import contextlib
import fcntl
import importlib.metadata
import json
import logging
import os
import platform
import re
import shutil
import sys
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numba_rl
from numba_rl import settings
from numba_rl.config import Config
from numba_rl.errors import UserError
from numba_rl.files import atomic_write

_DIRECTORIES = ("checkpoints", "evaluation", "tensorboard")
_FILES = ("config.toml", "meta.json", "metrics.csv", "report.html", "log.txt", "bars.parquet", ".lock")
FOLDS = "folds"
LAYOUT = frozenset((*_DIRECTORIES, *_FILES, FOLDS))
_KIND = "numba_rl run"  # in meta.json: what --overwrite may replace
_FORMAT = 1
_log = logging.getLogger("numba_rl")
_PACKAGES = ("numba", "numba-cuda", "numpy", "torch", "polars", "pyarrow", "databento-dbn", "safetensors")


class RunDir:
    """One run directory, locked by this process from ``create`` or ``open`` until ``close``.

    As a context manager it also settles the status of what ``create`` or ``begin`` began: "finished", "interrupted"
    (KeyboardInterrupt) or "failed"; ``finish`` inside the block settles it earlier. A new run that the user interrupts, or has to mend something for, before
    it has a checkpoint or a row of metrics is removed again: the same command can then be given once more.
    """

    def __init__(self, path: Path, lock: int, *, fresh: bool = False) -> None:
        self.path = path
        self._lock: int | None = lock
        self._fresh = fresh
        self._begun = False

    @classmethod
    def create(
        cls,
        path: str | Path | None,
        config: Config,
        *,
        name: str = "run",
        parent: str | Path = "runs",
        command: Sequence[str] | None = None,
        overwrite: bool = False,
    ) -> Self:
        """Make a new run directory and write its config.toml and meta.json; status "running".

        path: the directory, new or empty. None: ``parent/name``, or ``parent/name-2``, -3, ... for the first free one,
        decided by mkdir, so that two processes never get the same. command: the command line (default sys.argv).
        overwrite: replace ``path`` if it is a run. Raises UserError where the path is taken, in use, or cannot be made.
        """
        target = _first_free(Path(parent), name) if path is None else Path(path)
        refuse_if_taken(target, overwrite=overwrite)
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{target}: the run directory cannot be made: {error.strerror}") from None
        run = cls(target, _acquire(target), fresh=True)
        try:
            refuse_if_taken(target, overwrite=overwrite)  # again, now that nobody else can fill it
            if overwrite:
                _clear(target)
            meta = {"kind": _KIND, "format": _FORMAT, "algorithm": config.algorithm, "seed": config.train.seed}
            run._write_meta(meta | {"created": _now(), "segments": []})  # first: what is half made is known as a run
            run.save_config(config)
            for directory in _DIRECTORIES:
                (target / directory).mkdir()
            run.begin(command)
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Lock an existing run, to resume or evaluate it. UserError where it is no run or another process works on it."""
        target = Path(path)
        if not is_run(target):
            what = "not a run directory (no meta.json of a run in it)" if target.exists() else "no such run directory"
            raise UserError(f"{target}: {what}; `rltrain train ppo --data FILE --out {target}` makes one")
        run = cls(target, _acquire(target))
        for leftover in target.rglob(".*.tmp"):  # of a process that was killed while it wrote
            leftover.unlink(missing_ok=True)
        return run

    # ------------------------------------------------------------------------------------------------- places

    @property
    def checkpoints(self) -> Path:
        """Directory of latest.safetensors, best.safetensors and final.safetensors."""
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        """Directory of TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def evaluation(self) -> Path:
        """Directory of what `rltrain evaluate` writes."""
        return self.path / "evaluation"

    @property
    def folds(self) -> Path:
        """Directory of a walk-forward's trainings, where the run is one."""
        return self.path / FOLDS

    @property
    def metrics(self) -> Path:
        """The CSV of training metrics."""
        return self.path / "metrics.csv"

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.path / "report.html"

    @property
    def bars(self) -> Path:
        """The market that the run made for itself, if it did."""
        return self.path / "bars.parquet"

    # ------------------------------------------------------------------------------------------------- contents

    def config(self) -> Config:
        """The settings that the run was made with."""
        return settings.read_toml(self.path / "config.toml")

    def save_config(self, config: Config) -> None:
        """Replace config.toml, where a resume trains further than was asked first."""
        atomic_write(self.path / "config.toml", settings.to_toml(config))

    def meta(self) -> dict[str, Any]:
        """The contents of meta.json."""
        return read_meta(self.path)

    def update(self, **fields: Any) -> None:
        """Set fields of meta.json (digests, device, ...), atomically."""
        self._write_meta(self.meta() | fields)

    def begin(self, command: Sequence[str] | None = None) -> None:
        """Note a start, of a new run or of a resume: status "running" and one more entry in ``segments``."""
        meta = self.meta()
        segment = {"started": _now(), "command": list(sys.argv if command is None else command), "versions": versions()}
        meta["segments"].append(segment | {"host": platform.node(), "pid": os.getpid()})
        self._write_meta(meta | {"status": "running", "ended": None, "reason": None})
        self._begun = True

    @property
    def segment(self) -> int:
        """How many times the run was resumed: 0 in a new run. Metrics rows carry it, so that two logs never mix unmarked."""
        return len(self.meta()["segments"]) - 1

    def finish(self, status: str, reason: str | None = None) -> None:
        """Settle the status: "finished", "interrupted" or "failed", with the reason in words."""
        self.update(status=status, ended=_now(), reason=reason)

    def log(self, line: str) -> None:
        """Append one line to log.txt, with the time."""
        with (self.path / "log.txt").open("a", encoding="utf-8") as stream:
            stream.write(f"{_now()} {line}\n")

    def warn(self, line: str, *, trace: bool = False) -> None:
        """A warning in one line: into log.txt, and to the logger "numba_rl", which shows it.

        trace: with the traceback of the error that is being handled, if one is; in log.txt only.
        """
        self.log(f"warning: {line}")
        if trace and sys.exception() is not None:
            self.log(traceback.format_exc())
        _log.warning(line)

    def fall_back(self, line: str) -> None:
        """A warning that training goes on without a GPU that it was to use: `warn` with the traceback, and kept in meta.json.

        What is kept there comes again when the training ends and in its report (see ``fallbacks``).
        """
        if sys.exception() is not None:
            line += "; the run's log.txt has the traceback, `rltrain doctor` looks at this machine, and a resume tries the GPU again"
        self.warn(line, trace=True)
        self.update(fallbacks=[*self.meta().get("fallbacks", ()), {"segment": self.segment, "line": line}])

    def close(self) -> None:
        """Give the lock back; the object is not to be used afterwards."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if self._fresh and isinstance(error, KeyboardInterrupt | UserError) and not self.has_results:
                _clear(self.path)
                (self.path / ".lock").unlink()
                with contextlib.suppress(OSError):  # it is the user's where they put something into it
                    self.path.rmdir()
            elif self._begun and self.meta()["status"] == "running":
                self._settle(error)
        finally:
            self.close()

    def _settle(self, error: BaseException | None) -> None:
        if error is None:
            self.finish("finished")
            return
        with contextlib.suppress(OSError):  # a full disk: what ended the run is what has to be said
            if isinstance(error, KeyboardInterrupt):
                self.finish("interrupted", str(error) or "SIGINT")
            else:
                self.finish("failed", f"{type(error).__name__}: {' '.join(str(error).split())}")

    @property
    def has_results(self) -> bool:
        """Whether there is anything that training left: a checkpoint, a row of metrics, a fold."""
        return self.metrics.exists() or any(self.checkpoints.glob("*.safetensors")) or any(self.folds.glob("*/meta.json"))

    def _write_meta(self, meta: dict[str, Any]) -> None:
        atomic_write(self.path / "meta.json", json.dumps(meta, indent=2) + "\n")


def is_run(path: Path) -> bool:
    """Whether a directory holds a run, finished or not."""
    try:
        meta = read_meta(path)
    except UserError:
        return False
    return isinstance(meta, dict) and meta.get("kind") == _KIND


def read_meta(path: str | Path) -> dict[str, Any]:
    """meta.json of a run, without its lock. UserError where it is missing or damaged."""
    file = Path(path) / "meta.json"
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: not readable as a run's meta.json ({' '.join(str(error).split())})") from None


def fallbacks(path: str | Path, segment: int | None = None) -> list[str]:
    """What made a run's training go on without a GPU that it was to use, a line each; segment: only since that start (0: the first)."""
    return [noted["line"] for noted in read_meta(path).get("fallbacks", ()) if segment in (None, noted["segment"])]


def status(path: str | Path) -> str:
    """The status of a run: that of meta.json, or "killed" where it says "running" and no process holds the lock."""
    noted = read_meta(path)["status"]
    if noted != "running":
        return noted
    with (Path(path) / ".lock").open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return "running"
    return "killed"


def refuse_if_taken(path: Path, *, overwrite: bool = False) -> None:
    """UserError unless a run may be made at ``path``: it is missing or empty, or a pure run and ``overwrite`` is set."""
    if not path.exists():
        return
    if not path.is_dir():
        raise UserError(f"{path}: is a file; choose another --out")
    names = {entry.name for entry in path.iterdir()} - {".lock"} - _leftovers(path)
    if not names:
        return
    foreign = sorted(names - LAYOUT)
    if not is_run(path):
        raise UserError(f"{path}: is not empty ({min(names)}) and no run; choose another --out, nothing in it was touched")
    if not overwrite:
        raise UserError(f"{path}: holds a run already; choose another --out, `rltrain resume {path}`, or replace it with --overwrite")
    if foreign:
        raise UserError(f"{path}: holds {foreign[0]} beside the run; move it away before --overwrite, nothing was touched")


def _first_free(parent: Path, name: str) -> Path:
    number = 1
    while True:
        target = parent / (name if number == 1 else f"{name}-{number}")
        try:
            parent.mkdir(parents=True, exist_ok=True)
            target.mkdir()
            return target
        except FileExistsError:
            number += 1
        except OSError as error:
            raise UserError(f"{target}: the run directory cannot be made: {error.strerror}") from None


def _acquire(path: Path) -> int:
    """The descriptor of the locked RUN/.lock; the lock goes with the process, however it ends."""
    try:
        lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(f"{path}: cannot be locked: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_nlink == 0:  # its last holder discarded the run between the two lines
            raise BlockingIOError
    except BlockingIOError:
        owner = os.read(lock, 32).decode(errors="replace").strip()
        os.close(lock)
        raise UserError(f"{path}: in use by process {owner or '?'}; wait until it ends or use another directory") from None
    except OSError as error:
        os.close(lock)
        raise UserError(f"{path}: this file system has no locks ({error.strerror}); put the run elsewhere") from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


def _clear(path: Path) -> None:
    """Remove a run's own files; meta.json last, so that a half-removed run is still known as one."""
    for name in sorted(LAYOUT - {".lock"}, key=lambda name: name == "meta.json"):
        entry = path / name
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)
    for name in _leftovers(path):
        (path / name).unlink(missing_ok=True)


def _leftovers(path: Path) -> set[str]:
    """Names of what processes that were killed while they wrote a run's own files have left in it."""
    found = (re.fullmatch(r"\.(.+)\.\d+\.tmp", entry.name) for entry in path.iterdir())
    return {match[0] for match in found if match and match[1] in LAYOUT}


def versions() -> dict[str, str]:
    """Versions of this package, Python and what decides the numbers; without importing any of them."""
    found = {"numba_rl": numba_rl.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
