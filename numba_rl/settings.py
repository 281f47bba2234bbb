"""Where a run's settings come from: layers, conversion, checks and the TOML that is kept with a run.

Layers, the later one wins: default < preset < TOML file < environment (``RLTRAIN_PPO_LR``) < command line
(``--set ppo.lr=1e-3`` and the named flags). All problems are collected and raised as one ``ConfigError`` of one line
that names each full key, the value, what is allowed and where it was written. Imports neither torch nor numba.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numba_rl.config import Config
from numba_rl.errors import ConfigError
from numba_rl.keys import KEYS, SECTIONS, Text, convert, toml_value, unknown_key, unknown_section

PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "foxhunt": {"reward.barrier": 0.5, "reward.diversity": 1.0, "reward.curiosity": 1.0, "reward.risk": 0.1},
}
ENVIRONMENT_PREFIX = "RLTRAIN_"
OTHER_VARIABLES = frozenset({"RLTRAIN_CACHE_DIR"})  # of the same prefix, but no settings: where compiled kernels lie


@dataclass(frozen=True)
class Resolved:
    """Settings with the layer that each value came from: ``sources["ppo.lr"]`` is "default", "--set", "run.toml, line 3"..."""

    config: Config
    sources: dict[str, str]


def load(
    file: str | Path | None = None,
    *,
    preset: str | None = None,
    sets: Iterable[str] = (),
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Resolved:
    """Put the layers together and check the result.

    file: TOML with sections as tables. preset: a name of PRESETS (as the flag ``--preset``). sets: texts
    "section.field=value". flags: full key -> value, or -> (flag name, value) to have messages name the flag; None
    means not given. environment: usually ``os.environ``; None reads no variable.
    Raises ConfigError that lists every unknown key, wrong value and contradiction found.
    """
    problems: list[str] = []
    layers = [
        _from_file(file, problems) if file is not None else {},
        _from_environment(environment or {}, problems),
        _from_command_line(sets, {"preset": ("--preset", preset), **(flags or {})}, problems),
    ]
    chosen: dict[str, tuple[Any, str]] = {name: (key.default, "default") for name, key in KEYS.items()}
    given = {name: entry for layer in layers for name, entry in layer.items()}
    preset_name = given.get("preset", chosen["preset"])[0]
    chosen |= {name: (value, f"preset {preset_name}") for name, value in PRESETS[preset_name].items()}
    chosen |= given
    if problems:
        raise ConfigError("; ".join(problems))
    config = _build({name: value for name, (value, _) in chosen.items()})
    check(config)
    return Resolved(config, {name: source for name, (_, source) in chosen.items()})


def check(config: Config) -> None:
    """Raise ConfigError for any value out of its range and for settings that contradict each other.

    ``load`` calls it; settings built in Python (``Config(...)`` checks nothing by itself) go through it before training.
    """
    problems: list[str] = []
    for name in KEYS:
        try:
            convert(name, value_of(config, name))
        except ValueError as error:
            problems.append(str(error))
    problems = problems or list(_contradictions(config))
    if problems:
        raise ConfigError("; ".join(problems))


def value_of(config: Config, name: str) -> Any:
    """The value of a full key, for example ``value_of(config, "ppo.lr")``."""
    section, _, leaf = name.rpartition(".")
    return getattr(getattr(config, section) if section else config, leaf)


def replace(config: Config, changes: Mapping[str, Any], sets: Iterable[str] = ()) -> Config:
    """A checked copy of ``config`` with some full keys changed: ``replace(config, {"train.steps": 10_000})``.

    A change may be ``(flag name, value)``, None values are kept out, texts are converted, as ``flags`` of ``load``; ``sets``
    are texts as there.
    """
    problems: list[str] = []
    given = _from_command_line(sets, changes, problems)
    if problems:
        raise ConfigError("; ".join(problems))
    changed = _build({name: value_of(config, name) for name in KEYS} | {name: value for name, (value, _) in given.items()})
    check(changed)
    return changed


def to_toml(config: Config, sources: Mapping[str, str] | None = None) -> str:
    """All settings as TOML; ``read_toml`` gives an equal Config back.

    TOML has no null: a None is written as the comment ``# key = none`` and read back as its default, which is None.
    With ``sources``, each value that is no default carries the layer that it came from as a comment.
    """
    lines: list[str] = []
    section = ""
    for name in sorted(KEYS, key=lambda name: "." in name):  # top-level keys must precede the tables
        head, _, leaf = name.rpartition(".")
        if head != section:
            section = head
            lines += ["", f"[{section}]"]
        value = value_of(config, name)
        line = f"# {leaf} = none" if value is None else f"{leaf} = {toml_value(value)}"
        source = (sources or {}).get(name, "default")
        lines.append(line if source == "default" else f"{line}  # {source}")
    return "\n".join(lines) + "\n"


def read_toml(path: str | Path) -> Config:
    """The settings of one TOML file alone (no environment, no flags), checked."""
    return load(path).config


# ---------------------------------------------------------------------------------------------------------- layers


def _from_file(path: str | Path, problems: list[str]) -> dict[str, tuple[Any, str]]:
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors on Windows write a byte order mark
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such settings file") from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: not a readable settings file ({why})") from None
    try:
        tables = tomllib.loads(text + "\n")
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_toml_error(path, text, str(error))) from None
    entries: dict[str, Any] = {}
    for top, value in tables.items():
        if top in SECTIONS and isinstance(value, dict):
            entries |= {f"{top}.{leaf}": item for leaf, item in value.items()}
        elif top in SECTIONS:
            problems.append(f"{path}, line {_line_of(text, top)}: {top} is a section: write [{top}] and its keys below")
        elif isinstance(value, dict) and top not in KEYS:
            problems.append(f"{path}, line {_line_of(text, top)}: {unknown_section(top)}")
        else:
            entries[top] = value
    layer: dict[str, tuple[Any, str]] = {}
    for name, value in entries.items():
        _put(layer, name, value, f"{path}, line {_line_of(text, name)}", problems)
    return layer


def _from_environment(environment: Mapping[str, str], problems: list[str]) -> dict[str, tuple[Any, str]]:
    layer: dict[str, tuple[Any, str]] = {}
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in OTHER_VARIABLES:
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if name not in KEYS:
            name = name.replace("_", ".", 1)  # no section has an underscore, many fields do
        _put(layer, name, Text(environment[variable]), f"environment variable {variable}", problems)
    return layer


def _from_command_line(sets: Iterable[str], flags: Mapping[str, Any], problems: list[str]) -> dict[str, tuple[Any, str]]:
    layer: dict[str, tuple[Any, str]] = {}
    for text in sets:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            problems.append(f"--set {text}: write --set section.field=value, for example --set ppo.lr=1e-3")
        elif name in layer:
            problems.append(f"--set {text}: {name} is set twice on the command line; keep one")
        else:
            _put(layer, name, Text(value.strip()), f"--set {text}", problems)
    for name, given in flags.items():
        label, value = given if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) else (name, given)
        if value is None:
            continue
        if name in layer:
            problems.append(f"{label}: {name} is set twice on the command line ({layer[name][1]}); keep one")
        else:
            _put(layer, name, Text(value) if isinstance(value, str) else value, label, problems)
    return layer


def _put(layer: dict[str, tuple[Any, str]], name: str, value: Any, source: str, problems: list[str]) -> None:
    if name not in KEYS:
        problems.append(f"{source}: {unknown_key(name)}")
        return
    try:
        layer[name] = (convert(name, value), source)
    except ValueError as error:
        problems.append(f"{source}: {error}")


def _line_of(text: str, name: str) -> int:
    """The line (from 1) of a TOML text on which a key or table was written; 1 where it cannot be told."""
    section, _, leaf = name.rpartition(".")
    current = ""
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped.startswith("["):
            current = stripped.strip("[] ")
            if current == name:
                return number
        written = stripped.partition("=")[0].strip()
        if (current, written) == (section, leaf) or (current, written) == ("", name):
            return number
    return 1


def _toml_error(path: Path, text: str, message: str) -> str:
    """tomllib's message as "FILE, line N: what, what to do"."""
    what, _, place = message.partition(" (at ")
    number = int(place.partition("line ")[2].partition(",")[0] or 0)
    line = text.splitlines()[number - 1].strip() if 0 < number <= len(text.splitlines()) else ""
    if "Cannot overwrite" in what or "twice" in what or "Duplicate" in what:
        return f"{path}, line {number}: {line.partition('=')[0].strip()} is set twice; keep one"
    if path.suffix.lower() in (".yaml", ".yml", ".json"):
        return f"{path}: settings files are TOML; `rltrain config init settings.toml` writes one to start from"
    return f"{path}, line {number}: not valid TOML: {what[:1].lower()}{what[1:]} ({line})"


