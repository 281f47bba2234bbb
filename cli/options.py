"""Options that several commands share, and how they become settings.

An option that stands for a setting is declared with that setting's key, so that messages name the flag that was typed and
`--help` says what the setting takes.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rich_click as click

from numba_rl import keys, settings
from numba_rl.config import Config
from numba_rl.errors import ConfigError

_DURATIONS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES_GB = {"kb": 1e-6, "mb": 1e-3, "gb": 1.0, "tb": 1e3, "mib": 2**20 / 1e9, "gib": 2**30 / 1e9}


class Quantity(click.ParamType):
    """A number with an optional unit, given back as text of the number in the setting's unit."""

    def __init__(self, name: str, units: dict[str, float], example: str) -> None:
        self.name = name
        self.units = units
        self.example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The number times its unit, as text; click's error where it is neither."""
        text = str(value).strip().lower().replace(" ", "")
        digits = text.rstrip("abcdefghijklmnopqrstuvwxyz")
        unit = text[len(digits) :]
        try:
            return repr(float(digits) * (self.units[unit] if unit else 1.0))
        except (ValueError, KeyError):
            self.fail(f"{value!r} is no {self.name}; write for example {self.example}", param, ctx)


DURATION = Quantity("duration", _DURATIONS, "90, 90s, 30m or 2h")
MEMORY = Quantity("size", _SIZES_GB, "4GB or 500MB")
TRAINING_KEYS = {
    "train.steps": "--steps",
    "train.time_limit": "--time-limit",
    "train.device": "--device",
    "train.memory_limit_gb": "--memory-limit",
}


def setting(flag: str, key: str, help: str, **attributes: Any) -> Callable:
    """An option for the setting ``key``; its value arrives under the key with dots as ``__``."""
    node = keys.required(keys.KEYS[key].node)
    if isinstance(node, keys.inspect.LiteralType):
        attributes["type"] = click.Choice(node.values)
    return click.option(flag, key.replace(".", "__"), help=help, **attributes)


def settings_options(**attributes: Any) -> Callable:
    """--config, --preset and --set, as ``file``, ``preset`` and ``sets``."""
    return _all(
        click.option("--config", "file", type=click.Path(), help="Settings as TOML; `rltrain config init` starts one.", **attributes),
        click.option("--preset", type=click.Choice(list(settings.PRESETS)), help="Reward weights to start from.", **attributes),
        click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="One setting, as ppo.lr=1e-3; repeatable.", **attributes),
    )


def training(**attributes: Any) -> Callable:
    """The options of training that a resumed run may change as well: TRAINING_KEYS."""
    return _all(
        setting("--steps", "train.steps", "Environment steps in all.", metavar="NUMBER", **attributes),
        setting("--time-limit", "train.time_limit", "Stop training after it: 90s, 30m, 2h.", type=DURATION, **attributes),
        setting("--device", "train.device", "Where to train; auto: the GPU if it can be used.", **attributes),
        setting("--memory-limit", "train.memory_limit_gb", "Use no more of the device's memory: 4GB.", type=MEMORY, **attributes),
    )


def _all(*decorators: Callable) -> Callable:
    def decorate(command: Callable) -> Callable:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def flags(values: dict[str, Any], command: click.Command) -> dict[str, tuple[str, Any]]:
    """The options of ``command`` that stand for settings: full key -> (flag, value), as ``settings.load`` takes them."""
    names = {parameter.name: parameter.opts[0] for parameter in command.params}
    return {name.replace("__", "."): (names[name], value) for name, value in values.items() if name.replace("__", ".") in keys.KEYS}


def resolve(file: str | None, preset: str | None, sets: tuple[str, ...], given: dict[str, tuple[str, Any]]) -> Config:
    """The settings of a command from all layers, with the paths in them made absolute so that the run can be evaluated from anywhere."""
    config = settings.load(file, preset=preset, sets=sets, flags=given, environment=os.environ).config
    absolute: dict[str, str] = {}
    if config.data.path is not None:
        absolute["data.path"] = str(Path(config.data.path).absolute())
    if config.data.features != "default":
        absolute["data.features"] = str(Path(config.data.features).absolute())
    if config.reward.function is not None:
        source, colon, name = config.reward.function.rpartition(":")
        if not colon or not source or not name:
            raise ConfigError(f'reward.function must be FILE.py:NAME, not "{config.reward.function}"')
        absolute["reward.function"] = f"{Path(source).absolute()}:{name}"
    return settings.replace(config, absolute)
