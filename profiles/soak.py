"""A long training, watched from outside: memory must not grow, speed must not fall, and every figure must stay finite.

    python profiles/soak.py [--algorithm ppo|dqn] [--seconds 200] [--device cuda|cpu] [--json FILE]

Compares the second quarter of the time with the last one. Exit code 1 where something is wrong, with a line that says what.
"""

import argparse
import csv
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from numba_rl.bench.rows import machine
from numba_rl.data.synthetic import generate
from numba_rl.data.write import write_bars

GROWTH = 1.05, 32.0  # memory may grow by this factor and MB
SLOWER = 0.8  # of the speed of the second quarter that the last one must reach
PATIENCE = 120.0  # seconds for start and end
FINITE = ("policy_loss", "value_loss", "entropy", "td_loss", "q_mean", "grad_norm", "grad_norm_actor", "grad_norm_critic")


def resident_mb(pid: int) -> float:
    """Main memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return math.nan


def gpu_mb() -> float:
    """Memory in use on the first GPU; nan where nvidia-smi does not say."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return math.nan
    done = subprocess.run(
        [program, "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True, check=False
    )
    first = done.stdout.strip().splitlines()[:1]
    return float(first[0]) if done.returncode == 0 and first else math.nan


def watch(words: list[str], seconds: float, on_gpu: bool) -> tuple[int, list[dict], str]:
    """Exit code, samples of memory, and what the training wrote to stderr."""
    samples, begun = [], time.monotonic()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=errors)
        while process.poll() is None:
            if time.monotonic() - begun > seconds + PATIENCE:
                process.kill()
                break
            time.sleep(max(0.2, seconds / 200))
            try:
                samples.append(
                    {"second": time.monotonic() - begun, "rss_mb": resident_mb(process.pid), "gpu_mb": gpu_mb() if on_gpu else math.nan}
                )
            except (FileNotFoundError, ProcessLookupError):  # it has just ended
                break
        process.wait()
        errors.seek(0)
        return process.returncode, samples, errors.read().strip()


def quarters(values: list[float]) -> tuple[float, float]:
    """Medians of the second and of the last quarter."""
    quarter = max(1, len(values) // 4)
    return statistics.median(values[quarter : 2 * quarter] or values), statistics.median(values[-quarter:])


def faults(code: int, samples: list[dict], rows: list[dict]) -> list[str]:
    """What is wrong, a line each."""
    found = [f"exit code {code}"] if code else []
    if len(samples) < 8 or len(rows) < 8:
        return [*found, f"too little was seen: {len(samples)} samples of memory, {len(rows)} epochs"]
    for name in ("rss_mb", "gpu_mb"):
        values = [sample[name] for sample in samples[:-1] if math.isfinite(sample[name])]  # the last one may be of a process that ends
        if values:
            early, late = quarters(values)
            if late > GROWTH[0] * early + GROWTH[1]:
                found.append(f"{name} grew from {early:.0f} to {late:.0f}")
    early, late = quarters([float(row["charts/SPS"]) for row in rows])
    if late < SLOWER * early:
        found.append(f"speed fell from {early:,.0f} to {late:,.0f} steps/s")
    steps = [int(row["step"]) for row in rows]
    if steps != sorted(set(steps)):
        found.append("steps do not count up")
    for name in FINITE:
        values = [row[f"losses/{name}"] for row in rows[1:] if row.get(f"losses/{name}")]  # DQN's first epoch may have made no update
        if not all(math.isfinite(float(value)) for value in values):
            found.append(f"losses/{name} is not finite in some epochs")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", default="ppo", choices=["ppo", "dqn"])
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run, bars = Path(folder) / "run", Path(folder) / "bars.parquet"
        write_bars(bars, generate("mean_reverting", 40_000, 3).bars)
        words = [
            sys.executable,
            "-m",
            "rltrain.main",
            "train",
            arguments.algorithm,
            "--data",
            str(bars),
            "--out",
            str(run),
            "--device",
            arguments.device,
        ]
        words += ["--steps", "1e12", "--time-limit", str(arguments.seconds), "--set", "train.tensorboard=false"]
        code, samples, errors = watch(words, arguments.seconds, arguments.device == "cuda")
        metrics = run / "metrics.csv"
        rows = list(csv.DictReader(metrics.open())) if metrics.exists() else []
    wrong = faults(code, samples, rows) + ([f"stderr: {errors.splitlines()[-1]}"] if errors else [])
    summary = {"epochs": len(rows), "steps": int(rows[-1]["step"]) if rows else 0, "faults": wrong}
    print(
        f"{arguments.algorithm} for {arguments.seconds:.0f} s: {summary['epochs']:,} epochs, {summary['steps']:,} steps; "
        + ("; ".join(wrong) or "nothing wrong")
    )
    if arguments.json:
        thinned = samples[:: max(1, len(samples) // 50)]
        arguments.json.write_text(json.dumps({"machine": machine(torch.device(arguments.device)), **summary, "memory": thinned}, indent=1))
    sys.exit(int(bool(wrong)))


if __name__ == "__main__":
    main()
