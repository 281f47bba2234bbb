"""The backtest kernel on a GPU: many windows of one policy in one launch, greedy and drawn.

    python profiles/bench/backtest.py --json backtest.json
    python profiles/bench/backtest.py --dry                  # tiny, in Numba's simulator, to see that the script runs

Every launch is first held against float64 accounts and the float64 network; wrong outputs end the script with exit code 1.
Times are medians of CUDA events, warm, packing of the weights included: around replays of a captured graph, and around plain
launches from Python, as an evaluation makes them. 10,000 windows of 1,000 bars are to take 15 ms at most on an H200.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from numba_rl import gpu, settings
from numba_rl.bench import games
from numba_rl.bench.backtest import check_windows
from numba_rl.bench.device import measured_device
from numba_rl.bench.rows import GOAL_GPU, Row, machine
from numba_rl.bench.timing import Clock, event_seconds
from numba_rl.config import Config
from numba_rl.data.windows import Range
from numba_rl.errors import UserError
from numba_rl.evaluate.device import TENSOR_CORES, GpuWindows
from numba_rl.trainer.networks import build_actor

SIZES = ((128, 1000), (1000, 1000), (10_000, 1000), (40_000, 250))
GOALS = {(10_000, 1000): 15e-3}
DRY_SIZES = ((3, 4), (18, 6))


def host_seconds(clock, launch):
    """Of a launch that Python makes."""
    return clock.time_host(launch) if clock.device.type == "cpu" else sorted(event_seconds(launch) for _ in range(21))[10]


def measure(clock, sizes, network):
    """(row, seconds from Python) of each policy and size, checked."""
    market = games.market()
    for policy in ("greedy", "softmax"):
        config = settings.replace(Config(), {"evaluate.policy": policy, "ppo.actor": network})
        actor = build_actor(config, len(market.names), torch.Generator().manual_seed(0))
        games.give_opinions(actor)
        for count, bars in sizes:
            starts = np.linspace(1, len(market) - bars, count).astype(np.int64)
            ranges = [Range(int(start), int(start) + bars) for start in starts]
            windows = GpuWindows(market, ranges, actor, config, clock.device)
            checks = check_windows(market, ranges, windows, actor, config)
            name = f"backtest {policy} {count:,} x {bars:,}"
            yield (
                Row(name, clock.time(windows.launch), count * bars, "steps", None, GOALS.get((count, bars)), checks),
                host_seconds(clock, windows.launch),
            )
            del windows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--seconds", type=float, default=3.0, help="of measuring, each size")
    parser.add_argument("--dry", action="store_true", help="tiny sizes in the simulator")
    given = parser.parse_args()
    if given.dry and not gpu.SIMULATED:  # it is chosen before Numba is imported
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    if given.dry:
        sys.setswitchinterval(1e-5)  # the simulator's threads wait for each other by polling
        clock, sizes, network = Clock(torch.device("cpu"), 0.0), DRY_SIZES, (16, 8)
    else:
        clock, sizes, network = Clock(measured_device("cuda"), given.seconds), SIZES, (128, 64)
        if torch.cuda.get_device_capability() < TENSOR_CORES:
            raise UserError("this GPU lacks the tensor cores that the kernel needs (compute capability 8.0)")
    command = "python profiles/bench/backtest.py" + (" --dry" if given.dry else f" --seconds {given.seconds:g}")
    head = {"bench": "backtest", "command": command, "simulated": gpu.SIMULATED, "machine": machine(clock.device), "goals_of": GOAL_GPU}
    rows = []
    for row, from_python in measure(clock, sizes, network):
        rows.append(asdict(row) | {"rate": row.rate, "missed": row.missed, "seconds_from_python": from_python})
        checks = ", ".join(f"{name} {value:.3g}" for name, value in row.checks.items())
        goal = "" if row.goal is None else f", goal {1e3 * row.goal:g} ms {'missed' if row.missed > 0 else 'met'}"
        print(
            f"{row.work}: {1e3 * row.seconds:.3f} ms ({1e3 * from_python:.3f} from Python), {row.rate / 1e6:,.1f} M steps/s{goal}; {checks}",
            flush=True,
        )
        if given.json:
            given.json.write_text(json.dumps(head | {"rows": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except UserError as problem:
        sys.exit(f"error: {problem}")
