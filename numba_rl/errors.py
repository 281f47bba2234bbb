"""The errors that a user can mend. Their text is one line: what, where, what to do."""


class UserError(Exception):
    """Bad input or settings. The command line prints the text alone and exits with 2."""


class DataError(UserError):
    """A market file that cannot be trusted; the text names the file, the row and the fix."""


class ConfigError(UserError):
    """A setting that is unknown, misplaced or out of range; the text names its full key."""


class CheckpointError(UserError):
    """A checkpoint that is damaged, hostile, or made for another run; the text says which."""


class FallbackWarning(RuntimeWarning):
    """A part of the work leaves the GPU, where it failed, and goes on more slowly. Raised as a warning, within the handler of the error."""


def one_line(error: Exception) -> str:
    """The text of an error of any kind in one line, 200 characters at most; the name of its class where it says nothing."""
    return " ".join(str(error).split())[:200] or type(error).__name__
