"""`rltrain train ppo|dqn`: settings and a market in, a run directory out."""

from pathlib import Path
from typing import Any

import rich_click as click

from numba_rl.config import Config
from numba_rl.precompile import Precompiler
from numba_rl.rundir import RunDir, refuse_if_taken
from rltrain import options
from rltrain.options import setting, settings_options

_MARKET, _RUN, _SETTINGS, _TRAINING = "Market", "Run directory", "Settings", "Training"


@click.group()
def train() -> None:
    """Train a PPO or DQN agent on a market file.

    Example: rltrain train ppo --data bars.csv.gz --out runs/first
    """


def _command(algorithm: str, title: str) -> click.Command:
    @train.command(
        algorithm,
        help=f"""Train {title}: read the market, learn on its first part, keep what does best on the second.

        Every setting can be given by --set, an environment variable (RLTRAIN_PPO_LR) or a settings file; options on the
        line win over the environment, which wins over the file, then the preset, then the defaults.

        Example: rltrain train {algorithm} --data bars.csv.gz --out runs/first --steps 1e6 --set {algorithm}.lr=1e-3
        """,
    )
    @setting("--data", "data.path", "Bars: CSV (.gz, .zst), Parquet, Feather or Databento DBN.", type=click.Path(), panel=_MARKET)
    @setting("--features", "data.features", "Own feature columns on the same stamps, instead of the 51.", type=click.Path(), panel=_MARKET)
    @setting("--reward", "reward.function", "Own reward function, FILE.py:NAME.", metavar="FILE.py:NAME", panel=_MARKET)
    @click.option("--out", type=click.Path(), help="New directory of the run. Default: runs/NAME, counted on.", panel=_RUN)
    @click.option("--overwrite", is_flag=True, help="Replace --out if it is a run and holds nothing else.", panel=_RUN)
    @click.option("--resume", type=click.Path(), help="Go on with this run, with its own settings.", panel=_RUN)
    @settings_options(panel=_SETTINGS)
    @options.training(panel=_TRAINING)
    @setting("--seed", "train.seed", "Seed of all random numbers.", metavar="NUMBER", panel=_TRAINING)
    @setting("--collector", "train.collector", "fused: one kernel, GPU only; batched: any network, any machine.", panel=_TRAINING)
    @click.pass_context
    def run(
        ctx: click.Context,
        out: str | None,
        overwrite: bool,
        resume: str | None,
        file: str | None,
        preset: str | None,
        sets: tuple[str, ...],
        **values: Any,
    ) -> None:
        given = options.flags(values, ctx.command)
        if resume is not None:
            _resume(resume, algorithm, given, others=bool(out or overwrite or file or preset or sets))
            return
        config = options.resolve(file, preset, sets, {"algorithm": (f"train {algorithm}", algorithm), **given})
        _start(config, out, overwrite=overwrite)

    return run


def _start(config: Config, out: str | None, *, overwrite: bool) -> None:
    if out is not None:
        refuse_if_taken(Path(out), overwrite=overwrite)  # at once, not after the market was read

    with Precompiler(config, click.echo) as kernels:
        from numba_rl.data.market import load_market
        from rltrain.training import say_market, work

        market = load_market(config).for_training()
        say_market(market)
        name = f"{config.algorithm}-{Path(market.source).name.partition('.')[0]}"
        with RunDir.create(out, config, name=name, overwrite=overwrite) as run:
            work(config, run, market, resume=False, kernels=kernels)
            click.echo(f"next: rltrain evaluate {run.path}")


def _resume(path: str, algorithm: str, given: dict[str, tuple[str, Any]], *, others: bool) -> None:
    from rltrain.resume import go_on

    fixed = [flag for key, (flag, value) in given.items() if value is not None and key not in options.TRAINING_KEYS]
    if fixed or others:
        what = fixed[0] if fixed else "--out, --overwrite, --config, --preset or --set"
        allowed = ", ".join(options.TRAINING_KEYS.values())
        raise click.UsageError(f"--resume goes on with the run's own settings: {what} cannot be given with it, only {allowed}.")
    go_on(path, given, algorithm=algorithm)


ppo = _command("ppo", "an agent by proximal policy optimisation")
dqn = _command("dqn", "an agent by deep Q-learning")
