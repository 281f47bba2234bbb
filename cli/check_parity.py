"""`rltrain check-parity`: whether this machine's GPU, its CPU path and a plain ledger play the same game on a market."""

from typing import TYPE_CHECKING, Any

import rich_click as click

from rltrain import options
from rltrain.options import setting, settings_options

if TYPE_CHECKING:
    from numba_rl.evaluate.parity import Comparison


@click.command("check-parity")
@setting("--data", "data.path", "Bars: CSV (.gz, .zst), Parquet, Feather or Databento DBN.", type=click.Path())
@setting("--reward", "reward.function", "Own reward function, FILE.py:NAME.", metavar="FILE.py:NAME")
@click.option("--slots", type=click.IntRange(1, 4096), default=8, show_default=True, help="Episodes side by side.")
@click.option("--steps", type=click.IntRange(1), default=1000, show_default=True, help="Steps of each.")
@setting("--seed", "train.seed", "Seed of the actions and the episodes' first bars.", metavar="NUMBER")
@setting("--device", "train.device", "cpu: leave the GPU out, its kernel then runs in the simulator.")
@settings_options()
@click.pass_context
def check_parity(
    ctx: click.Context, file: str | None, preset: str | None, sets: tuple[str, ...], slots: int, steps: int, **values: Any
) -> None:
    """Play the same random actions through GPU, CPU path and a float64 ledger, and show the first difference.

    Without a GPU its kernel runs in Numba's simulator, over fewer steps. Ends with 1 if anything differs.

    Example: rltrain check-parity --data bars.csv.gz --preset foxhunt
    """
    config = options.resolve(file, preset, sets, options.flags(values, ctx.command))
    if config.data.path is None:
        raise click.UsageError("--data says which market to play.")

    from numba_rl.data.market import load_market
    from numba_rl.evaluate import parity

    comparisons = parity.check_parity(config, load_market(config), slots, steps)
    click.echo(
        f"tolerance: integers equal; money, positions and prices {parity.MONEY:g}, rewards and states {parity.FLOAT32:g}, of the size of the number"
    )
    for comparison in comparisons:
        click.echo(_line(comparison))
    if any(comparison.difference for comparison in comparisons):
        raise click.exceptions.Exit(1)


def _line(comparison: "Comparison") -> str:
    pair = f"{comparison.first} and {comparison.second}"
    difference = comparison.difference
    if difference is not None:
        return (
            f"{pair} differ: slot {difference.slot}, step {difference.step} (bar {difference.bar:,}, action {difference.action}): "
            f"{difference.field} is {difference.first!r} and {difference.second!r}"
        )
    most = max(comparison.largest, key=comparison.largest.get)
    said = f"{pair} agree over {comparison.slots} x {comparison.steps:,} steps"
    if comparison.largest[most] > 0:
        said += f" (largest difference {comparison.largest[most]:.1e}, of {most})"
    if comparison.skipped:
        said += f"; not compared, since the ledger does not know it: {', '.join(comparison.skipped)}"
    return said
