"""`rltrain bench`: this project's times on this machine beside plain torch and the goals."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from numba_rl.errors import UserError

if TYPE_CHECKING:
    import torch

    from numba_rl.bench.rows import Row

_TIMES = ((1e-3, 1e6, "us"), (1.0, 1e3, "ms"), (float("inf"), 1.0, "s"))
_RATES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (0.0, ""))


class Sizes(click.ParamType):
    """Sizes such as 128x500,8192x500: tuples of as many whole numbers >= 1 as one of `parts` says."""

    name = "sizes"

    def __init__(self, example: str) -> None:
        self.example = example
        self.parts = {len(size.split("x")) for size in example.split(",")}

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> list[tuple[int, ...]]:
        """The sizes in `value`; click's error where it holds anything else."""
        sizes = []
        for text in str(value).split(","):
            numbers = text.strip().split("x")
            if len(numbers) not in self.parts or not all(number.isascii() and number.isdigit() and int(number) > 0 for number in numbers):
                self.fail(f"{text!r} is no size; write for example {self.example}", param, ctx)
            sizes.append(tuple(int(number) for number in numbers))
        return sizes


@click.group()
def bench() -> None:
    """Measure this machine: times beside plain torch and the goals, outputs checked first.

    Example: rltrain bench ppo --json ppo.json
    """


def _command(name: str, what: str, sizes: str, meaning: str) -> None:
    @bench.command(
        name,
        help=f"""Time {what}.

        Everything is checked before it is timed, by float64 where there is one; wrong outputs end the command with exit code 1.
        Without a GPU the CPU path is timed. The goals are those of an NVIDIA H200, and are only shown there.

        Example: rltrain bench {name} --sizes {sizes} --json {name}.json
        """,
    )
    @click.option(
        "--sizes", type=Sizes(sizes), metavar=meaning, help=f"What to time, such as {sizes}. Default: that of the goals; less on the CPU."
    )
    @click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=20.0, show_default=True, help="Of timing, about.")
    @click.option(
        "--device", type=click.Choice(["auto", "cuda", "cpu"]), default="auto", show_default=True, help="auto: the GPU if it can be used."
    )
    @click.option(
        "--json", "file", type=click.Path(dir_okay=False), help="Write the table into this file too, with the machine and all checks."
    )
    def run(sizes: list[tuple[int, ...]] | None, seconds: float, device: str, file: str | None) -> None:
        _run(name, sizes, seconds, device, file)


def _run(name: str, sizes: list[tuple[int, ...]] | None, seconds: float, device: str, file: str | None) -> None:
    if file is not None and not Path(file).absolute().parent.is_dir():
        raise UserError(f"{file}: there is no directory {Path(file).parent}; make it first")  # not after a minute of measuring

    import json

    from numba_rl.bench.device import measured_device
    from numba_rl.bench.rows import GOAL_GPU, as_json, machine
    from numba_rl.bench.timing import Clock
    from numba_rl.files import atomic_write

    where = measured_device(device)
    module = importlib.import_module(f"numba_rl.bench.{name}")
    sizes = sizes or list(module.SIZES[where.type])
    click.echo(f"{machine(where)['device']}, {machine(where)['threads']} CPU threads; the outputs of each are checked, then it is timed")
    if where.type == "cpu":
        click.echo(f"This is the CPU path. The goals are those of one GPU, an {GOAL_GPU}: nothing here is compared with them.")
    rows = []
    for row in module.run(Clock(where, seconds / (module.TIMED * len(sizes))), sizes):
        rows.append(row)
        click.echo(f"  {row.work}: {duration(row.seconds)}" + _checks(row))
    _show(rows, where)
    if file is not None:
        atomic_write(Path(file), json.dumps(as_json(name, rows, where), indent=1) + "\n")
        click.echo(f"table: {file}")


def _checks(row: "Row") -> str:
    return f" ({', '.join(f'{name} {value:.1e}' if value else f'{name} 0' for name, value in row.checks.items())})" if row.checks else ""


def _show(rows: "list[Row]", device: "torch.device") -> None:
    from rich.console import Console
    from rich.table import Table

    from numba_rl.bench.rows import GOAL_GPU

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for column in ("numba_rl", "a second", "plain torch", "ratio", f"goal ({GOAL_GPU})"):
        table.add_column(column, justify="right")
    for row in rows:
        plain = ("-", "-") if row.plain is None else (duration(row.plain), f"{row.plain / row.seconds:.3g}")
        table.add_row(row.work, duration(row.seconds), rate(row), *plain, goal(row, device.type == "cuda"))
    console = Console(highlight=False)
    (console if console.is_terminal else Console(highlight=False, width=160)).print(table)


def duration(seconds: float) -> str:
    """Three digits with a unit: 15.2 us, 0.912 ms."""
    scale, unit = next((scale, unit) for most, scale, unit in _TIMES if seconds < most)
    return f"{seconds * scale:.3g} {unit}"


def rate(row: "Row") -> str:
    """What is done in a second: 71.2 M steps."""
    scale, prefix = next((scale, prefix) for scale, prefix in _RATES if row.rate >= scale)
    return f"{row.rate / (scale or 1.0):.3g} {prefix}{' ' if prefix else ''}{row.unit}"


def goal(row: "Row", compared: bool) -> str:
    """The most that it may take, and where a GPU was measured whether it does."""
    if row.goal is None:
        return "-"
    if not compared:
        return duration(row.goal)
    return f"{duration(row.goal)}, {'met' if row.missed <= 0 else f'missed by {row.missed:.0%}'}"


_command("rollout", "the rollout: episodes played with all of the rules, network included", "128x500,8192x500", "EPISODESxSTEPS,...")
_command("ppo", "PPO: collection with critic and advantages, the update, whole iterations", "128x500,4096x128", "EPISODESxSTEPS,...")
_command("gae", "generalised advantage estimation", "128x500,4096x512", "EPISODESxSTEPS,...")
_command("replay", "prioritized replay: a sample and its update, and inserting", "1000000x256,1000000x1024", "SLOTSxBATCH,...")
_command(
    "dqn",
    "DQN: updates (a size is a batch), collection and epochs (a size is episodes x steps)",
    "256,1024,128x500",
    "BATCH or EPISODESxSTEPS,...",
)
