"""`rltrain config`: show what would apply and where it comes from, list every setting, start a settings file."""

import ast
import inspect
import os
from pathlib import Path

import rich_click as click

from numba_rl import config as schema
from numba_rl import keys, settings
from numba_rl.config import Config
from numba_rl.errors import UserError
from numba_rl.files import atomic_write
from numba_rl.rundir import is_run
from rltrain.options import settings_options


@click.group()
def config() -> None:
    """Show, list or start a settings file.

    Example: rltrain config show --preset foxhunt --set ppo.lr=1e-3
    """


@config.command()
@click.argument("run", required=False, type=click.Path(file_okay=False))
@settings_options()
def show(run: str | None, file: str | None, preset: str | None, sets: tuple[str, ...]) -> None:
    """Print all settings as TOML, those of RUN or those that would apply now, each with where it came from.

    Example: RLTRAIN_PPO_LR=1e-3 rltrain config show --config run.toml
    """
    if run is not None:
        if file or preset or sets:
            raise click.UsageError("RUN has its own settings: give RUN alone, or --config, --preset and --set without it.")
        if not is_run(Path(run)):
            raise UserError(f"{run}: not a run directory")
        click.echo(settings.to_toml(settings.read_toml(Path(run) / "config.toml")), nl=False)
        return
    resolved = settings.load(file, preset=preset, sets=sets, environment=os.environ)
    click.echo(settings.to_toml(resolved.config, resolved.sources), nl=False)


@config.command("list")
@click.option("--markdown", is_flag=True, help="As the table of the README.")
def list_settings(markdown: bool) -> None:
    """Print every setting: default, what it takes, what it means.

    Example: rltrain config list | grep ppo
    """
    notes = field_notes()
    for name, key in keys.KEYS.items():
        default = "none" if key.default is None else keys.toml_value(key.default)
        if markdown:
            click.echo(f"| `{name}` | `{default}` | {keys.allowed(name)} | {notes[name]} |")
        else:
            click.echo(f"{name} = {default}  ({keys.allowed(name)})" + (f"  # {notes[name]}" if notes[name] else ""))


@config.command()
@click.argument("path", type=click.Path())
@click.option("--preset", type=click.Choice(list(settings.PRESETS)), help="Reward weights to start from.")
def init(path: str, preset: str | None) -> None:
    """Write a settings file with every key, its default, and what it takes; an existing file is left alone.

    Example: rltrain config init settings.toml
    """
    target = Path(path)
    if target.exists():
        raise UserError(f"{target}: exists already; choose another name")
    notes = field_notes()
    comments = {name: f"{keys.allowed(name)}{'; ' if notes[name] else ''}{notes[name]}" for name in keys.KEYS}
    atomic_write(target, settings.to_toml(settings.load(preset=preset).config, comments))
    click.echo(f"wrote {target}: rltrain train ppo --config {target} --data FILE --out RUN")


def field_notes() -> dict[str, str]:
    """The comment beside each field of the schema, by full key; "" where it has none."""
    source = inspect.getsource(schema)
    lines = source.splitlines()
    classes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    notes = {}
    for name in keys.KEYS:
        section, _, leaf = name.rpartition(".")
        owner = classes[type(getattr(Config(), section)).__name__ if section else "Config"]
        line = next(lines[item.end_lineno - 1] for item in owner.body if isinstance(item, ast.AnnAssign) and item.target.id == leaf)
        notes[name] = line.partition("  # ")[2]
    return notes
