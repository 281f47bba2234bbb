"""What a walk-forward leaves behind: windows.csv, equity.parquet, trades.parquet, metrics.json, and the report."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import polars as pl

from numba_rl.evaluate.blocks import Section, Table
from numba_rl.evaluate.charts import Line, curve_chart, fan_chart
from numba_rl.evaluate.fold_jobs import fallbacks_of, jobs
from numba_rl.evaluate.folds import dates, folds_section, untested_lines
from numba_rl.evaluate.formatting import show
from numba_rl.evaluate.maps import heat_map
from numba_rl.evaluate.metrics import METRICS, compute_metrics
from numba_rl.evaluate.report import DataSummary, ReportData, summarize_market, write_report
from numba_rl.evaluate.sections import stretched
from numba_rl.evaluate.session import FELL_BACK
from numba_rl.evaluate.svg import time_axis
from numba_rl.evaluate.tables import equity_table, trades_table, write_csv, write_parquet
from numba_rl.evaluate.walk_forward import Played, WalkForward
from numba_rl.evaluate.windows import UNITS, windows_section, windows_table
from numba_rl.files import atomic_write
from numba_rl.rundir import RunDir

LABELS = {metric.key: metric.label for metric in METRICS}
VALIDATED = {"log_return": "Validation, log return", "sharpe": "Validation, Sharpe per bar"}
MOST_CELLS = 40  # folds side by side in a heat map


def write_tables(folder: Path, found: WalkForward) -> None:
    """The tables of all seeds; equity and trades are those of each seed's joined account, the first seed's folds first."""
    folder.mkdir(exist_ok=True)
    every = [p for folds in found.played.values() for p in folds]
    write_csv(folder / "windows.csv", windows_table([p.window for p in every]))
    equity, trades = [], []
    for seed, account in found.accounts.items():
        folds = _fold_of_steps(found.played[seed], len(account))
        equity.append(equity_table(account).with_columns(seed=pl.lit(seed), fold=pl.Series([folds[0], *folds])))
        trades.append(
            trades_table(account, found.config.market.fill_at).with_columns(
                seed=pl.lit(seed), fold=pl.Series(folds[account.trades.entry_index])
            )
        )
    write_parquet(folder / "equity.parquet", pl.concat(equity))
    write_parquet(folder / "trades.parquet", pl.concat(trades))
    figures = {
        "verdict": found.statistics.verdict,
        "headline_seed": found.seed,
        "seeds": list(found.played),
        "folds": len(found.folds),
        "folds_tested": len(found.headline),
        "trials": found.trials,
        "agent": {str(seed): compute_metrics(account) for seed, account in found.accounts.items()},
        "buy_and_hold": compute_metrics(found.hold),
        "statistics": asdict(found.statistics),
        "not_tested": untested_lines(found.market, [p.job.fold.test for p in found.headline]),
    }
    atomic_write(folder / "metrics.json", json.dumps(figures, indent=1, default=float))


def _fold_of_steps(played: Sequence[Played], steps: int) -> np.ndarray:
    """Number of the fold that each step of the joined account belongs to, int64 [steps]; a ruin ends the account early."""
    return np.repeat([p.job.number for p in played], [len(p.own) for p in played])[:steps]


def report_walk_forward(run: RunDir, found: WalkForward) -> Path:
    """Write RUN/report.html; returns its path."""
    meta = run.meta()
    warnings = [f"{FELL_BACK} {line}." for line in fallbacks_of(jobs(found.folds, found.config), run)]
    if not found.complete:
        warnings.append(f"{found.missing.capitalize()}. This is not the whole walk-forward.")
    market = summarize_market(found.market)
    data = ReportData(
        title=f"{run.path.name}: walk-forward",
        agent=found.agent,
        statistics=found.statistics,
        hold=found.hold,
        flat=found.flat,
        random=found.random,
        data=DataSummary(**{**market.__dict__, "ranges": {}}),
        config=found.config,
        warnings=warnings,
        interrupted=meta.get("reason") if meta.get("status") == "interrupted" else None,
        sample=f"{len(found.headline)} test windows, one after the other",
        first=[_windows(found), *([_seeds(found)] if len(found.accounts) > 1 else []), _decay(found)],
        extra=[folds_section(found.market, found.folds, found.config)],
    )
    write_report(run.report, data)
    return run.report


def _windows(found: WalkForward) -> Section:
    text = (
        f"A new policy was trained for each window ({found.config.algorithm.upper()}, {found.config.train.steps:,} steps), on bars before it only. "
        "The account below carries its capital from window to window; each window's position is closed at its end, at cost. "
        "Buy-and-hold is bought and closed in each window here; over time, below, it is held throughout."
    )
    if len(found.played) > 1:
        text += f" Of {len(found.accounts)} seeds this is seed {found.seed}, the median by final equity."
    return windows_section([p.window for p in found.headline], {"fold": "Fold"}, text=text)


def _seeds(found: WalkForward) -> Section:
    """Seeds as a fan, and what each made of each fold."""
    longest = max(found.accounts.values(), key=lambda account: len(account.timestamp))
    points = len(longest.timestamp)
    paths = np.stack([stretched(account.equity, points) for account in found.accounts.values()])
    hold = Line("Buy-and-hold", stretched(found.hold.equity, points), "hold")
    blocks = [fan_chart("Equity of the seeds, net", time_axis(longest.timestamp), paths, "money", others=[hold])]
    values = np.full((len(found.played), len(found.folds)), np.nan)
    for row, folds in enumerate(found.played.values()):
        for p in folds:
            values[row, p.job.number] = _number(p.window.figures["total_return"])
    names = [f"seed {seed}" for seed in found.played]
    if len(found.folds) <= MOST_CELLS:
        columns = [str(number) for number in range(len(found.folds))]
        blocks.append(heat_map("Net return by seed and fold", names, columns, values, "percent", signed=True))
    ratio, rows = found.ratio, []
    for seed, account in found.accounts.items():
        figures = compute_metrics(account)
        cells = [show(figures[key], UNITS[key]) for key in ("total_return", ratio, "max_drawdown", "costs")]
        own = values[list(found.played).index(seed)]
        ends = [show(float(end(own)), "percent") for end in (np.nanmin, np.nanmax)]
        rows.append([f"{seed}{' (this report)' if seed == found.seed else ''}", *cells, *ends])
    head = ["Seed", "Net return", LABELS[ratio], "Maximum drawdown", "Costs", "Worst fold", "Best fold"]
    return Section("Seeds", [*blocks, Table(head, rows)])


def _decay(found: WalkForward) -> Section:
    """Sharpe ratios by fold: where the policy was fitted, and in its test."""
    folds, ratio = found.headline, found.ratio
    rows = [_decay_row(found, p) for p in folds]
    known = [(p.in_sample[ratio], p.window.figures[ratio]) for p in folds]
    inside, outside = (np.array([_number(pair[k]) for pair in known]) for k in (0, 1))
    lines = [Line("In sample", inside, "gross"), Line("Out of sample", outside, "agent")]
    decay, unit = found.statistics.decay, UNITS[ratio]
    lost = "" if decay is None else f": {show(decay, 'percent')} of the in-sample ratio was lost"
    text = (
        f"Mean {LABELS[ratio]} in sample {show(_mean(inside), unit)}, out of sample {show(_mean(outside), unit)} by window and "
        f"{show(found.statistics.interval.estimate, unit)} for the joined account{lost}. "
        "In sample is the last part of the fitted bars."
    )
    blocks = [Table(["Fold", "Fitted on (UTC)", "In sample", VALIDATED[found.config.train.validate_by], "Test", "Checkpoint"], rows, scroll=len(rows) > 14)]
    if len(folds) > 1:
        numbers = np.array([p.job.number for p in folds], np.float64)
        blocks.insert(0, curve_chart(f"{LABELS[ratio]} by fold", numbers, lines, "ratio", x_unit="count", zero=True, height=200))
    return Section("Out of sample against in sample", blocks, text)


def _decay_row(found: WalkForward, p: Played) -> list[str]:
    return [
        str(p.job.number),
        dates(found.market, p.job.fold.train),
        show(p.in_sample[found.ratio], UNITS[found.ratio]),
        show(p.validation, "fine"),
        show(p.window.figures[found.ratio], UNITS[found.ratio]),
        p.checkpoint,
    ]


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def _mean(values: np.ndarray) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None
