"""SIGINT and SIGTERM: the first asks training to stop and save, the second stops at once.

Until the trainer polls for the first time there is nothing to save, so a signal during start-up (imports, reading data,
compiling) ends the command at once by raising ``Interrupted``, a KeyboardInterrupt that knows its exit code.

Python drops an exception that is raised in a callback from C (the compiler's cache has such), in a finalizer or in a weak reference's
callback, and tells ``sys.unraisablehook``. An interrupt lost in this way is sent once more a moment later, until one arrives.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

EXIT_CODES = {"SIGINT": 130, "SIGTERM": 143}
_AGAIN = 0.05  # seconds until a lost interrupt is sent again: the callback that dropped it has ended by then

_repeated: set[int] = set()  # numbers of the signals that are being sent again


class Interrupted(KeyboardInterrupt):
    """A signal that ended the command; ``exit_code`` is 130 (SIGINT) or 143 (SIGTERM)."""

    def __init__(self, name: str = "SIGINT") -> None:
        super().__init__(name)
        self.name = name
        self.exit_code = EXIT_CODES[name]


def raise_on_signals() -> None:
    """Have SIGINT and SIGTERM raise ``Interrupted`` from now on. Main thread only."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _raise)
    _watch_lost()


def _raise(number: int, _frame: FrameType | None) -> None:
    _repeated.discard(number)
    raise Interrupted(signal.Signals(number).name)


def _watch_lost() -> Callable:
    """Install the hook that sends lost interrupts again; the hook it took the place of."""
    before = sys.unraisablehook
    if getattr(before, "sends_again", False):
        return before

    def hook(lost) -> None:
        if not isinstance(lost.exc_value, Interrupted):
            before(lost)
            return
        number = signal.Signals[lost.exc_value.name]
        _repeated.add(number)
        timer = threading.Timer(_AGAIN, signal.pthread_kill, (threading.main_thread().ident, number))
        timer.daemon = True
        timer.start()

    hook.sends_again = True
    sys.unraisablehook = hook
    return before


class StopRequest:
    """Tells a training loop that it should stop: a context manager that holds the handlers of SIGINT and SIGTERM.

    The loop reads ``requested`` between steps: None, "SIGINT" or "SIGTERM". In a thread other than the main one no
    handler can be set; there, and in tests, ``request`` asks for a stop.
    """

    def __init__(self) -> None:
        self._requested: str | None = None
        self._polled = False
        self._previous: dict[int, Any] = {}
        self._hook: Callable | None = None

    @property
    def requested(self) -> str | None:
        """The signal that asked for a stop, or None. The first look at it ends the start-up."""
        self._polled = True
        return self._requested

    @property
    def polled(self) -> bool:
        """Whether the loop has looked for a request, so that there is something to save."""
        return self._polled

    def request(self, name: str = "SIGINT") -> None:
        """Ask for a stop as if the signal ``name`` had come."""
        self._requested = name

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
            self._hook = _watch_lost()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
        if self._hook is not None:
            sys.unraisablehook = self._hook

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if number in _repeated:  # nobody pressed a key again; a loop that polls by now has seen the request
            if not self._polled:
                _raise(number, frame)
            _repeated.discard(number)
            return
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
