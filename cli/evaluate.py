"""`rltrain evaluate RUN`: the verdict on the range that training never saw."""

from typing import Any

import rich_click as click

from numba_rl import settings
from numba_rl.errors import UserError
from numba_rl.rundir import RunDir
from rltrain import options
from rltrain.options import setting


@click.command()
@click.argument("run", type=click.Path())
@click.option("--checkpoint", type=click.Choice(["best", "final", "latest"]), help="Default: the best on the validation range.")
@setting("--policy", "evaluate.policy", "greedy, or softmax at evaluate.temperature.")
@setting("--temperature", "evaluate.temperature", "Of the softmax policy.", metavar="NUMBER")
@setting("--trials", "evaluate.trials", "Runs tried, for the deflated Sharpe ratio. Default: the runs beside this one.", metavar="NUMBER")
@click.option("--walk-forward", is_flag=True, help="Also over windows of --test through the test range, side by side.")
@setting("--test", "evaluate.test", "Length of a window: 30d, 6h, or bars.", metavar="LENGTH")
@setting("--step", "evaluate.step", "From window to window. Default: the length of a window.", metavar="LENGTH")
@click.option("--costs", metavar="0,1,2,4", help="Also at these multiples of all costs.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Another cost or evaluation setting, as market.taker_bps=8.")
@click.option("--report/--no-report", default=True, help="Write RUN/report.html as well.")
@click.pass_context
def evaluate(
    ctx: click.Context,
    run: str,
    checkpoint: str | None,
    walk_forward: bool,
    costs: str | None,
    sets: tuple[str, ...],
    report: bool,
    **values: Any,
) -> None:
    """Judge the policy of RUN on its test range, beside buy-and-hold, doing nothing, and chance.

    Writes RUN/evaluation/ (metrics.json, equity.parquet, trades.parquet; windows.csv and costs.csv where asked for) and
    RUN/report.html. Each look at the test range that shows anything new is counted.

    Example: rltrain evaluate runs/first --walk-forward --test 30d --costs 0,1,2,4
    """
    if not walk_forward and (values["evaluate__test"] or values["evaluate__step"]):
        raise click.UsageError("--test and --step are the lengths of --walk-forward: give it as well.")
    with RunDir.open(run) as opened:
        if "folds" in opened.meta():
            raise UserError(f"{run}: is a walk-forward, judged already; `rltrain report {run}` writes its tables and report anew")
        config = settings.replace(opened.config(), options.flags(values, ctx.command), sets)

        from numba_rl.evaluate.cost_sensitivity import parse_multiples
        from numba_rl.evaluate.session import evaluate_run, report_run
        from rltrain.verdict import say_verdict

        multiples = parse_multiples(costs) if costs is not None else ()
        evaluation = evaluate_run(opened, config=config, checkpoint=checkpoint, walk_forward=walk_forward, costs=multiples)
        say_verdict(evaluation)
        for line in evaluation.lines:
            click.echo(line)
        if report:
            click.echo(f"report: {report_run(opened, evaluation)}")
