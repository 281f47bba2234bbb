"""What `train`, `resume` and `demo` share: one training run under a stop request and a progress display, and how it ended."""

import time
from typing import TYPE_CHECKING

import rich_click as click

from numba_rl.config import Config
from numba_rl.rundir import RunDir
from numba_rl.signals import EXIT_CODES, StopRequest
from rltrain.progress import TrainingProgress, clock

if TYPE_CHECKING:
    from numba_rl.data.market import Market


def say_market(market: "Market") -> None:
    """Two lines on what was read, and its notices."""
    train, validation, test = (f"{span.stop - span.start:,}" for span in (market.train, market.validation, market.test))
    click.echo(f"market: {market.source}, {market.bars_per_year:,.0f} bars per year, {len(market.names)} features")
    click.echo(f"bars: {train} to train, {validation} to validate, {test} to test")
    for notice in market.notices:
        click.echo(f"note: {notice}")


def work(config: Config, run: RunDir, market: "Market", *, resume: bool) -> None:
    """Train until done or asked to stop, and say how it ended. A signal exits with its code after everything was saved."""
    from numba_rl.evaluate.session import validator
    from numba_rl.trainer import session

    started = time.monotonic()
    click.echo(f"run: {run.path}")
    validate = validator(market, config)
    with StopRequest() as stop, TrainingProgress(config.train.steps, config.train.time_limit) as progress:
        result = session.train(config, run, market, stop=stop, progress=progress.update, resume=resume, validate=validate)
    signal = stop.requested
    if signal is not None:
        run.finish("interrupted", signal)
        click.echo(f"interrupted by {signal} at step {result.steps:,}, saved: `rltrain resume {run.path}` goes on from there")
        raise click.exceptions.Exit(EXIT_CODES[signal])
    click.echo(f"done: {result.steps:,} steps in {clock(time.monotonic() - started)}")
