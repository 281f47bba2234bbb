"""`rltrain resume`: go on with a run from its last checkpoint."""

from typing import Any

import rich_click as click

from numba_rl import settings
from numba_rl.errors import ConfigError, UserError
from numba_rl.precompile import Precompiler
from numba_rl.rundir import RunDir
from rltrain import options


@click.command()
@click.argument("run", type=click.Path())
@options.training(panel="Training")
@click.pass_context
def resume(ctx: click.Context, run: str, **values: Any) -> None:
    """Go on with RUN from its last checkpoint, with its own settings; the result is that of a run never interrupted.

    --steps is the new total, to train a finished run further. The environment and settings files are not read.

    Example: rltrain resume runs/first --steps 4e6
    """
    go_on(run, options.flags(values, ctx.command))


def go_on(path: str, given: dict[str, tuple[str, Any]], algorithm: str | None = None) -> None:
    """Resume the run at ``path`` with some training settings changed; ``algorithm``: what the user believes it to be."""
    with RunDir.open(path) as run:
        saved = run.config()
        if "folds" in run.meta():
            raise UserError(f"{path}: is a walk-forward: rltrain walk-forward --resume {path}")
        if algorithm not in (None, saved.algorithm):
            raise ConfigError(f"{path} is a {saved.algorithm} run: rltrain train {saved.algorithm} --resume {path}")
        config = settings.replace(saved, given)
        with Precompiler(config, click.echo) as kernels:
            from numba_rl.data.market import load_market
            from rltrain.training import say_market, work

            market = load_market(config).for_training()
            say_market(market)
            run.save_config(config)
            run.begin()
            started = run.has_results
            if not started:
                click.echo(f"note: {path} was ended before its first checkpoint; training begins anew")
            work(config, run, market, resume=started, kernels=kernels)
