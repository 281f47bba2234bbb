"""Where training figures go: metrics.csv, a row an epoch, and TensorBoard event files, under names that dashboards know.

A resumed run appends: its rows carry the next number in the column `segment`, and TensorBoard hides the older points past
the step it resumed at. Figures that an epoch lacks are empty in the CSV.
"""

import contextlib
import csv
import io
import math
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from numba_rl.errors import UserError

COUNTERS = ("step", "epoch", "segment", "seconds")
_FLUSH_SECONDS = 5  # of TensorBoard's writer; the CSV is flushed at every row


class Tracker:
    """Writes the figures of each epoch; a context manager."""

    def __init__(self, metrics: Path, tensorboard: Path | None, names, *, segment: int = 0, step: int = 0):
        """metrics: the CSV, made or appended to. tensorboard: directory of event files, or None. names: of the figures,
        in the CSV's order; an older CSV keeps the columns that it has. segment: resumes so far. step: environment steps
        played already."""
        self.path = metrics
        self.segment = segment
        self._columns = [*COUNTERS, *names]
        try:
            new = not metrics.exists() or metrics.stat().st_size == 0
            if not new:
                self._columns = _mend(metrics)
            self._file = metrics.open("ab", buffering=0)  # a write that failed must not come again when it is closed
        except OSError as error:
            raise UserError(f"{metrics}: cannot be written: {error.strerror}") from None
        if new:
            self._write(self._columns)
        self._folder, self._begin = tensorboard, step
        self._board = None  # opened after the first row: its imports take half a second of the start

    def add(self, figures: Mapping[str, float], *, step: int, epoch: int, seconds: float) -> None:
        """One epoch's figures; nan is left empty in the CSV and out of TensorBoard. UserError: the disk is full."""
        row = {"step": step, "epoch": epoch, "segment": self.segment, "seconds": f"{seconds:.3f}"}
        row |= {name: f"{value:.9g}" for name, value in figures.items() if not math.isnan(value)}
        self._write([row.get(name, "") for name in self._columns])
        if self._folder is not None:
            with self._board_written():
                if self._board is None:
                    self._board = _board(self._folder, self._begin)
                for name, value in figures.items():
                    if not math.isnan(value):
                        self._board.add_scalar(name, value, step)

    def _write(self, cells) -> None:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(cells)
        left = line.getvalue().encode()
        try:
            while left:  # one write a row, unless the disk is almost full: a kill leaves whole rows but for the last
                left = left[self._file.write(left) :]
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror}; make room and resume") from None

    @contextlib.contextmanager
    def _board_written(self):
        try:
            yield
        except OSError as error:
            folder, self._folder, self._board = self._folder, None, None
            raise UserError(f"{folder}: event files cannot be written: {error.strerror}; make room, or resume without them") from None

    def close(self) -> None:
        """Write out what is buffered. UserError: the disk is full."""
        self._file.close()
        if self._board is not None:
            with self._board_written():
                self._board.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace) -> None:
        try:
            self.close()
        except UserError:
            if error is None:  # else what ended the training is what matters
                raise


def _board(folder: Path, step: int):
    """A writer of event files. Its thread hands errors on by itself, so it need not print them as well."""
    from torch.utils.tensorboard import SummaryWriter

    before = set(threading.enumerate())
    board = SummaryWriter(str(folder), purge_step=step or None, flush_secs=_FLUSH_SECONDS)
    own, print_error = set(threading.enumerate()) - before, threading.excepthook

    def hook(failure):
        if failure.thread not in own or not isinstance(failure.exc_value, OSError):
            print_error(failure)

    threading.excepthook = hook
    return board


def _mend(metrics: Path) -> list[str]:
    """Cut off a last row that a kill left half written; the columns of the CSV."""
    with metrics.open("r+b") as file:
        header = file.readline()
        data = file.read()
        if not header.endswith(b"\n"):
            raise UserError(f"{metrics}: is no CSV of metrics; move it away and resume")
        file.truncate(len(header) + data.rfind(b"\n") + 1)
        os.fsync(file.fileno())
    return next(csv.reader([header.decode()]))
