"""A user's own reward: FILE.py:NAME becomes the base reward of the game, compiled into the CPU path and the kernels.

The function takes nine scalars, in the order of ARGUMENTS (see `rules.reward` for their meaning), and returns a number:

    def reward(equity_before, equity_after, price_before, price_after, exposure_before, exposure_after, cost, drawdown, step):
        return 1000.0 * (equity_after - equity_before) / equity_before
"""

import importlib.util
import inspect
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType

from numba import float32, int32, njit, types

from numba_rl.errors import ConfigError
from numba_rl.rules.reward import user_base

ARGUMENTS = (
    "equity_before",
    "equity_after",
    "price_before",
    "price_after",
    "exposure_before",
    "exposure_after",
    "cost",
    "drawdown",
    "step",
)
# Words of the CPU's machine code that tell what no kernel can run, so that a reward that works on the CPU works on a GPU too.
_NOT_IN_KERNELS = {"NRT_MemInfo_alloc": "arrays or lists", "NRT_Allocate": "arrays or lists", "random_state": "random numbers"}
SIGNATURE = (float32,) * (len(ARGUMENTS) - 1) + (int32,)


def load_reward(place: str):
    """The compiled base reward of `place`, FILE.py:NAME, for `rules.game.make_play`.

    Raises ConfigError, one line, where the file or the function is missing, takes other arguments, or does not compile.
    """
    file, colon, name = place.rpartition(":")
    if not colon or not file or not name:
        raise ConfigError(f'reward.function must be FILE.py:NAME, not "{place}"')
    path = Path(file)
    if not path.is_file():
        raise ConfigError(f"reward.function: there is no file {path}")
    function = getattr(_run(path), name, None)
    if function is None:
        raise ConfigError(f"reward.function: {path} has no function {name}")
    function = getattr(function, "py_func", function)  # the user's own @njit is compiled anew, for the documented arguments
    if not inspect.isfunction(function):
        raise ConfigError(f"reward.function: {name} in {path} is no function but a {type(function).__name__}")
    _check_arguments(function, path, name)
    compiled = njit(error_model="numpy")(function)
    try:
        compiled.compile(SIGNATURE)
    except Exception as error:  # numba hands on whatever the function's own names raise
        raise ConfigError(f"{_place(path, function, str(error))}: {name} does not compile: {_first_reason(str(error))}") from error
    returned = compiled.overloads[SIGNATURE].signature.return_type
    if not isinstance(returned, types.Integer | types.Float | types.Boolean):
        raise ConfigError(f"{path}, line {function.__code__.co_firstlineno}: {name} must return a number on every path, not {_in_words(returned)}")
    needs = sorted({_NOT_IN_KERNELS[word] for word in _NOT_IN_KERNELS if word in compiled.inspect_llvm(SIGNATURE)})
    if needs:
        raise ConfigError(
            f"{path}, line {function.__code__.co_firstlineno}: {name} uses {' and '.join(needs)}, which a kernel cannot; work on the numbers alone"
        )
    return user_base(compiled)


def _run(path: Path) -> ModuleType:
    """The user's file as a module of its own, which may import its neighbours; what it raises is told by the line that raised it."""
    spec = importlib.util.spec_from_file_location(f"user_reward_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.absolute().parent))
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise ConfigError(f"{path}, line {error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
        where = f"{path}, line {lines[-1]}" if lines else str(path)
        raise ConfigError(f"{where}: {type(error).__name__}: {_one_line(str(error))}") from error
    finally:
        sys.path.remove(str(path.absolute().parent))
    return module


def _check_arguments(function, path: Path, name: str):
    found = list(inspect.signature(function).parameters.values())
    positional = all(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in found)
    if not positional or len(found) != len(ARGUMENTS):
        raise ConfigError(
            f"{path}, line {function.__code__.co_firstlineno}: {name} must take {len(ARGUMENTS)} arguments "
            f"({', '.join(ARGUMENTS)}), it takes {', '.join(str(p) for p in found) or 'none'}"
        )


def _place(path: Path, function, message: str) -> str:
    """The user's file and the line that the compiler stopped at, or else the function's first line."""
    lines = re.findall(rf"{re.escape(path.name)}\D{{1,3}}(?:line )?(\d+)", message)
    return f"{path}, line {lines[-1] if lines else function.__code__.co_firstlineno}"


def _first_reason(message: str) -> str:
    """The lines of a compiler's message that say what is wrong."""
    noise = ("Failed in", "During:", "File ", "- Resolution failure", "There are", "Overload", "With argument", "No match", ">>>", "- Of which")
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", message).splitlines()]
    told = [line for line in lines if line and not line.startswith(noise)] or ["unknown reason"]
    call = [line.removeprefix(">>>") for line in lines if line.startswith(">>>")]
    told[0] = told[0].partition(" Raised from ")[0]
    return _one_line(told[0] + (call[0] if told[0].endswith(":") and call else ""))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]


def _in_words(kind) -> str:
    if isinstance(kind, types.NoneType):
        return "nothing"
    return "sometimes nothing" if isinstance(kind, types.Optional) else str(kind).partition("(func")[0]
