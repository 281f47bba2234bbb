"""`rltrain walk-forward`: retrain in every window, test on the bars that follow it, join the tests."""

from pathlib import Path
from typing import Any

import rich_click as click

from numba_rl import settings
from numba_rl.config import Config
from numba_rl.errors import UserError
from numba_rl.precompile import Precompiler
from numba_rl.rundir import RunDir, refuse_if_taken
from numba_rl.signals import EXIT_CODES, StopRequest
from rltrain import options
from rltrain.options import setting, settings_options

_MARKET, _WINDOWS, _RUN, _SETTINGS, _TRAINING = "Market", "Windows", "Run directory", "Settings", "Training, of each fold"
_RESUMED = ("train.device", "train.memory_limit_gb", "evaluate.jobs")  # what a resume may change


class _Jobs(click.ParamType):
    """A number, or "auto" for the setting's 0."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The setting's value as text."""
        return "0" if str(value).lower() == "auto" else str(value)


@click.command("walk-forward")
@click.argument("algorithm", type=click.Choice(["ppo", "dqn"]), required=False)
@setting("--data", "data.path", "Bars: CSV (.gz, .zst), Parquet, Feather or Databento DBN.", type=click.Path(), panel=_MARKET)
@setting("--features", "data.features", "Own feature columns on the same stamps, instead of the 51.", type=click.Path(), panel=_MARKET)
@setting("--reward", "reward.function", "Own reward function, FILE.py:NAME.", metavar="FILE.py:NAME", panel=_MARKET)
@setting("--train", "evaluate.train", "Length of a training window: 90d, 6h, or bars.", metavar="LENGTH", panel=_WINDOWS)
@setting("--test", "evaluate.test", "Length of a test window.", metavar="LENGTH", panel=_WINDOWS)
@setting("--step", "evaluate.step", "From window to window. Default: the length of a test.", metavar="LENGTH", panel=_WINDOWS)
@setting("--purge", "evaluate.purge", "Training bars dropped before a test.", metavar="LENGTH", panel=_WINDOWS)
@setting("--embargo", "evaluate.embargo", "A further gap before a test.", metavar="LENGTH", panel=_WINDOWS)
@setting("--anchored/--rolling", "evaluate.anchored", "Train from the first bar on, or on the last --train.", default=None, panel=_WINDOWS)
@setting("--seeds", "evaluate.seeds", "Trainings of each fold, with seeds that count up.", metavar="NUMBER", panel=_WINDOWS)
@setting(
    "--jobs",
    "evaluate.jobs",
    "Trainings side by side; auto: as many as cores and memory allow.",
    type=_Jobs(),
    metavar="NUMBER|auto",
    panel=_TRAINING,
)
@click.option("--dry-run", is_flag=True, help="Show the folds and stop.", panel=_WINDOWS)
@click.option("--picture", type=click.Path(dir_okay=False), help="With --dry-run: the folds as an HTML page.", panel=_WINDOWS)
@click.option("--out", type=click.Path(), help="New directory of the run. Default: runs/NAME, counted on.", panel=_RUN)
@click.option("--overwrite", is_flag=True, help="Replace --out if it is a run and holds nothing else.", panel=_RUN)
@click.option("--resume", type=click.Path(), help="Go on with this run, with its own settings.", panel=_RUN)
@settings_options(panel=_SETTINGS)
@options.training(panel=_TRAINING)
@setting("--seed", "train.seed", "Seed of all random numbers.", metavar="NUMBER", panel=_TRAINING)
@click.pass_context
def walk_forward(
    ctx: click.Context,
    algorithm: str | None,
    dry_run: bool,
    picture: str | None,
    out: str | None,
    overwrite: bool,
    resume: str | None,
    file: str | None,
    preset: str | None,
    sets: tuple[str, ...],
    **values: Any,
) -> None:
    """Train anew in every window and test on the bars that follow: the honest out-of-sample verdict.

    Every fold trains --steps steps on bars before its test only, the last of them kept to choose the checkpoint. Ctrl-C
    saves all, --resume goes on. A training that fails is told in one line and does not hold up the others. Writes
    RUN/evaluation/windows.csv, trades.parquet, equity.parquet and RUN/report.html.

    Example: rltrain walk-forward ppo --data bars.csv.gz --train 90d --test 30d --seeds 3 --jobs auto
    """
    given = options.flags(values, ctx.command)
    if resume is not None:
        fixed = [flag for key, (flag, value) in given.items() if value is not None and key not in _RESUMED]
        if fixed or out or overwrite or file or preset or sets or dry_run:
            what = fixed[0] if fixed else "--out, --overwrite, --config, --preset, --set or --dry-run"
            raise click.UsageError(f"--resume goes on with the run's own settings: {what} cannot be given with it.")
        _resume(resume, given, algorithm)
        return
    if algorithm is None:
        raise click.UsageError("Missing argument: ppo or dqn.")
    config = options.resolve(file, preset, sets, {"algorithm": (f"walk-forward {algorithm}", algorithm), **given})
    if out is not None and not dry_run:
        refuse_if_taken(Path(out), overwrite=overwrite)

    from numba_rl.data.market import load_market
    from numba_rl.evaluate.folds import folds_text, plan, write_folds

    market = load_market(config)
    folds = plan(market, config)
    click.echo(folds_text(market, folds, config))
    if dry_run:
        if picture is not None:
            write_folds(picture, market, folds, config)
            click.echo(f"picture: {picture}")
        return
    name = f"walk-forward-{algorithm}-{Path(market.source).name.partition('.')[0]}"
    with RunDir.create(out, config, name=name, overwrite=overwrite) as run:
        write_folds(run.evaluation / "folds.html", market, folds, config)
        _work(config, run, market, folds)


