"""Seconds from the start of `rltrain train` to its first trained epoch, with nothing compiled and from the caches on disk.

    python profiles/startup.py [--json FILE] [--device cuda|cpu] [--algorithm ppo|dqn]

Cold: empty directories for this project's compiled kernels and for the driver's. Warm: the same directories again, median of three.
The goals, 20 s and 8 s, are those of a GPU: where one is missed there, the exit code is 1.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from numba_rl import rundir
from numba_rl.bench.rows import machine
from numba_rl.data.synthetic import generate
from numba_rl.data.write import write_bars

GOALS = {"cold": 20.0, "warm": 8.0}
PATIENCE = 300.0  # seconds until a start counts as failed


def first_epoch(folder: Path, number: int, algorithm: str, device: str) -> float:
    """Seconds until the first row of metrics.csv; the training is then stopped."""
    run = folder / f"run-{number}"
    environment = os.environ | {"RLTRAIN_CACHE_DIR": str(folder / "kernels"), "CUDA_CACHE_PATH": str(folder / "driver")}
    words = [
        sys.executable,
        "-m",
        "rltrain.main",
        "train",
        algorithm,
        "--data",
        str(folder / "bars.parquet"),
        "--out",
        str(run),
        "--device",
        device,
        "--steps",
        "1e12",
    ]
    begun = time.monotonic()
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        while rows(run) < 1:
            if process.poll() is not None:
                raise SystemExit(f"the training ended before its first epoch: {process.stderr.read().strip()}")
            if time.monotonic() - begun > PATIENCE:
                raise SystemExit(f"no epoch within {PATIENCE:.0f} s")
            time.sleep(0.01)
        seconds, used = time.monotonic() - begun, rundir.read_meta(run)["device"]
        if used != device:
            raise SystemExit(f"the training runs on {used}, not on {device}: see {run}/log.txt")
        return seconds
    finally:
        process.terminate()
        process.communicate()


def rows(run: Path) -> int:
    """Rows of metrics.csv so far."""
    try:
        return (run / "metrics.csv").read_bytes().count(b"\n") - 1
    except FileNotFoundError:
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", default="ppo", choices=["ppo", "dqn"])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_bars(folder / "bars.parquet", generate("mean_reverting", 40_000, 3).bars)
        times = []
        for number in range(4):
            times.append(first_epoch(folder, number, arguments.algorithm, arguments.device))
            print(f"start {number + 1}: {times[-1]:.1f} s", flush=True)
    found = {"cold": times[0], "warm": statistics.median(times[1:])}
    for kind, seconds in found.items():
        print(
            f"{arguments.algorithm}, {kind}: {seconds:.1f} s to the first epoch"
            + (f" (goal {GOALS[kind]:.0f} s)" if arguments.device == "cuda" else "")
        )
    if arguments.json:
        meta = machine(torch.device(arguments.device))
        arguments.json.write_text(
            json.dumps({"machine": meta, "algorithm": arguments.algorithm, "seconds": found, "starts": times, "goals": GOALS}, indent=1)
        )
    sys.exit(int(arguments.device == "cuda" and any(found[kind] > goal for kind, goal in GOALS.items())))


if __name__ == "__main__":
    main()
