"""`rltrain data synth`: write a synthetic market to a file."""

from pathlib import Path

import rich_click as click

from numba_rl.errors import UserError

KINDS = {
    "random_walk": "nothing can be earned",
    "mean_reverting": "the log price returns to its mean",
    "momentum": "the drift switches between up and down",
}


@click.command()
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="Ends with .csv, .csv.gz, .csv.zst, .parquet or .feather.")
@click.option("--bars", default=100_000, show_default=True, type=click.IntRange(1), help="Number of one-minute bars.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**32 - 1), help="The same seed draws the same bars.")
@click.option("--price", default=100.0, show_default=True, help="Price to start from, or to return to.")
@click.option("--sigma", type=float, help="Deviation of a bar's log return.")
@click.option("--phi", type=float, help="mean_reverting: share of the deviation that is left after a bar.")
@click.option("--drift", type=float, help="momentum: expected log return of a bar, up or down.")
@click.option("--switch", type=float, help="momentum: chance that the direction changes in a bar.")
@click.option("--force", is_flag=True, help="Overwrite the file if there is one.")
def synth(kind: str, out: Path, bars: int, seed: int, price: float, force: bool, **settings: float | None) -> None:
    """Make a synthetic market with a known answer.

    KIND is random_walk (nothing can be earned), mean_reverting (the log price returns to its mean) or momentum (the drift
    switches between up and down). Bars open at the close before, and their highs and lows are those of a Brownian bridge.

    Example: rltrain data synth mean_reverting --bars 200000 --seed 1 --out market.csv.gz
    """
    from numba_rl.data.synthetic import generate
    from numba_rl.data.write import check_suffix, write_bars

    check_suffix(out)
    if out.exists() and not force:
        raise UserError(f"{out} exists already; choose another file, or overwrite it with --force")
    if not out.parent.is_dir():
        raise UserError(f"{out.parent} is no directory; make it first")
    made = generate(kind, bars, seed, price=price, **{name: value for name, value in settings.items() if value is not None})
    write_bars(out, made.bars)
    click.echo(f"{out}: {bars:,} one-minute bars, {kind} ({KINDS[kind]}), seed {seed}")
