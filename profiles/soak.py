"""Train for a long time, in two halves with a resume between, and look whether memory or speed drifts.

    python profiles/soak.py --minutes 30 --device cpu --algorithm ppo --out profiles/runs/NAME/soak-ppo
    python profiles/soak.py --updates 45000 --algorithm dqn    # until so many updates were made, however long it takes
    python profiles/soak.py --minutes 10 --folder DIR          # the first half; the same again is the second, maybe on another machine

Each half is a process of the command line, `rltrain train` and then `rltrain resume`; SIGTERM ends it, which saves. Every second the
process's resident memory is read, and its GPU memory from nvidia-smi where there is a GPU; the throughput comes from the run's own
metrics.csv. A signal to this script ends the run; what was seen until then is still written. Writes OUT.json (all figures, and the growth of memory a minute by least squares over the later three quarters of each
half) and OUT.html (the same as a picture). Exits with 1 if a half failed, or if the run that was resumed did not go on.
"""

import argparse
import contextlib
import csv
import itertools
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from numba_rl.data.synthetic import generate
from numba_rl.data.write import write_bars
from numba_rl.evaluate.charts import Line, line_chart
from numba_rl.evaluate.svg import number_axis

BARS, POINTS = 20_000, 400  # of the market; of a curve in the picture
FOREVER = 10**12  # steps
SETTLED = 0.25  # of a half, left out of the growth: start-up and the first epochs
ENDED_BY_SIGTERM = 143
BROKEN_OFF = -1  # by a signal to this script
PATIENCE = 300  # seconds for the end of a half, on a machine that is busy with other things


def resident_mb(pid: int) -> float:
    """Resident memory of a process; nan once it has ended."""
    try:
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return int(fields["VmRSS"].split()[0]) / 1024
    except (OSError, KeyError):
        return math.nan


def gpu_mb(pid: int) -> float:
    """GPU memory of a process, or of the whole card where processes cannot be told apart (containers); nan without a GPU."""
    if shutil.which("nvidia-smi") is None:
        return math.nan
    for query in ("--query-compute-apps=pid,used_memory", "--query-gpu=index,memory.used"):
        said = subprocess.run(["nvidia-smi", query, "--format=csv,noheader,nounits"], capture_output=True, text=True, check=False).stdout
        rows = [[cell.strip() for cell in line.split(",")] for line in said.splitlines() if line.strip()]
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        found = [float(used) for key, used in rows if key == str(pid) or ("index" in query and (seen == [""] or key in seen))]
        if found:
            return sum(found)
    return math.nan


def epochs(run: Path) -> list[dict[str, float]]:
    """seconds, steps, steps_per_second and updates so far of each epoch of a run, and the half it belongs to."""
    path, updates, rows = run / "metrics.csv", 0.0, []
    if not path.exists():
        return rows
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if not row["charts/SPS"]:  # a line that is being written
                continue
            updates += float(row["losses/updates"] or 0)
            seconds, steps, half = float(row["seconds"]), int(row["step"]), int(row["segment"])
            rows.append({"half": half, "seconds": seconds, "steps": steps, "steps_per_second": float(row["charts/SPS"]), "updates": updates})
    return rows


def lines(run: Path) -> int:
    """Of metrics.csv so far, its header included."""
    path = run / "metrics.csv"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def half(command: list[str], run: Path, enough, number: int, began: float) -> tuple[list[dict], int]:
    """Run `command` until enough(seconds since its first epoch): (samples of memory, exit code)."""
    print("rltrain", *command, flush=True)
    samples, before, first = [], lines(run), None
    with (run.parent / f"half-{number}.txt").open("w") as output:
        process = subprocess.Popen([sys.executable, "-m", "rltrain.main", *command], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None and (first is None or not enough(time.monotonic() - first)):
                time.sleep(1)
                if first is None and lines(run) > before + 1:
                    first = time.monotonic()
                now = {"half": number, "seconds": time.monotonic() - began, "resident_mb": resident_mb(process.pid), "gpu_mb": gpu_mb(process.pid)}
                samples.append({name: value for name, value in now.items() if not math.isnan(value)})
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            return samples, process.wait(PATIENCE)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)  # it saves what it has
            process.wait(PATIENCE)
            return samples, BROKEN_OFF
        finally:
            process.kill()
            process.wait()


def growth(samples: list[dict], name: str) -> float | None:
    """Slope of a figure in units a minute, by least squares over the later part of a half."""
    points = [(sample["seconds"] / 60, sample[name]) for sample in samples if name in sample]
    points = points[int(SETTLED * len(points)) :]
    return None if len(points) < 3 else float(np.polyfit(*np.array(points).T, 1)[0])


def averaged(x, y) -> tuple[np.ndarray, np.ndarray]:
    """At most POINTS points, each the mean of its neighbours."""
    parts = min(POINTS, len(x))
    return tuple(np.array([part.mean() for part in np.array_split(np.asarray(column, float), parts)]) for column in (x, y))


