"""`rltrain data synth`: a synthetic market with a known answer, as a file."""

from pathlib import Path

import rich_click as click

from numba_rl.errors import UserError


@click.command()
@click.argument("out", type=click.Path())
@click.option("--kind", type=click.Choice(["mean_reverting", "momentum", "random_walk"]), default="mean_reverting", show_default=True)
@click.option("--bars", type=click.IntRange(min=1), default=40_000, show_default=True, help="One-minute bars.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def synth(out: str, kind: str, bars: int, seed: int) -> None:
    """Write a synthetic market to OUT: .csv, .csv.gz, .parquet or .feather.

    On random_walk nothing can be earned; mean_reverting and momentum hide a signal. Existing files are not overwritten.

    Example: rltrain data synth market.parquet --kind momentum --bars 100000
    """
    from numba_rl.data.synthetic import generate
    from numba_rl.data.write import write_bars

    if Path(out).exists():
        raise UserError(f"{out} is there already; choose another name")
    made = generate(kind, bars, seed).bars
    write_bars(out, made)
    click.echo(f"{out}: {len(made):,} bars of a {kind} market, seed {seed}")
