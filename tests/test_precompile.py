"""Kernels compiled side by side before a first start: when, by how many processes, and that none of them is ever the training's problem."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from numba_rl import precompile, settings
from numba_rl.config import Config
from numba_rl.data.synthetic import generate
from numba_rl.data.write import write_bars
from numba_rl.precompile import Precompiler, marker, processes
from numba_rl.trainer import building

# A GPU that is not there; kernels that are "launched" with arrays that are not there either.
COMPILE = """
import sys
from pathlib import Path
from types import SimpleNamespace

import numba.cuda.codegen
import numba.cuda.dispatcher as dispatcher
import numpy as np
from numba import types

class Device:
    compute_capability = (9, 0)
    id = 0

class Context:
    device = Device

    def create_module_image(self, *image):
        return SimpleNamespace(get_function=lambda name: SimpleNamespace(module=SimpleNamespace(initialized=True)))

class Runtime:
    def get_version(self):
        return 13, 0

class Array:
    def __init__(self, element, dimensions=1):
        self._numba_type_ = types.Array(element, dimensions, "C")

dispatcher.get_current_device = Device
numba.cuda.codegen.devices.get_context = Context
numba.cuda.codegen.runtime.runtime = Runtime()

from numba_rl import gpu
from numba_rl.kernels import gae, polyak
from numba_rl.precompile import claims_in

folder = Path(sys.argv[1])
gpu.compile_only(claims_in(folder))
(folder / f"ready-{sys.argv[2]}").touch()
while len(list(folder.glob("ready-*"))) < int(sys.argv[3]):
    pass
table, floats, step = Array(types.float32, 2), Array(types.float32), np.float32(1)
kernels = gae.gae_kernel, polyak.polyak_kernel()
for _ in range(2):
    kernels[0][1, 32, 0](table, table, Array(types.int16, 2), table, step, step, table, table)
    kernels[1][1, 32, 0](floats, floats, step, floats, Array(types.uint32))
print(*(sum(kernel.stats.cache_misses.values()) for kernel in kernels), *(sum(kernel.stats.cache_hits.values()) for kernel in kernels))
print(int("numba.cuda.np.linalg" in sys.modules))
"""
# Versions of one function, which share an index on disk; each is a number here.
VERSIONS = """
import sys
from numba import njit
from numba_rl.kernel_cache import cached

@cached
@njit
def function(x):
    return x

first, last, reads = map(int, sys.argv[1:])
file = function._cache._cache_file
for version in range(first, last):
    if not reads:
        file.save(version, version)
    elif file.load(version) != version:
        print(version, file.load(version))
"""


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with a GPU's driver, four cores and memory, whose cache is empty; gives a way to say what the processes do."""
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)
    monkeypatch.setattr(precompile, "cache_directory", lambda: tmp_path / "cache")
    monkeypatch.setattr(precompile, "_has_driver", lambda: True)
    monkeypatch.setattr(precompile.os, "sched_getaffinity", lambda process: range(4))
    monkeypatch.setattr(precompile, "main_memory", lambda: (64e9, 64e9))

    def does(program):
        monkeypatch.setattr(precompile, "_PROGRAM", ("-c", program))

    does("")
    return does


def with_(changes):
    return settings.replace(Config(), changes)


@pytest.mark.parametrize(("cores", "memory", "changes", "count"), [
    (1, 64e9, {}, 0), (2, 64e9, {}, 0), (3, 64e9, {}, 2), (64, 64e9, {}, precompile.MOST), (64, 9e9, {}, 2), (64, 7e9, {}, 0),
    (64, 64e9, {"train.device": "cpu"}, 0), (64, 64e9, {"train.memory_limit_gb": 4.0}, 0), (64, 64e9, {"train.memory_limit_gb": 16.0}, 4),
])  # fmt: skip
def test_processes_by_cores_and_memory(machine, monkeypatch, cores, memory, changes, count):
    monkeypatch.setattr(precompile.os, "sched_getaffinity", lambda process: range(cores))
    monkeypatch.setattr(precompile, "main_memory", lambda: (memory, memory))
    assert processes(with_(changes)) == count


def test_none_without_a_driver_or_in_the_simulator(machine, monkeypatch):
    assert processes(Config()) == 3
    with monkeypatch.context() as patch:
        patch.setattr(precompile, "_has_driver", lambda: False)
        assert processes(Config()) == 0
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    assert processes(Config()) == 0


@pytest.mark.parametrize(("changes", "same"), [
    ({"ppo.lr": 3e-4}, True), ({"train.seed": 7}, True), ({"market.taker_bps": 3.0}, True), ({"dqn.hidden": (64, 64)}, True),
    ({"market.taker_bps": 0.0}, False), ({"reward.risk": 0.3}, False), ({"ppo.actor": (64, 64)}, False), ({"algorithm": "dqn"}, False),
    ({"market.sizing": "units"}, False), ({"episodes.count": 8192}, False),
])  # fmt: skip
def test_settings_that_pick_other_kernels_are_told_apart(machine, changes, same):
    assert (marker(with_(changes)) == marker(Config())) == same


