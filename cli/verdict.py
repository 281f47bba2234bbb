"""What `evaluate` and `demo` print at the end: a few figures, and the verdict in words."""

from typing import TYPE_CHECKING

import rich_click as click
from rich.console import Console
from rich.table import Table

from numba_rl.evaluate.metrics import METRICS, compute_metrics

if TYPE_CHECKING:
    from numba_rl.evaluate.session import Evaluation
    from numba_rl.evaluate.walk_forward import WalkForward

SHOWN = ("total_return", "gross_return", "sharpe", "sortino", "max_drawdown", "turnover", "trades", "costs")
UNANNUALISED = tuple("sharpe_per_bar" if key == "sharpe" else key for key in SHOWN if key != "sortino")  # the bars per year are unknown


def say_verdict(evaluation: "Evaluation | WalkForward", title: str | None = None) -> None:
    """A table of the agent and the baselines, then the verdict. title: what was tested; None: a run's test range."""
    from numba_rl.evaluate.formatting import show

    columns = {
        "agent": compute_metrics(evaluation.agent),
        "buy-and-hold": compute_metrics(evaluation.hold),
        "flat": compute_metrics(evaluation.flat),
    }
    table = Table(title=title or f"test range, {len(evaluation.agent):,} bars, checkpoint {evaluation.checkpoint}", title_justify="left")
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    shown = SHOWN if evaluation.statistics.interval.annualised else UNANNUALISED
    for metric in METRICS:
        if metric.key in shown:
            table.add_row(metric.label, *(show(figures[metric.key], metric.unit) for figures in columns.values()))
    Console().print(table)
    click.echo(evaluation.statistics.verdict)
