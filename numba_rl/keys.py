"""What each setting is called, what it takes, and what a mistyped one was meant to be.

A key's full name is ``section.field`` (``algorithm`` and ``preset`` stand alone). Values that were typed, on the command
line or in an environment variable, are marked as ``Text`` and read by the key's type; values of a TOML file or of Python
keep their type and must fit it. Imports neither torch nor numba.
"""

import difflib
import math
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import tomli_w
from msgspec import inspect

from numba_rl.config import Config

# Names that other libraries use for the same thing, so that they lead to ours.
_ALIASES = {
    "learning_rate": ("ppo.lr", "dqn.lr"),
    "clip_range": ("ppo.clip",),
    "n_steps": ("episodes.launch",),
    "n_envs": ("episodes.count",),
    "total_timesteps": ("train.steps",),
    "batch_size": ("dqn.batch", "ppo.minibatches"),
    "n_epochs": ("ppo.epochs",),
    "ent_coef": ("ppo.entropy_coef",),
    "vf_coef": ("ppo.value_coef",),
    "tau": ("dqn.target_rate",),
    "buffer_size": ("replay.capacity",),
    "commission": ("market.taker_bps",),
    "fee": ("market.taker_bps",),
    "slippage": ("market.spread_bps",),
}


@dataclass(frozen=True)
class Key:
    """One setting: its full name, the annotated Python type, msgspec's description of that type, and the default."""

    name: str
    hint: Any
    node: inspect.Type
    default: Any


def _keys() -> Iterator[Key]:
    defaults = Config()
    hints = typing.get_type_hints(Config, include_extras=True)
    for top in inspect.type_info(Config).fields:
        value = getattr(defaults, top.name)
        if not isinstance(top.type, inspect.StructType):
            yield Key(top.name, hints[top.name], top.type, value)
            continue
        section_hints = typing.get_type_hints(type(value), include_extras=True)
        for leaf in top.type.fields:
            yield Key(f"{top.name}.{leaf.name}", section_hints[leaf.name], leaf.type, getattr(value, leaf.name))


KEYS: dict[str, Key] = {key.name: key for key in _keys()}
SECTIONS: tuple[str, ...] = tuple(dict.fromkeys(name.partition(".")[0] for name in KEYS if "." in name))


class Text(str):
    """A value that was typed: a number, list or flag has still to be read from it."""


def toml_value(value: Any) -> str:
    """One value as TOML on one line."""
    if isinstance(value, tuple | list):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return tomli_w.dumps({"v": value}).partition("= ")[2].rstrip("\n")


def allowed(name: str) -> str:
    """What a key takes, in words: "a number from 0 to 1"."""
    return _describe(KEYS[name].node)


def convert(name: str, value: Any) -> Any:
    """``value`` in the type of the key ``name``; ValueError says what the key takes where it does not fit."""
    key = KEYS[name]
    try:
        parsed = _parse(value, key.node) if isinstance(value, Text) else value
        if isinstance(parsed, float) and parsed.is_integer() and isinstance(required(key.node), inspect.IntType):
            parsed = int(parsed)  # steps = 2e6
        converted = msgspec.convert(parsed, key.hint)
        numbers = converted if isinstance(converted, tuple) else (converted,)
        if not all(math.isfinite(number) for number in numbers if isinstance(number, float)):
            raise ValueError
    except (ValueError, msgspec.ValidationError):
        comma = isinstance(value, str) and "," in value and isinstance(required(key.node), inspect.IntType | inspect.FloatType)
        hint = " (write the decimal point as a point)" if comma else ""
        raise ValueError(f"{name} must be {allowed(name)}, not {_shown(value)}{hint}") from None
    return converted


def unknown_key(name: str) -> str:
    """What to say of a key that does not exist: where its name belongs, or the nearest one that does."""
    section, _, leaf = name.rpartition(".")
    if section and section not in SECTIONS:
        near = difflib.get_close_matches(section, SECTIONS, n=1)
        if near and f"{near[0]}.{leaf}" in KEYS:
            return f"unknown setting {name}; nearest: {near[0]}.{leaf}"
    owners = [key for key in KEYS if key.rpartition(".")[2] == leaf]
    if owners:
        sections = " and ".join(key.rpartition(".")[0] or "the top level" for key in owners)
        return f"unknown setting {name}: {leaf} belongs to {sections} ({', '.join(owners)})"
    near = _nearest(leaf, {key.rpartition(".")[2]: (key,) for key in KEYS if key.rpartition(".")[0] == section})
    near = near or _nearest(leaf, _everywhere()) or tuple(difflib.get_close_matches(name, KEYS, n=1))
    return f"unknown setting {name}; nearest: {', '.join(near)}" if near else f"unknown setting {name}; `rltrain config list` shows all"


