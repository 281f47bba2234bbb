"""The script `rltrain`: runs a command and turns every way it can end into one line and an exit code.

0: done. 1: an internal failure. 2: something the user can mend (bad input, settings, arguments). 130: Ctrl-C. 143: SIGTERM.
Only the standard library is imported here, so that Ctrl-C during the other imports ends in one line as well.
"""

import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn


class _Warnings(logging.Handler):
    """Shows what the package warns of, in one line, wherever standard error goes at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        _say(f"warning: {record.getMessage()}")


_WARNINGS = _Warnings(logging.WARNING)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `rltrain` with ``arguments`` (default: the command line) and exit the process with its code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        code = _run(words, debug)
        sys.stdout.flush()
    except KeyboardInterrupt as interrupt:
        _say(f"{interrupt.args[0] if interrupt.args else 'SIGINT'}: interrupted")
        code = getattr(interrupt, "exit_code", 130)
    except BrokenPipeError:  # `rltrain ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a late Ctrl-C ends the process without a traceback
    sys.exit(code)


def _run(words: list[str], debug: bool) -> int:
    from rltrain.app import COMPLETION, rltrain

    if COMPLETION in os.environ:
        rltrain.main(words, prog_name="rltrain", complete_var=COMPLETION)

    import click

    from numba_rl.errors import UserError
    from numba_rl.signals import raise_on_signals

    raise_on_signals()
    logging.getLogger("numba_rl").addHandler(_WARNINGS)
    try:
        with rltrain.make_context("rltrain", words) as context:
            rltrain.invoke(context)
        return 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.Abort:  # Ctrl-C at a prompt
        raise KeyboardInterrupt from None
    except click.exceptions.NoArgsIsHelpError as error:  # a group without a command
        print(error.format_message(), file=sys.stderr)
        return 2
    except click.UsageError as error:
        context = error.ctx
        _say(f"error: {error.format_message()}" + (f" See `{context.command_path} --help`." if context else ""))
        return 2
    except (UserError, click.ClickException) as error:
        if debug:
            raise
        _say(f"error: {error.format_message() if isinstance(error, click.ClickException) else error}")
        return 2
    except BrokenPipeError:
        raise
    except Exception as error:
        if debug:
            raise
        if isinstance(error, OSError) and error.strerror:
            where = f"{error.filename}: " if error.filename else ""
            _say(f"error: {where}{error.strerror} (run with --debug for the traceback)")
        else:
            _say(f"error: internal failure: {type(error).__name__}: {error} (run with --debug for the traceback)")
        return 1


def _say(text: str) -> None:
    print(" ".join(text.split()), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
