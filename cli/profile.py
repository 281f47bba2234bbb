"""`rltrain profile`: where the time of a training's epochs goes, and what the host has to wait for."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from numba_rl.errors import UserError
from rltrain import options
from rltrain.options import setting, settings_options

if TYPE_CHECKING:
    from numba_rl.bench.tracing import Trace

_SHOWN = 12  # kernels or operators


@click.group()
def profile() -> None:
    """See where the time of a training goes: kernels, host launches, waits.

    Example: rltrain profile ppo --out profiles/first
    """


def _command(algorithm: str) -> None:
    @profile.command(
        algorithm,
        help=f"""Train a few epochs of {algorithm} and show where their time went.

        On a GPU: a table of kernels by time, and how often an epoch waited for the device, copied and launched. On the CPU
        path: a table of operators. Ranges carry names (NVTX on a GPU); --ranges-only lays them alone, for nsys and ncu
        (recipes: profiles/nsys). Writes OUT/summary.json, table.txt and trace.json.gz, which chrome://tracing and Perfetto show.

        Example: rltrain profile {algorithm} --epochs 3 --set episodes.count=1024
        """,
    )
    @setting("--data", "data.path", "Bars to train on. Default: a synthetic market.", type=click.Path())
    @click.option(
        "--epochs", type=click.IntRange(1, 1000), default=5, show_default=True, help="Epochs that are looked at, after the first ones."
    )
    @click.option("--out", type=click.Path(), help=f"New directory of the files. Default: runs/profile-{algorithm}, counted on.")
    @click.option("--ranges-only", is_flag=True, help="Leave torch's profiler out: another one is watching.")
    @setting("--device", "train.device", "Where to train; auto: the GPU if it can be used.")
    @setting("--collector", "train.collector", "fused: one kernel, GPU only; batched: any network, any machine.")
    @settings_options()
    @click.pass_context
    def run(
        ctx: click.Context,
        epochs: int,
        out: str | None,
        ranges_only: bool,
        file: str | None,
        preset: str | None,
        sets: tuple[str, ...],
        **values: Any,
    ) -> None:
        given = {"algorithm": (f"profile {algorithm}", algorithm), **options.flags(values, ctx.command)}
        config = options.resolve(file, preset, sets, given)
        folder = _new_directory(out, f"profile-{algorithm}")

        from numba_rl.bench import games
        from numba_rl.bench.tracing import trace
        from numba_rl.data.market import load_market

        market = games.market() if config.data.path is None else load_market(config)
        _show(trace(config, market, epochs, folder, ranges_only=ranges_only), epochs)
        click.echo(f"files: {', '.join(str(path) for path in sorted(folder.iterdir()))}")


def _new_directory(wanted: str | None, name: str) -> Path:
    """An empty directory: `wanted`, or the first free one of runs/NAME, runs/NAME-2, ..."""
    if wanted is not None:
        folder = Path(wanted)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{wanted}: exists already; choose another directory")
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    for number in range(1, 10_000):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
    raise UserError(f"runs/{name}-...: thousands exist already; give --out")


def _show(found: "Trace", epochs: int) -> None:
    from numba_rl.bench.tracing import EPOCH, FIGURES
    from rltrain.bench import duration

    click.echo(f"{found.trainer} on {found.device}")
    click.echo(
        f"epoch: {duration(found.seconds)} (median of {epochs}, untraced), {found.steps:,} steps, {found.steps / found.seconds:,.0f} steps/s"
    )
    if not found.on_gpu:
        inside = ", ".join(f"{name} {duration(seconds)}" for name, seconds in found.ranges.items() if name != EPOCH)
        click.echo(f"of an epoch, while traced: {inside}; there are no streams, copies or launches to wait for on the CPU path")
    for name, said in ((EPOCH, "inside an epoch"), (FIGURES, "reading its figures")):
        if name in found.host:
            host = found.host[name]
            click.echo(
                f"{said}: {host.synchronisations:g} stream synchronisations, {host.blocking_copies:g} blocking copies, "
                f"{host.kernel_launches:g} kernel launches and {host.graph_launches:g} graph launches by the host"
            )
    if not found.parts:
        return
    whole = sum(part.us for part in found.parts)
    click.echo(f"{'kernels' if found.on_gpu else 'operators'} by time, {duration(whole / 1e6)} an epoch in all:")
    for part in found.parts[:_SHOWN]:
        click.echo(f"  {part.us / whole:6.1%} {duration(part.us / 1e6):>9} {part.calls:9,.1f} calls  {part.name[:90]}")


_command("ppo")
_command("dqn")
