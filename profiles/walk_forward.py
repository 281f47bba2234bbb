"""Walk-forward with retraining on real markets, the results as they come out, good or bad.

    python profiles/walk_forward.py DATA [--steps 200000] [--seeds 1] [--jobs 1] [--out runs/walk_forward] [--only NAME ...]

DATA is a folder with the files named below. Each market becomes a run directory OUT/NAME, which a second call goes on with, and
all become OUT/table.md and OUT/table.json. Costs are the defaults: taker 4, maker 2 and spread 1 basis points a side.
"""

import argparse
import json
from pathlib import Path

from numba_rl import settings
from numba_rl.config import Config
from numba_rl.data.market import load_market
from numba_rl.evaluate.fold_training import train_folds
from numba_rl.evaluate.folds import plan, write_folds
from numba_rl.evaluate.formatting import chance, show
from numba_rl.evaluate.metrics import compute_metrics
from numba_rl.evaluate.walk_forward import judge_folds
from numba_rl.evaluate.walk_forward_report import report_walk_forward, write_tables
from numba_rl.files import atomic_write
from numba_rl.rundir import RunDir, is_run

# name -> file, training and test window
MARKETS = {
    "6E": ("6EH4_1min_2024-01.csv.gz", "10d", "4d"),
    "USDJPY": ("usdjpy_m1_bid_2013.csv.gz", "10d", "4d"),
    "BTC perpetual": ("btc_perp_1m_2022-01.csv.gz", "10d", "4d"),
    "S&P 500 daily": ("sp500_daily_1999-2018.csv.gz", "2555d", "730d"),
}
HEAD = ("Market", "Windows", "Bars", "Net return", "Gross return", "Sharpe a year", "95% interval", "Drawdown", "Costs", "Buy-and-hold", "P(hold better)")


def run_market(name: str, data: Path, out: Path, steps: int, seeds: int, jobs: int) -> dict:
    """Train and judge one market, `jobs` trainings side by side; its row of the table."""
    file, train, test = MARKETS[name]
    path = out / name.replace(" ", "-").replace("&", "")
    changes = {
        "data.path": str(data / file), "evaluate.train": train, "evaluate.test": test, "evaluate.seeds": seeds, "evaluate.trials": seeds,
        "train.steps": steps, "train.tensorboard": False, "train.device": "cpu", "train.threads": 1, "evaluate.jobs": jobs,
    }  # fmt: skip
    config = settings.replace(Config(), changes)
    market = load_market(config)
    folds = plan(market, config)
    print(f"{name}: {len(market):,} bars, {len(folds)} folds", flush=True)
    with RunDir.open(path) if is_run(path) else RunDir.create(path, config) as run:
        if settings.replace(run.config(), {"evaluate.jobs": jobs}) != config:
            raise SystemExit(f"{path}: was made with other settings; choose another --out")
        write_folds(run.evaluation / "folds.html", market, folds, config)
        trained = train_folds(run, config, market, folds)
        if trained.failed:
            raise SystemExit("\n".join(f"{name}, {job.name}: {words}" for job, words in trained.failed.items()))
        found = judge_folds(run, config, market, folds)
        write_tables(run.evaluation, found)
        report_walk_forward(run, found)
        run.finish("finished")
    own, hold, statistics = compute_metrics(found.agent), compute_metrics(found.hold), found.statistics
    return {
        "market": name, "windows": len(found.headline), "train": train, "test": test, "steps": steps, "seeds": seeds,
        "agent": own, "buy_and_hold": hold, "low": statistics.interval.low, "high": statistics.interval.high,
        "hold_better": None if statistics.hold is None else statistics.hold.sharpe, "verdict": statistics.verdict,
    }  # fmt: skip


def table(rows: list[dict]) -> str:
    """The rows as Markdown, with the verdicts beneath."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    for row in rows:
        own, hold = row["agent"], row["buy_and_hold"]
        cells = [row["market"], str(row["windows"]), show(own["bars"], "bars")]
        cells += [show(own["total_return"], "percent"), show(own["gross_return"], "percent"), show(own["sharpe"], "ratio")]
        cells += ["n/a" if row["low"] is None else f"{row['low']:.2f} to {row['high']:.2f}", show(own["max_drawdown"], "percent")]
        cells += [show(own["costs"], "money"), show(hold["total_return"], "percent"), chance(row["hold_better"])]
        lines.append("| " + " | ".join(cells) + " |")
    notes = [
        f"- {row['market']}: train {row['train']}, test {row['test']}, {row['steps']:,} steps, {row['seeds']} seeds. {row['verdict']}" for row in rows
    ]
    return "\n".join(["# Walk-forward on real markets", "", "PPO, default settings and costs.", "", *lines, "", *notes, ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="trainings side by side; 0: as many as cores and memory allow")
    parser.add_argument("--out", type=Path, default=Path("runs/walk_forward"))
    parser.add_argument("--only", nargs="*", choices=list(MARKETS), default=list(MARKETS))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in given.only:
        rows.append(run_market(name, given.data, given.out, given.steps, given.seeds, given.jobs))
        atomic_write(given.out / "table.json", json.dumps(rows, indent=1))
        atomic_write(given.out / "table.md", table(rows))
        print(table(rows), flush=True)


if __name__ == "__main__":
    main()
