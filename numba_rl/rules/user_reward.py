"""A user's own base reward, from `FILE.py:NAME` to a function that is compiled into the game.

The function takes the nine scalars that numba_rl.rules.reward documents and returns a number. It is compiled here once, so
that what Numba cannot compile is one clear line, before any training. It may call other functions that carry @njit.
"""

import importlib.util
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

from numba import float32, int32, njit, types
from numba.core.errors import NumbaError

from numba_rl.errors import ConfigError
from numba_rl.rules.reward import user_base

SIGNATURE = (*[float32] * 8, int32)
PARAMETERS = "equity_before, equity_after, price_before, price_after, exposure_before, exposure_after, cost, drawdown, step"


def load_reward(spec: str):
    """The base reward (numba_rl.rules.reward.user_base) for "FILE.py:NAME"; this runs the file.

    Raises ConfigError, one line: no such file or function, the file fails, nine parameters are not taken, the function does
    not compile, or does not return a number.
    """
    file, colon, name = spec.rpartition(":")
    if not colon or not file or not name:
        raise ConfigError(f'reward.function must be FILE.py:NAME, not "{spec}"')
    found = getattr(_module(file), name, None)
    function = getattr(found, "py_func", found)  # @njit may stand on it already
    if not inspect.isfunction(function):
        raise ConfigError(f"reward.function: {file} has no function {name}")
    _require_parameters(function, spec)
    compiled = njit(error_model="numpy")(function)
    try:
        compiled.compile(SIGNATURE)
    except Exception as error:  # Numba raises many kinds, some of them not its own
        raise ConfigError(f"reward.function {spec} cannot be compiled: {_reason(error, file)}") from None
    result = compiled.nopython_signatures[0].return_type
    if not isinstance(types.unliteral(result), types.Number | types.Boolean) or isinstance(result, types.Complex):
        raise ConfigError(f"reward.function {spec} must return a number on every path, not {result}")
    return user_base(compiled)


def _module(file: str) -> ModuleType:
    path = Path(file)
    if not path.is_file():
        raise ConfigError(f"reward.function: there is no file {file}")
    module_name = f"numba_rl_user_reward_{path.stem}"
    loaded = importlib.util.spec_from_file_location(module_name, path)
    if loaded is None or loaded.loader is None:
        raise ConfigError(f"reward.function: {file} is not a Python file (.py)")
    module = importlib.util.module_from_spec(loaded)
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # nothing is left beside the user's file
    try:
        loaded.loader.exec_module(module)
    except Exception as error:
        line = getattr(error, "lineno", None) or next(
            (frame.lineno for frame in reversed(inspect.getinnerframes(error.__traceback__)) if frame.filename == str(path)), None
        )
        place = f"line {line}: " if line else ""
        raise ConfigError(f"reward.function: {file} fails: {place}{type(error).__name__}: {_one_line(error)}") from None
    finally:
        sys.dont_write_bytecode = before
    return module


def _require_parameters(function, spec: str) -> None:
    parameters = inspect.signature(function).parameters.values()
    plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(plain) != len(SIGNATURE) or len(plain) != len(parameters):
        raise ConfigError(f"reward.function {spec} takes {len(parameters)} parameters; it must take nine: {PARAMETERS}")


def _reason(error: Exception, file: str) -> str:
    """What Numba says first that is about the user's code, and the line that it is about."""
    text = str(error)
    skip = ("Failed in nopython mode pipeline", "During:", "File ", "[1]", "Overload ")
    lines = [line.strip() for line in text.splitlines()]
    said = next((line for line in lines if line and not line.startswith(skip)), type(error).__name__)
    said = re.sub(r"\s*Raised from .*", "", said).replace("\x1b[0m", "").replace("\x1b[1m", "")
    if "<class 'function'>" in said:
        said += "; put @njit on the functions that it calls"
    place = re.search(rf'{re.escape(Path(file).name)}"?(?:, line |:| \()(\d+)', text)
    kind = "" if isinstance(error, NumbaError) or said == type(error).__name__ else f"{type(error).__name__}: "
    return f"line {place[1]}: {kind}{said}" if place else f"{kind}{said}"


def _one_line(error: Exception) -> str:
    return " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