def _contradictions(config: Config) -> Iterator[str]:
    """What is wrong between settings that are each within their range."""
    data, market, reward, dqn, replay, episodes = config.data, config.market, config.reward, config.dqn, config.replay, config.episodes
    if abs(sum(data.split) - 1.0) > 1e-6:
        yield f"data.split: the shares must sum to 1, these sum to {sum(data.split):g}"
    if data.price_mode == "arithmetic":
        if market.sizing != "units":
            yield 'data.price_mode = "arithmetic" allows prices <= 0, so market.sizing must be "units", not "equity"'
        if reward.mode != "net_return":
            yield f'data.price_mode = "arithmetic" has no log price move: set reward.mode = "net_return", not "{reward.mode}"'
        if reward.barrier > 0.0:
            yield 'reward.barrier is a share of the entry price and needs data.price_mode = "log"; set it to 0'
    if market.equity_floor >= market.initial_capital:
        yield f"market.equity_floor ({market.equity_floor:g}) must be below market.initial_capital ({market.initial_capital:g})"
    if reward.function is not None and reward.shaping == "dsr":
        yield 'reward.function and reward.shaping = "dsr" both replace the base reward; choose one'
    if config.preset == "foxhunt" and not (reward.barrier or reward.diversity or reward.curiosity or reward.risk):
        yield 'preset = "foxhunt" with all of its weights at 0: take it with settings.load(preset="foxhunt"), or use preset = "default"'
    if replay.capacity is not None and replay.capacity < dqn.n_step + 1:
        yield f"replay.capacity ({replay.capacity}) must be at least dqn.n_step + 1 ({dqn.n_step + 1})"
    if replay.beta_end < replay.beta_start:
        yield f"replay.beta_end ({replay.beta_end:g}) must not be below replay.beta_start ({replay.beta_start:g})"
    if dqn.epsilon_end is not None and dqn.epsilon_end > dqn.epsilon_start:
        yield f"dqn.epsilon_end ({dqn.epsilon_end:g}) must not be above dqn.epsilon_start ({dqn.epsilon_start:g})"
    if episodes.count is not None and episodes.launch is not None and episodes.count * episodes.launch < config.ppo.minibatches:
        yield f"ppo.minibatches ({config.ppo.minibatches}) exceeds the {episodes.count * episodes.launch} steps of a launch"


def _build(values: Mapping[str, Any]) -> Config:
    sections = {
        section: type(getattr(Config(), section))(**{n.partition(".")[2]: v for n, v in values.items() if n.startswith(f"{section}.")})
        for section in SECTIONS
    }
    return Config(**sections, **{name: value for name, value in values.items() if "." not in name})
