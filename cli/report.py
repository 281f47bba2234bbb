"""`rltrain report RUN`: the HTML report alone."""

import rich_click as click

from numba_rl.rundir import RunDir


@click.command()
@click.argument("run", type=click.Path())
@click.option("--checkpoint", type=click.Choice(["best", "final", "latest"]), help="Default: the best on the validation range.")
def report(run: str, checkpoint: str | None) -> None:
    """Write RUN/report.html, one file that needs nothing else, and print its path.

    Of what `rltrain evaluate` has shown before, this is no further look at the test range.

    Example: rltrain report runs/first
    """
    with RunDir.open(run) as opened:
        if "folds" in opened.meta():
            from rltrain.walk_forward import judge_again

            judge_again(opened)
            return
        from numba_rl.evaluate.session import evaluate_run, report_run

        click.echo(f"report: {report_run(opened, evaluate_run(opened, checkpoint=checkpoint))}")
