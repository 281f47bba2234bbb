"""Does PPO learn what there is to learn, and nothing where there is nothing? Net out-of-sample profit beside an oracle that knows the hidden state.

    python profiles/learning.py --out profiles/runs/cpu-2026-11-29                       # the default settings of the CPU path
    python profiles/learning.py --device cuda --seeds 5 --seconds 2 --out profiles/runs/h200-2026-11-29
    python profiles/learning.py --markets mean_reverting --set train.precision=bf16

Every seed draws a market of its own and trains on its first part; the checkpoint that validation chose is judged on the test
range, which the training has not seen. Profits are logarithms of final over initial equity, after all costs and the exit.
The oracle plays the same actions under the same fills and costs. Writes OUT/learning.json and OUT/learning.md.
"""

import argparse
import datetime
import json
import math
import os
import platform
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from numba_rl import settings
from numba_rl.config import Config
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.evaluate.oracle import net_log_profit, oracle_for
from numba_rl.evaluate.session import CHECKPOINTS, judge_policy, validator
from numba_rl.rundir import RunDir
from numba_rl.trainer import session
from numba_rl.trainer.checkpoint import load_policy

MARKET_SEED = 1000  # of seed 0's market; markets and agents share no random numbers


def one(kind, seed, bars, changes):
    """Train and judge one agent; a row of the table."""
    made = generate(kind, bars, MARKET_SEED + seed)
    config = settings.replace(Config(), {"train.seed": seed, "train.tensorboard": False, **changes})
    market = load_market(config, made.bars)
    with tempfile.TemporaryDirectory() as folder, RunDir.create(str(Path(folder) / "run"), config) as run:
        result = session.train(config, run, market, validate=validator(market, config))
        device = run.meta()["device"]
        name = next(kind for kind in CHECKPOINTS if (run.checkpoints / f"{kind}.safetensors").exists())
        evaluation = judge_policy(load_policy(run.checkpoints / f"{name}.safetensors"), market, config, checkpoint=name)
    agent, interval = evaluation.agent, evaluation.statistics.interval
    earned = net_log_profit(agent)
    best = net_log_profit(oracle_for(made, config).play(market, made, market.test, config))
    return {
        "market": kind,
        "seed": seed,
        "steps": result.steps,
        "seconds": result.seconds,
        "device": device,
        "checkpoint": name,
        "agent": earned,
        "oracle": best,
        "share": earned / best if best > 0 else None,
        "trades": len(agent.trades.net),
        "sharpe": interval.estimate,
        "low": interval.low,
        "high": interval.high,
        "hold": net_log_profit(evaluation.hold),
        "verdict": evaluation.statistics.verdict,
    }


def number(value, digits=2):
    return "n/a" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def table(rows):
    """The rows as Markdown."""
    lines = [
        "| market | seed | steps | training s | agent | oracle | share | buy and hold | Sharpe a year (95%) | verdict |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        share = "-" if row["share"] is None else f"{row['share']:.0%}"
        lines.append(
            f"| {row['market']} | {row['seed']} | {row['steps']:,} | {row['seconds']:.0f} | {number(row['agent'])} | {number(row['oracle'])} | {share} "
            f"| {number(row['hold'])} | {number(row['sharpe'], 1)} ({number(row['low'], 1)} to {number(row['high'], 1)}) | {row['verdict']} |"
        )
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markets", default="mean_reverting,random_walk", help="of mean_reverting, momentum, random_walk")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--bars", type=int, default=40_000)
    parser.add_argument("--steps", type=int, default=None, help="of training; default: the setting's")
    parser.add_argument("--seconds", type=float, default=None, help="of training, at most")
    parser.add_argument("--device", default="cpu", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any other setting")
    parser.add_argument("--out", type=Path, default=None, help="folder of the table")
    arguments = parser.parse_args()
    changes = {"train.device": arguments.device}
    if arguments.steps is not None:
        changes["train.steps"] = arguments.steps
    if arguments.seconds is not None:
        changes |= {"train.time_limit": arguments.seconds, "train.steps": arguments.steps or 1_000_000_000}
    loaded = settings.load(sets=arguments.set).config
    changes |= {text.partition("=")[0]: settings.value_of(loaded, text.partition("=")[0]) for text in arguments.set}
    rows = []
    for kind in arguments.markets.split(","):
        for seed in range(arguments.seeds):
            rows.append(one(kind, seed, arguments.bars, changes))
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    print(table(rows))
    if arguments.out is not None:
        meta = {
            "command": " ".join(sys.argv), "date": datetime.date.today().isoformat(), "torch": torch.__version__, "python": platform.python_version(),
            "cores": len(os.sched_getaffinity(0)), "threads": torch.get_num_threads(), "load": os.getloadavg()[0],
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        }  # fmt: skip
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "learning.json").write_text(json.dumps({"meta": meta, "rows": rows}, indent=1))
        said = ", ".join(f"{key} {value}" for key, value in meta.items())
        (arguments.out / "learning.md").write_text(f"# Learning on synthetic markets\n\n{said}\n\n{table(rows)}")
    if arguments.device == "cuda" and any(row["device"] != "cuda" for row in rows):
        sys.exit("some of these trainings fell back to the CPU path: the warnings above say why")


if __name__ == "__main__":
    main()