def unknown_section(name: str) -> str:
    """What to say of a table that is no section."""
    near = difflib.get_close_matches(name, SECTIONS, n=1)
    return f"unknown section [{name}]; " + (f"nearest: [{near[0]}]" if near else f"sections are {', '.join(SECTIONS)}")


def _everywhere() -> dict[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = dict(_ALIASES)
    for key in KEYS:
        leaf = key.rpartition(".")[2]
        names[leaf] = (*names.get(leaf, ()), key)
    return names


def _nearest(name: str, candidates: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    match = difflib.get_close_matches(name, candidates, n=1)
    return candidates[match[0]] if match else ()


def _shown(value: Any) -> str:
    if isinstance(value, Text):
        return str(value) if value and value.isprintable() else repr(str(value))
    try:
        return "a table" if isinstance(value, dict) else toml_value(value)
    except TypeError:  # None, or an object that a Python caller passed
        return " ".join(repr(value).split())


def _parse(text: str, node: inspect.Type) -> Any:
    """A typed text as a value of ``node``'s kind; ValueError where it is none."""
    if isinstance(node, inspect.UnionType):
        return None if text.lower() in ("none", "null") else _parse(text, required(node))
    if isinstance(node, inspect.BoolType):
        lowered = text.lower()
        if lowered not in ("true", "false", "1", "0", "yes", "no", "on", "off"):
            raise ValueError
        return lowered in ("true", "1", "yes", "on")
    if isinstance(node, inspect.IntType):
        try:
            return int(text)
        except ValueError:
            number = float(text)  # 2e6
            if not number.is_integer():
                raise
            return int(number)
    if isinstance(node, inspect.FloatType):
        return float(text)
    if isinstance(node, inspect.VarTupleType | inspect.TupleType):
        items = [item.strip() for item in text.strip("[]() ").split(",") if item.strip()]
        kinds = node.item_types if isinstance(node, inspect.TupleType) else [node.item_type] * len(items)
        return [_parse(item, kind) for item, kind in zip(items, kinds, strict=True)]
    quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if quoted else str(text)


def required(node: inspect.Type) -> inspect.Type:
    """The type beside None of an optional setting; the type itself of any other."""
    return next(kind for kind in node.types if not isinstance(kind, inspect.NoneType)) if isinstance(node, inspect.UnionType) else node


def _describe(node: inspect.Type) -> str:
    if isinstance(node, inspect.UnionType):
        return f"{_describe(required(node))}, or none"
    if isinstance(node, inspect.BoolType):
        return "true or false"
    if isinstance(node, inspect.LiteralType):
        return "one of " + ", ".join(map(str, node.values))
    if isinstance(node, inspect.IntType | inspect.FloatType):
        return f"a {_describe_number(node, 'number')}"
    if isinstance(node, inspect.VarTupleType):
        return f"a list of {_describe_number(node.item_type, 'numbers')}, like [128, 64]"
    if isinstance(node, inspect.TupleType):
        return f"a list of {len(node.item_types)} {_describe_number(node.item_types[0], 'numbers')}"
    return "a text"


def _describe_number(node: inspect.IntType | inspect.FloatType, noun: str) -> str:
    noun = f"whole {noun}" if isinstance(node, inspect.IntType) else noun
    if node.ge is not None and (node.le is not None or isinstance(node, inspect.IntType) and node.lt is not None):
        return f"{noun} from {node.ge:g} to {node.le if node.le is not None else node.lt - 1}"
    bounds = [f"{sign} {bound:g}" for sign, bound in ((">", node.gt), (">=", node.ge), ("<", node.lt), ("<=", node.le)) if bound is not None]
    return " ".join([noun, " and ".join(bounds)]).strip()
