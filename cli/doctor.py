"""`rltrain doctor`: what this machine has, and which path `rltrain train` would take on it and why.

The GPU is asked from a child process, so that no CUDA context is left and a driver that hangs or crashes takes nothing with it.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import rich_click as click

from numba_rl.rundir import versions

_PROBE = """
import json, sys
import torch
from numba_rl import gpu
print(json.dumps({"numba": gpu.available() and not gpu.SIMULATED, "torch": torch.cuda.is_available(), "build": torch.version.cuda}))
"""
_PROBE_SECONDS = 120


@click.command()
def doctor() -> None:
    """Say what this machine has, which path `rltrain train` would take on it, and why.

    Exits with 2 if something has to be mended; to have no GPU is no fault.

    Example: rltrain doctor
    """
    problems: list[str] = []
    found = versions()
    _line("python", f"{found['python']} ({sys.executable}), {platform.platform()}")
    if not (3, 11) <= sys.version_info[:2] <= (3, 12):
        problems.append(f"Python {found['python']} is not supported: use 3.11 or 3.12")
    _line("packages", ", ".join(f"{name} {version}" for name, version in found.items() if name != "python"))
    numpy = tuple(int(part) for part in found["numpy"].split(".")[:2])
    if numpy >= (2, 5):
        problems.append(f"NumPy {found['numpy']} is too new for numba-cuda: pip install 'numpy<2.5'")
    _line("cpu", _cpu())
    _line("memory", f"{_memory_gb('MemTotal'):.1f} GB, {_memory_gb('MemAvailable'):.1f} GB of it available")
    cards = _cards()
    _line("gpu", "; ".join(cards) or "none seen by nvidia-smi")
    simulated = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")
    _line("simulator", "on (NUMBA_ENABLE_CUDASIM is set): kernels run in Python, for tests" if simulated else "off")
    device, why = _path(_probe(), simulated, cards)
    _line("path", f"{device}: {why}")
    _line("cache", _cache(problems))
    for problem in problems:
        _line("problem", problem)
    if problems:
        raise click.exceptions.Exit(2)


def _line(name: str, text: str) -> None:
    click.echo(f"{name:<10} {text}")


def _path(probe: dict[str, Any], simulated: bool, cards: list[str]) -> tuple[str, str]:
    """Which of "cuda" and "cpu" a run with device = "auto" takes, and why."""
    if simulated:
        return "cpu", "the CUDA simulator is on; unset NUMBA_ENABLE_CUDASIM to use a GPU"
    if "error" in probe:
        return "cpu", f"the GPU could not be asked: {probe['error']}"
    if probe["torch"] and probe["numba"]:
        return "cuda", "torch and numba-cuda both see the GPU"
    if probe["build"] is None:
        return "cpu", "this torch is a build without CUDA" + ("; install the CUDA build to use the GPU" if cards else "")
    if not cards:
        return "cpu", "no NVIDIA GPU, or no driver"
    blind = "torch" if not probe["torch"] else "numba-cuda"
    return "cpu", f"{blind} does not see the GPU: its CUDA {probe['build']} may need a newer driver"


def _probe() -> dict[str, Any]:
    """What torch and numba-cuda say of the GPU, from a process of its own."""
    try:
        child = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {_PROBE_SECONDS} s"}
    if child.returncode != 0:
        return {"error": (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]}
    return json.loads(child.stdout.splitlines()[-1])


def _cards() -> list[str]:
    """One text per GPU, from nvidia-smi; empty without it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=name,memory.total,memory.free,compute_cap,driver_version", "--format=csv,noheader"]
    try:
        child = subprocess.run(query, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return []
    if child.returncode != 0:
        return []
    rows = [[field.strip() for field in line.split(",")] for line in child.stdout.splitlines() if line.strip()]
    return [f"{name}, {total} ({free} free), compute capability {cc}, driver {driver}" for name, total, free, cc, driver in rows]


def _cpu() -> str:
    model, flags = platform.processor() or platform.machine(), set()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            model = value.strip()
        elif name.strip() == "flags":
            flags = set(value.split())
            break
    known = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return f"{model}, {len(os.sched_getaffinity(0))} cores usable, {', '.join(known) or 'no vector extensions known here'}"


def _memory_gb(field: str) -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e9
    return float("nan")


def _cache(problems: list[str]) -> str:
    """The directory of compiled kernels, tried by writing into it."""
    from numba_rl.kernel_cache import cache_directory

    directory = cache_directory()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        problems.append(f"{directory} cannot be written ({error.strerror}): set RLTRAIN_CACHE_DIR, or every start compiles anew")
        return f"{directory}, not writable"
    return f"{directory}, writable"