def _resume(path: str, given: dict[str, tuple[str, Any]], algorithm: str | None) -> None:
    with RunDir.open(path) as run:
        saved = run.config()
        if "folds" not in run.meta():
            raise UserError(f"{path}: is no walk-forward run; `rltrain resume {path}` goes on with it")
        if algorithm not in (None, saved.algorithm):
            raise UserError(f"{path}: is a walk-forward of {saved.algorithm}, not of {algorithm}")
        config = settings.replace(saved, given)
        market, folds = _same_market(run, config)
        run.begin()
        _work(config, run, market, folds)


def judge_again(run: RunDir) -> None:
    """Write the tables and the report of a walk-forward's finished folds once more."""
    config = run.config()
    judge(run, config, *_same_market(run, config))


def _same_market(run: RunDir, config: Config) -> tuple:
    """The market that a walk-forward was begun on, and its folds."""
    from numba_rl.data.market import load_market
    from numba_rl.evaluate.folds import plan

    market = load_market(config)
    if run.meta()["bars_digest"] != market.bars_digest:
        raise UserError(f"{config.data.path}: these are not the bars that {run.path} was begun with; use the same file")
    return market, plan(market, config)


def _work(config: Config, run: RunDir, market, folds) -> None:
    from numba_rl.evaluate.fold_jobs import fallbacks_of, is_finished, jobs
    from numba_rl.evaluate.fold_training import train_folds
    from rltrain.folds_progress import FoldsProgress
    from rltrain.training import say_fallbacks

    click.echo(f"run: {run.path}")
    every = jobs(folds, config)
    with Precompiler(config, click.echo) as kernels:  # once, not in every fold's process
        kernels.wait(run.log)
    with StopRequest() as stop, FoldsProgress(config, len(every)) as watch:
        trained = train_folds(run, config, market, folds, stop=stop, watch=watch)
    again = f"`rltrain walk-forward --resume {run.path}`"
    if trained.signal is not None:
        run.finish("interrupted", trained.signal)
        click.echo(f"interrupted by {trained.signal}, saved: {again} goes on from there")
        say_fallbacks(fallbacks_of(every, run))
        raise click.exceptions.Exit(EXIT_CODES[trained.signal])
    if not trained.failed or any(is_finished(job, run) for job in every):
        judge(run, config, market, folds)
    if not trained.failed:
        return
    rest = f", {trained.not_begun} not begun for the same reason twice" if trained.not_begun else ""
    raise UserError(f"{len(trained.failed)} of {len(every)} trainings failed{rest}; {again} tries them again")


def judge(run: RunDir, config: Config, market, folds) -> None:
    """Play the finished folds, write tables and report, print the verdict."""
    from numba_rl.evaluate.fold_jobs import fallbacks_of, jobs
    from numba_rl.evaluate.walk_forward import judge_folds
    from numba_rl.evaluate.walk_forward_report import report_walk_forward, write_tables
    from rltrain.training import say_fallbacks
    from rltrain.verdict import say_verdict

    found = judge_folds(run, config, market, folds)
    write_tables(run.evaluation, found)
    windows = len(found.headline)
    say_verdict(found, f"{windows} test window{'s' if windows != 1 else ''}, {len(found.agent):,} bars")
    if not found.complete:
        click.echo(f"warning: {found.missing}", err=True)
    say_fallbacks(fallbacks_of(jobs(folds, config), run))
    click.echo(f"report: {report_walk_forward(run, found)}")