def test_each_process_is_given_its_part_and_a_warm_start_has_none(machine, tmp_path):
    machine(
        f"import json, sys, pathlib; given = json.load(sys.stdin); "
        f"pathlib.Path({str(tmp_path)!r}, 'part-' + sys.argv[1]).write_text(json.dumps([sys.argv[2], given['algorithm']]))"
    )
    said, logged = [], []
    with Precompiler(with_({"algorithm": "dqn"}), said.append) as kernels:
        kernels.wait(logged.append)
    parts = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("part-*")}
    assert parts == {f"part-{k}": ["3", "dqn"] for k in range(3)}
    assert said == ["compiling kernels with 3 processes, once for this version and such settings"]
    assert len(logged) == 1 and logged[0].startswith("3 processes compiled kernels, for ") and "failed" not in logged[0]
    with Precompiler(with_({"algorithm": "dqn", "dqn.lr": 1e-3}), said.append) as kernels:
        kernels.wait(logged.append)
    assert len(said) == len(logged) == 1, "a warm start says nothing"
    with Precompiler(with_({"algorithm": "ppo"}), said.append):
        assert len(said) == 2


def test_processes_that_fail_cost_a_line(machine):
    machine("import sys; sys.exit('Traceback\\nRuntimeError: no GPU')")
    logged = []
    with Precompiler(Config()) as kernels:
        kernels.wait(logged.append)
    assert logged[0].endswith("; 3 of them failed, the first: RuntimeError: no GPU")
    with Precompiler(Config()) as kernels:
        kernels.wait(logged.append)
    assert len(logged) == 1, "it is not tried again: the training has compiled by itself"


def test_processes_that_hang_are_left(machine, monkeypatch):
    monkeypatch.setattr(precompile, "PATIENCE", 0.5)
    machine("import time; time.sleep(60)")
    logged, began = [], time.monotonic()
    with Precompiler(Config()) as kernels:
        running = [process for process, _ in kernels._processes]
        kernels.wait(logged.append)
    assert time.monotonic() - began < 10
    assert "3 of them failed, the first: took too long" in logged[0]
    assert [process.poll() for process in running] == [-signal.SIGKILL] * 3


def test_an_error_or_a_signal_ends_them(machine):
    machine("import time; time.sleep(60)")
    with pytest.raises(KeyboardInterrupt), Precompiler(Config()) as kernels:
        running, claims = [process for process, _ in kernels._processes], Path(kernels._claims.name)
        assert claims.is_dir() and all(process.poll() is None for process in running)
        raise KeyboardInterrupt
    assert [process.returncode for process in running] == [-signal.SIGKILL] * 3 and not claims.exists()
    assert not marker(Config()).exists(), "the next start compiles again"


def test_two_starts_at_once_compile_once(machine, monkeypatch):
    monkeypatch.setattr(precompile, "PATIENCE", 0.5)
    machine("import time; time.sleep(60)")
    said, logged = [], []
    with Precompiler(Config()):
        with Precompiler(with_({"algorithm": "dqn"}), said.append) as second:
            assert not second._processes and said == ["kernels are being compiled by another start"]
            second.wait(logged.append)  # in vain: the first does not end
        assert len(logged) == 1
        monkeypatch.setattr(precompile, "PATIENCE", 60.0)
        third = Precompiler(Config())
    with third:
        began = time.monotonic()
        third.wait(logged.append)
        assert time.monotonic() - began < 5 and len(logged) == 2


def test_a_cache_that_cannot_be_written_means_no_processes(machine, monkeypatch, tmp_path):
    (tmp_path / "cache").touch()
    logged = []
    with Precompiler(Config()) as kernels:
        kernels.wait(logged.append)
    assert logged == []


def test_a_killed_training_leaves_no_process(tmp_path):
    child = f"""
import os, pathlib, sys, time
from numba_rl import precompile
precompile._end_with(int(sys.argv[1]))
pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(os.getpid()))
time.sleep(60)
"""
    parent = f"import os, subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}, str(os.getpid())])"
    process = subprocess.Popen([sys.executable, "-c", parent])
    number = tmp_path / "pid"
    wait_until(lambda: number.exists() and number.read_text())
    process.kill()
    process.wait()
    wait_until(lambda: ended(int(number.read_text())))


