"""SIGINT and SIGTERM: the first asks training to stop and save, the second stops at once.

Until the trainer polls for the first time there is nothing to save, so a signal during start-up (imports, reading data,
compiling) ends the command at once by raising ``Interrupted``, a KeyboardInterrupt that knows its exit code.
"""

import contextlib
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

EXIT_CODES = {"SIGINT": 130, "SIGTERM": 143}


class Interrupted(KeyboardInterrupt):
    """A signal that ended the command; ``exit_code`` is 130 (SIGINT) or 143 (SIGTERM)."""

    def __init__(self, name: str = "SIGINT") -> None:
        super().__init__(name)
        self.name = name
        self.exit_code = EXIT_CODES[name]


def raise_on_sigterm() -> None:
    """Have SIGTERM raise ``Interrupted`` from now on, as SIGINT raises KeyboardInterrupt by itself. Main thread only."""
    signal.signal(signal.SIGTERM, _raise)


def _raise(number: int, _frame: FrameType | None) -> None:
    raise Interrupted(signal.Signals(number).name)


class StopRequest:
    """Tells a training loop that it should stop: a context manager that holds the handlers of SIGINT and SIGTERM.

    The loop reads ``requested`` between steps: None, "SIGINT" or "SIGTERM". In a thread other than the main one no
    handler can be set; there, and in tests, ``request`` asks for a stop.
    """

    def __init__(self) -> None:
        self._requested: str | None = None
        self._polled = False
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> str | None:
        """The signal that asked for a stop, or None. The first look at it ends the start-up."""
        self._polled = True
        return self._requested

    def request(self, name: str = "SIGINT") -> None:
        """Ask for a stop as if the signal ``name`` had come."""
        self._requested = name

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self._requested is not None:
            _say("stopped at once; the last checkpoint is intact\n")
            os._exit(EXIT_CODES[name])
        if not self._polled:
            self._requested = name  # a second signal while the first unwinds ends the process
            _raise(number, frame)
        self._requested = name
        _say(f"{name}: saving and stopping; once more stops at once\n")


def _say(text: str) -> None:
    """Write to standard error without Python's buffers, which a handler may find locked."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
