"""Does an agent learn what there is to learn, and nothing where there is nothing? Net out-of-sample profit beside an oracle that knows the hidden state.

    python profiles/learning.py --out profiles/runs/cpu-2026-11-29                       # the default settings of the CPU path
    python profiles/learning.py --device cuda --seeds 5 --seconds 2 --out profiles/runs/h200-2026-11-29
    python profiles/learning.py --markets mean_reverting --set train.precision=bf16
    python profiles/learning.py --algorithm dqn --variants all --markets mean_reverting --out profiles/runs/cpu-2026-11-29
    python profiles/learning.py --algorithm dqn --ablation --markets mean_reverting

A variant is a value of dqn.variant; --ablation adds the default agent with one of its parts changed (ABLATION).

Every seed draws a market of its own and trains on its first part; the checkpoint that validation chose is judged on the test
range, which the training has not seen. Profits are logarithms of final over initial equity, after all costs and the exit.
The oracle plays the same actions under the same fills and costs. CPU seconds are those of the whole process during training,
which a busy machine does not lengthen. Writes OUT/learning.json and OUT/learning.md (of DQN: learning_dqn).
"""

import argparse
import datetime
import json
import math
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from numba_rl import settings
from numba_rl.config import Config
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.evaluate.oracle import net_log_profit, oracle_for
from numba_rl.evaluate.session import CHECKPOINTS, judge_policy
from numba_rl.evaluate.validation import validator
from numba_rl.rundir import RunDir
from numba_rl.trainer import session
from numba_rl.trainer.checkpoint import load_policy

MARKET_SEED = 1000  # of seed 0's market by default; markets and agents share no random numbers
VARIANTS = ("dueling", "branching", "noisy", "iqn", "exposure")
ABLATION = {
    "uniform replay": {"replay.mode": "uniform"},
    "no double": {"dqn.double": False},
    "10 steps": {"dqn.n_step": 10},
    "no weight decay": {"dqn.weight_decay": 0.0},
    "constant rate": {"dqn.lr_schedule": "constant"},
    "squared loss": {"dqn.loss": "squared"},
    "fast average": {"dqn.target_rate": 0.005},
}  # fmt: skip


def one(kind, seed, bars, agent, changes, market_seed):
    """Train and judge one agent; a row of the table."""
    made = generate(kind, bars, market_seed + seed)
    config = settings.replace(Config(), {"train.seed": seed, "train.tensorboard": False, **changes})
    market = load_market(config, made.bars)
    with tempfile.TemporaryDirectory() as folder, RunDir.create(str(Path(folder) / "run"), config) as run:
        begun = time.process_time()
        result = session.train(config, run, market, validate=validator(market, config))
        spent = time.process_time() - begun
        device = run.meta()["device"]
        name = next(kind for kind in CHECKPOINTS if (run.checkpoints / f"{kind}.safetensors").exists())
        evaluation = judge_policy(load_policy(run.checkpoints / f"{name}.safetensors"), market, config, checkpoint=name)
    played, interval = evaluation.agent, evaluation.statistics.interval
    earned = net_log_profit(played)
    best = net_log_profit(oracle_for(made, config).play(market, made, market.test, config))
    return {
        "market": kind,
        "kind": agent,
        "seed": seed,
        "steps": result.steps,
        "seconds": result.seconds,
        "cpu_seconds": spent,
        "device": device,
        "checkpoint": name,
        "agent": earned,
        "oracle": best,
        "share": earned / best if best > 0 else None,
        "trades": len(played.trades.net),
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
        "| market | agent | seed | steps | training s (CPU s) | earned | oracle | share | buy and hold | Sharpe a year (95%) | verdict |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        share = "-" if row["share"] is None else f"{row['share']:.0%}"
        lines.append(
            f"| {row['market']} | {row['kind']} | {row['seed']} | {row['steps']:,} | {row['seconds']:.0f} ({row['cpu_seconds']:.0f}) "
            f"| {number(row['agent'])} | {number(row['oracle'])} | {share} "
            f"| {number(row['hold'])} | {number(row['sharpe'], 1)} ({number(row['low'], 1)} to {number(row['high'], 1)}) | {row['verdict']} |"
        )
    return "\n".join(lines) + "\n"


def agents(arguments):
    """What is trained: name -> settings that make it."""
    if arguments.algorithm == "ppo":
        return {"ppo": {}}
    variants = VARIANTS if arguments.variants == "all" else [name for name in arguments.variants.split(",") if name]
    found = {name: {"dqn.variant": name} for name in variants}
    chosen = ABLATION if arguments.ablation == "all" else {name: ABLATION[name] for name in arguments.ablation.split(",") if name}
    return {name: {"algorithm": "dqn", **changes} for name, changes in (found | chosen).items()}


def write(folder, name, rows):
    """Keep what there is so far: a run that is broken off has not been for nothing."""
    meta = {
        "command": " ".join(sys.argv), "date": datetime.date.today().isoformat(), "torch": torch.__version__, "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)), "threads": torch.get_num_threads(), "load": os.getloadavg()[0],
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps({"meta": meta, "rows": rows}, indent=1))
    said = ", ".join(f"{key} {value}" for key, value in meta.items())
    (folder / f"{name}.md").write_text(f"# Learning on synthetic markets\n\n{said}\n\n{table(rows)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markets", default="mean_reverting,random_walk", help="of mean_reverting, momentum, random_walk")
    parser.add_argument("--algorithm", choices=["ppo", "dqn"], default="ppo")
    parser.add_argument("--variants", default="dueling", help=f"of dqn: all, or some of {', '.join(VARIANTS)}")
    parser.add_argument("--ablation", nargs="?", const="all", default="", help=f"of dqn: the default agent with {'; '.join(ABLATION)}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--market-seed", type=int, default=MARKET_SEED, help="of the first seed's market")
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
        for name, made_by in agents(arguments).items():
            for seed in range(arguments.seeds):
                rows.append(one(kind, seed, arguments.bars, name, changes | made_by, arguments.market_seed))
                print(table(rows[-1:]).splitlines()[-1], flush=True)
                if arguments.out is not None:
                    write(arguments.out, "learning_dqn" if arguments.algorithm == "dqn" else "learning", rows)
    print(table(rows))
    if arguments.device == "cuda" and any(row["device"] != "cuda" for row in rows):
        sys.exit("some of these trainings fell back to the CPU path: the warnings above say why")


if __name__ == "__main__":
    main()
