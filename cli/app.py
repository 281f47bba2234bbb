"""The group `rltrain`: a table of commands, each imported only when it runs, so that `--help` is quick."""

import importlib
from typing import Any

import click
import rich_click
from rich_click import RichCommand, RichGroup

COMPLETION = "_RLTRAIN_COMPLETE"

# name -> (module:attribute, what it does). A new command is one line here.
COMMANDS = {
    "train": ("rltrain.train:train", "Train a PPO or DQN agent on a market file."),
    "resume": ("rltrain.resume:resume", "Go on with a run that was interrupted, or train it further."),
    "evaluate": ("rltrain.evaluate:evaluate", "Judge a trained run out of sample."),
    "walk-forward": ("rltrain.walk_forward:walk_forward", "Retrain in every window, and judge what follows each."),
    "report": ("rltrain.report:report", "Write the HTML report of a run."),
    "data": ("rltrain.data:data", "Look at a market file, or make a synthetic one."),
    "demo": ("rltrain.demo:demo", "Train on an embedded synthetic market, start to report, in 3 minutes."),
    "config": ("rltrain.config:config", "Show, list or start a settings file."),
    "check-parity": ("rltrain.check_parity:check_parity", "See whether GPU, CPU path and a plain ledger agree on a market."),
    "bench": ("rltrain.bench:bench", "Time this machine beside plain torch and the goals."),
    "profile": ("rltrain.profile:profile", "See where the time of a training goes."),
    "doctor": ("rltrain.doctor:doctor", "Say what this machine has, and which path would run."),
}


class LazyGroup(RichGroup):
    """A group whose commands are named in a table; only the one that is called is imported."""

    def __init__(self, *args: Any, table: dict[str, tuple[str, str]] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = table or {}
        for name, (_, summary) in self.table.items():
            self.add_command(RichCommand(name, help=summary))  # stands in for the real one in lists

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the table's order, which is the order of use."""
        return list(self.commands)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """The real command, imported now."""
        name, command, rest = super().resolve_command(ctx, args)
        if name in self.table:
            module, _, attribute = self.table[name][0].partition(":")
            command = getattr(importlib.import_module(module), attribute)
        return name, command, rest


def _version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        import numba_rl

        click.echo(f"rltrain {numba_rl.__version__}")
        ctx.exit()


@rich_click.group(cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@rich_click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version.")
@rich_click.option("--debug", is_flag=True, expose_value=False, help="Anywhere on the line: show tracebacks.")
def rltrain() -> None:
    """Train and judge trading agents with reinforcement learning, on one GPU or on the CPU.

    Example: rltrain train ppo --data bars.csv.gz --out runs/first
    """
