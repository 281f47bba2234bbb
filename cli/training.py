"""What `train`, `resume` and `demo` share: one training run under a stop request and a progress display, and how it ended."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import rich_click as click

from numba_rl.config import Config
from numba_rl.precompile import Precompiler
from numba_rl.rundir import RunDir, fallbacks
from numba_rl.signals import EXIT_CODES, StopRequest
from rltrain.progress import TrainingProgress, best_text, clock

if TYPE_CHECKING:
    from numba_rl.data.market import Market


def say_market(market: "Market") -> None:
    """Two lines on what was read, and its notices."""
    train, validation, test = (f"{span.stop - span.start:,}" for span in (market.train, market.validation, market.test))
    year = f"{market.bars_per_year:,.0f} bars per year" if market.bars_per_year > 0 else "bars per year unknown"
    click.echo(f"market: {market.source}, {year}, {len(market.names)} features")
    click.echo(f"bars: {train} to train, {validation} to validate, {test} to test")
    for notice in market.notices:
        click.echo(f"note: {notice}")


def say_fallbacks(lines: Iterable[str]) -> None:
    """What made training go on without a GPU, at the end, after everything that scrolled by."""
    for line in lines:
        click.echo(f"warning: {line}")


def work(config: Config, run: RunDir, market: "Market", *, resume: bool, kernels: Precompiler | None = None) -> None:
    """Train until done or asked to stop, and say how it ended. A signal exits with its code after everything was saved.

    kernels: what is compiling for this training.
    """
    from numba_rl.evaluate.validation import validator
    from numba_rl.trainer.building import needs, open_gpu
    from numba_rl.trainer.session import train

    if kernels is not None and kernels.busy:
        open_gpu(config)
        kernels.wait(run.log)
    started = time.monotonic()
    click.echo(f"memory: {needs(config, market, run.meta().get('sizes'))}")
    click.echo(f"run: {run.path}")
    with StopRequest() as stop, TrainingProgress(config.train.steps, config.train.time_limit) as progress:
        validate = validator(market, config, run.fall_back)  # compiles, of which the progress tells
        result = train(config, run, market, stop=stop, progress=progress.update, resume=resume, validate=validate)
    took = clock(time.monotonic() - started)
    signal = stop.requested
    again = fallbacks(run.path, run.segment)
    if signal is None:
        best = best_text(result.best, config.train.validate_by)
        click.echo(f"done ({result.reason}): {result.steps:,} steps, {took}{best}")
        say_fallbacks(again)
        return
    run.finish("interrupted" if result.reason == "interrupted" else "finished", signal)
    click.echo(f"{signal}: stopped at step {result.steps:,}, {took}, saved; `rltrain resume {run.path}` goes on from there")
    say_fallbacks(again)
    raise click.exceptions.Exit(EXIT_CODES[signal])