def picture(found: dict) -> str:
    """A page with memory and throughput over time."""

    def chart(title, rows, name, style):
        x, y = averaged([row["seconds"] / 60 for row in rows if name in row], [row[name] for row in rows if name in row])
        return line_chart(f"{title} over minutes", number_axis(x, "count"), [Line(title, y, style)], "count", zero=True, height=230)

    charts = [chart("Resident memory (MB)", found["memory"], "resident_mb", "agent")]
    if any("gpu_mb" in row for row in found["memory"]):
        charts.append(chart("GPU memory (MB)", found["memory"], "gpu_mb", "gross"))
    charts.append(chart("Steps a second", found["throughput"], "steps_per_second", "hold"))
    style = (ROOT / "numba_rl" / "evaluate" / "report.css").read_text()
    title = f"{found['algorithm']} on {found['device']}: {found['minutes']:.1f} minutes in two halves"
    return f"<!doctype html><meta charset='utf-8'><title>{title}</title><style>{style}</style><h1>{title}</h1>{''.join(charts)}"


def summed_up(samples: list[dict], rows: list[dict], exit_code: int) -> dict:
    """The figures of a half."""
    return {
        "exit_code": exit_code, "epochs": len(rows), "mb_a_minute": growth(samples, "resident_mb"), "gpu_mb_a_minute": growth(samples, "gpu_mb"),
        "peak_resident_mb": max((sample.get("resident_mb", 0) for sample in samples), default=None),
        "median_steps_per_second": float(np.median([row["steps_per_second"] for row in rows])) if rows else None,
    }  # fmt: skip


def soak(algorithm: str, device: str, minutes: float, updates: int | None, sets: list[str], folder: Path, *, parted: bool) -> dict | None:
    """Both halves; the figures. parted: one half a call, and None after the first, which is kept in the folder."""
    data, run, kept = folder / "bars.parquet", folder / "run", folder / "first.json"
    before = json.loads(kept.read_text()) if kept.exists() else None
    if before is None:
        write_bars(data, generate("mean_reverting", BARS, 1).bars)
    began = time.monotonic() - (before["seconds"] if before else 0.0)

    def enough(share):  # of the updates at the end of a half
        if updates is None:
            return lambda seconds: seconds >= 60 * minutes / 2
        return lambda seconds: epochs(run)[-1]["updates"] >= updates * share

    options = ["--device", device, "--steps", str(FOREVER)]
    settings = [word for pair in ["train.tensorboard=false", *sets] for word in ("--set", pair)]
    if before is None:
        first, code = half(["train", algorithm, "--data", str(data), "--out", str(run), *options, *settings], run, enough(0.5), 0, began)
        if parted:
            kept.write_text(json.dumps({"samples": first, "code": code, "seconds": time.monotonic() - began}))
            return None
    else:
        first, code = before["samples"], before["code"]
    second, last_code = ([], BROKEN_OFF) if code == BROKEN_OFF and not parted else half(["resume", str(run), *options], run, enough(1.0), 1, began)
    rows = epochs(run)
    halves = [[row for row in rows if row["half"] == number] for number in (0, 1)]
    kept = [row for row in halves[0] if halves[1] and row["steps"] < halves[1][0]["steps"]]  # what a killed half did after its last save is done again
    ends = [kept[-2:], halves[1][:2]]
    goes_on = all(len(end) == 2 for end in ends) and len({b["steps"] - a["steps"] for a, b in itertools.pairwise(ends[0] + ends[1])}) == 1
    x, y = averaged([row["seconds"] for row in rows], [row["steps_per_second"] for row in rows]) if rows else ((), ())
    return {
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}", "algorithm": algorithm, "device": device,
        "settings": sets, "minutes": (time.monotonic() - began) / 60, "steps": rows[-1]["steps"] if rows else 0,
        "updates": rows[-1]["updates"] if rows else 0, "resumed_where_it_stopped": goes_on,
        "halves": [summed_up(*parts) for parts in zip((first, second), halves, (code, last_code), strict=True)], "memory": first + second,
        "throughput": [{"seconds": float(a), "steps_per_second": float(b)} for a, b in zip(x, y, strict=True)],
    }  # fmt: skip


def main() -> int:
    """Run it, keep the result, say what it was."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30, help="of both halves together, start-up apart")
    parser.add_argument("--updates", type=int, help="end each half after half of so many updates instead")
    parser.add_argument("--device", choices=["auto", "cuda", "cpu"], default="auto")
    parser.add_argument("--algorithm", choices=["ppo", "dqn"], default="ppo")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="one setting; repeatable")
    parser.add_argument("--folder", type=Path, help="keep the run here and end after a half; where there is a first one, go on with the second")
    parser.add_argument("--out", type=Path, help="OUT.json and OUT.html")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        found = soak(given.algorithm, given.device, given.minutes, given.updates, given.set, folder, parted=given.folder is not None)
        if found is None:
            print(f"the first half is over; the same command goes on from {folder}")
            return 0
        sound = all(part["exit_code"] == ENDED_BY_SIGTERM for part in found["halves"])
        if not sound:
            sys.stderr.write("".join(path.read_text() for path in sorted(folder.glob("half-*.txt"))))
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
        if found["throughput"] and found["memory"]:
            given.out.with_suffix(".html").write_text(picture(found))
    print(json.dumps({name: value for name, value in found.items() if name not in ("memory", "throughput")}, indent=2))
    return 0 if sound and found["resumed_where_it_stopped"] else 1


if __name__ == "__main__":
    sys.exit(main())
