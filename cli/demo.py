"""`rltrain demo`: the main job on an embedded synthetic market, from bars to report."""

import time
from pathlib import Path

import rich_click as click

BARS = 40_000
SECONDS = 90.0
STEPS = 1_200_000  # the learning rate falls to 0 on them
SEED = 3
KINDS = ["mean_reverting", "momentum", "random_walk"]


@click.command()
@click.option("--out", type=click.Path(), help="New directory of the run. Default: runs/demo, counted on.")
@click.option("--seconds", type=click.FloatRange(min=1), default=SECONDS, show_default=True, help="Training time.")
@click.option("--kind", type=click.Choice(KINDS), default=KINDS[0], show_default=True, help="Of the market.")
@click.option("--device", type=click.Choice(["auto", "cuda", "cpu"]), default="auto", show_default=True, help="Where to train.")
def demo(out: str | None, seconds: float, kind: str, device: str) -> None:
    """Train PPO on a synthetic market, judge it out of sample, and write the report. No data needed, no GPU needed.

    The market hides a signal, so that an agent can learn; on --kind random_walk there is none, and the verdict says so.

    Example: rltrain demo --seconds 60
    """
    started = time.monotonic()
    from numba_rl import settings
    from numba_rl.config import Config
    from numba_rl.data.market import load_market
    from numba_rl.data.synthetic import generate
    from numba_rl.data.write import write_bars
    from numba_rl.rundir import RunDir
    from rltrain.training import say_market, work

    changes = {"train.steps": STEPS, "train.time_limit": seconds, "train.seed": SEED, "train.device": device}
    config = settings.replace(Config(), changes)
    with RunDir.create(out, config, name="demo") as run:
        config = settings.replace(config, {"data.path": str(run.bars.absolute())})
        run.save_config(config)
        synthetic = generate(kind, BARS, SEED)
        write_bars(run.bars, synthetic.bars)
        market = load_market(config)
        say_market(market)
        work(config, run, market, resume=False)
        _judge(run, synthetic, started)


def _judge(run, synthetic, started: float) -> None:
    from numba_rl.evaluate.oracle import net_log_profit, oracle_for
    from numba_rl.evaluate.session import evaluate_run, report_run
    from rltrain.verdict import say_verdict

    evaluation = evaluate_run(run)
    say_verdict(evaluation)
    market = evaluation.market
    best = net_log_profit(oracle_for(synthetic, evaluation.config).play(market, synthetic, market.test, evaluation.config))
    if best > 0:
        share = net_log_profit(evaluation.agent) / best
        click.echo(f"An oracle that knows the hidden state would have earned {best:.2f} in log equity; the agent earned {share:.0%} of it.")
    report = Path(report_run(run, evaluation)).resolve()
    click.echo(f"all of it took {time.monotonic() - started:.0f} s")
    click.echo(f"report: {report}")
