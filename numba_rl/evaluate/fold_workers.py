"""Trainings side by side, each in a process of its own (spawned, so that CUDA, Numba and torch start afresh in it).

The parent hands out one task at a time to each worker over a pipe and hears back (kind, value): ("progress", figures),
("warning", line), ("ended", outcome). It asks a worker to stop by the name of a signal, and lets it go with None. Ctrl-C at a
terminal reaches every process of the group: workers do not take it (SIGINT is blocked in them), the parent tells them. A worker
whose parent is gone saves and ends; one that dies is noticed by its pipe, which closes with it.
"""

import contextlib
import logging
import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from numba_rl.evaluate.fold_jobs import Job, Outcome, Task, attempt
from numba_rl.signals import EXIT_CODES, Interrupted, StopRequest

POLL = 0.1  # seconds between two looks at the request to stop
_CONTEXT = multiprocessing.get_context("spawn")
_LOG = "numba_rl"


class Worker:
    """The parent's end of one process. job: what it trains; None: it waits for a task."""

    def __init__(self) -> None:
        self.connection, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=work, args=(theirs,))
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited, so that no Ctrl-C comes too early for it
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self.job: Job | None = None

    def give(self, task: Task) -> None:
        """Have it train."""
        self.job = task.job
        self._send(task)

    def ask_to_stop(self, name: str) -> None:
        """Have it save and end, as a signal would."""
        self._send(name)

    def hear(self) -> tuple[str, Any]:
        """Its next message; when it is dead, that its training has ended by this."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self._process.join()
            return "ended", _death(self._process.exitcode)

    @property
    def alive(self) -> bool:
        """Whether it can be given another task."""
        return self._process.is_alive()

    def let_go(self) -> None:
        """Have it end, and wait until it has."""
        self._send(None)
        self._process.join()
        self.connection.close()

    def _send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # it is dead, which `hear` tells
            self.connection.send(message)


def _death(code: int | None) -> Outcome:
    """What the end of a worker's process means for its training."""
    if code in EXIT_CODES.values():
        return Outcome("interrupted")
    how = f"ended with exit code {code}"
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        how = f"was killed by {name}" + (", perhaps because memory ran out (fewer --jobs need less)" if name == "SIGKILL" else "")
    return Outcome("failed", f"its process {how}; a resume goes on from its last checkpoint")


def side_by_side(
    tasks: Iterator[Task],
    count: int,
    stop: StopRequest,
    *,
    begun: Callable[[Job], None],
    progress: Callable[[Job, dict], None],
    ended: Callable[[Job, Outcome], bool],
) -> None:
    """Train tasks in their order, `count` at a time, until all ended, `stop` is asked for, or `ended` says that no more shall begin.

    The three are called in this process: when a training begins, with its figures, and with how it ended.
    """
    workers: list[Worker] = []
    asked = False
    try:
        while True:
            if stop.requested is not None and not asked:
                asked = True
                for worker in workers:
                    worker.ask_to_stop(stop.requested)
            while not asked and sum(worker.job is not None for worker in workers) < count and (task := next(tasks, None)) is not None:
                idle = next((worker for worker in workers if worker.job is None), None)
                if idle is None:
                    workers.append(idle := Worker())
                begun(task.job)
                idle.give(task)
            busy = {worker.connection: worker for worker in workers if worker.job is not None}
            if not busy:
                return
            for connection in wait(list(busy), POLL):
                worker = busy[connection]
                kind, value = worker.hear()
                if kind == "progress":
                    progress(worker.job, value)
                elif kind == "warning":
                    logging.getLogger(_LOG).warning(f"{worker.job.name}: {value}")
                else:
                    job, worker.job = worker.job, None
                    if value.kind == "interrupted" or not worker.alive:
                        worker.let_go()
                        workers.remove(worker)
                    if value.kind == "interrupted" and not asked:
                        value = Outcome("failed", "its process was told to stop; a resume goes on from there")
                    if not ended(job, value):
                        tasks = iter(())
    finally:
        for worker in workers:
            worker.let_go()


# --------------------------------------------------------------------------------------------------- in the worker


def work(connection: Connection) -> None:
    """A worker's life: train what comes, until it is let go or asked to stop."""
    stop, tasks, speak = StopRequest(), queue.SimpleQueue(), threading.Lock()

    def tell(kind: str, value: Any) -> None:
        with speak, contextlib.suppress(OSError):  # the parent is gone, which the listener knows
            connection.send((kind, value))

    log = logging.getLogger(_LOG)
    log.addHandler(_Forward(tell))
    log.propagate = False
    threading.Thread(target=_listen, args=(connection, stop, tasks), daemon=True).start()
    try:
        with stop:
            while (task := tasks.get()) is not None:
                outcome = attempt(task, stop, lambda figures: tell("progress", figures))
                tell("ended", outcome)
                if outcome.kind == "interrupted":
                    return
    except Interrupted as interrupt:  # SIGTERM before there was anything to save
        sys.exit(interrupt.exit_code)


def _listen(connection: Connection, stop: StopRequest, tasks: queue.SimpleQueue) -> None:
    """Take the parent's messages until it lets go; without a parent, stop."""
    asked = False
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            if asked:
                os._exit(1)  # the parent was stopped at once
            message = None
            _stop(stop, "SIGTERM")
        if isinstance(message, str):
            asked = True
            _stop(stop, message)
        tasks.put(message if isinstance(message, Task) else None)
        if message is None:
            return


def _stop(stop: StopRequest, name: str) -> None:
    stop.request(name)
    if not stop.polled:  # there is nothing to save yet
        os._exit(EXIT_CODES[name])


class _Forward(logging.Handler):
    """Sends warnings to the parent."""

    def __init__(self, tell: Callable[[str, Any], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell("warning", record.getMessage())