def ended(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_process_without_a_gpu_compiles_nothing(monkeypatch):
    monkeypatch.setattr("numba_rl.evaluate.validation.validator", lambda market, config: pytest.fail("the CPU path is the training's"))
    with pytest.raises(RuntimeError, match="no GPU"):
        precompile.compile_part(with_({"train.device": "cpu"}), last=True)


def test_the_market_has_the_features_of_the_training():
    market = precompile.market_for(with_({"data.path": "nowhere.csv", "data.split": (0.001, 0.001, 0.998), "market.financing_rate": 0.05}))
    assert market.features.shape[1] == 51 and market.bars_per_year > 0
    assert market.validation.stop - market.validation.start > 100


# --------------------------------------------------------------------------------------------------- what is on disk


def start(program, cache, *arguments, simulated="0"):
    environment = os.environ | {"RLTRAIN_CACHE_DIR": str(cache), "NUMBA_ENABLE_CUDASIM": simulated}
    path = cache.parent / "program.py"
    if not path.exists():
        path.write_text(program)  # functions are kept by the file they come from
    words = [sys.executable, str(path), *map(str, arguments)]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def said(process):
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output.split()


def test_every_kernel_is_compiled_by_one_process_and_found_by_all(tmp_path):
    claims, cache = tmp_path / "claims", tmp_path / "cache"
    claims.mkdir()
    both = [start(COMPILE, cache, claims, number, 2) for number in range(2)]
    compiled = [[int(word) for word in said(process)] for process in both]
    assert [a + b for a, b in zip(*compiled, strict=True)][:4] == [1, 1, 0, 0], "each by one of them, and none twice"
    later = tmp_path / "later"
    later.mkdir()
    assert said(start(COMPILE, cache, later, 0, 1)) == ["0", "0", "1", "1", "0"], "without what compiles them"


def test_versions_that_are_saved_at_once_are_not_mixed_up(tmp_path):
    both = [start(VERSIONS, tmp_path / "cache", first, first + 300, 0, simulated="1") for first in (0, 300)]
    assert [said(process) for process in both] == [[], []]
    assert said(start(VERSIONS, tmp_path / "cache", 0, 600, 1, simulated="1")) == []


@pytest.mark.parametrize(("fused", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_the_replay_is_compiled_for_its_learners_batches(monkeypatch, fused, dtype):
    asked = []

    class Replay(building.DeviceReplay):
        def __init__(self):
            self.backend = self

        def prepare(self, *batch):
            asked.append((self.layout.capacity, *batch))

    monkeypatch.setattr(building, "play_tiny", lambda *arguments: None)
    monkeypatch.setattr(building.PrioritizedReplay, "from_config", lambda *arguments, **options: Replay())
    monkeypatch.setattr(building.dqn_fused, "fits", lambda config, device: fused)
    config = with_({"algorithm": "dqn", "dqn.batch": 128, "replay.capacity": 5000})
    building.compile_for(config, precompile.market_for(config), torch.device("cpu"))
    assert asked == [(5000, 128, getattr(torch, dtype))]


def test_the_scan_is_compiled_for_the_launches_of_the_training(monkeypatch):
    from numba_rl.collect import fused
    from numba_rl.kernels.gae_scan import shape_for
    from numba_rl.trainer import fused_ppo

    made = []
    monkeypatch.setattr(building, "why_not_fused", lambda *arguments: None)
    monkeypatch.setattr(fused, "plan_for", lambda *arguments: None)
    monkeypatch.setattr(fused, "FusedCollector", lambda *arguments, **options: None)
    monkeypatch.setattr(fused_ppo, "FusedPpo", lambda *arguments, **options: made.append(options["scan"]))
    config, cpu = with_({"episodes.count": 65_536, "episodes.launch": 128}), torch.device("cpu")
    market = precompile.market_for(config)
    building._trainer(building._tiny(config, cpu), market, cpu, None, kernels_of=config)
    building._trainer(config, market, cpu, None)
    assert made == [shape_for(128, 65_536)] * 2 and made[0] != shape_for(128, 2)


@pytest.mark.gpu
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 3, reason="needs three cores")
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_cold_start_finds_its_kernels_compiled(rltrain, tmp_path, algorithm):
    write_bars(tmp_path / "bars.parquet", generate("mean_reverting", 6000, 1).bars)
    done = rltrain(
        "train", algorithm, "--data", "bars.parquet", "--out", "run", "--device", "cuda", "--steps", "130000",
        cwd=tmp_path, env={"RLTRAIN_CACHE_DIR": str(tmp_path / "cache")}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "processes compiled kernels" in log and "failed" not in log
    (compiled,) = (tmp_path / "cache").rglob("precompiled-*")
    kept = list((tmp_path / "cache").rglob("*.nbc"))
    late = [path.name for path in kept if path.stat().st_mtime_ns > compiled.stat().st_mtime_ns]
    assert len(kept) > 10 and len(late) <= 1, late
