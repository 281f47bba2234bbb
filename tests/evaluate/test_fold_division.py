"""How many trainings go side by side: by cores, by free memory, by what was asked for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from forks import user_environment
from evaluate.small_folds import settings_with

from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.evaluate.fold_division import Division, divide, training_bytes
from numba_rl.trainer import memory

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def market():
    return load_market(settings_with(), generate("random_walk", 1000, 0).bars)


@pytest.fixture
def machine(monkeypatch):
    """A machine of so many cores and bytes of free memory."""

    def of(cores, free):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
        monkeypatch.setattr(memory, "main_memory", lambda: (free, free))

    return of


@pytest.mark.parametrize(
    ("jobs", "threads", "trainings", "expected"),
    [
        (1, None, 20, Division(1, None)),
        (4, None, 20, Division(4, 4)),
        (3, None, 20, Division(3, 5)),
        (4, 2, 20, Division(4, 2)),
        (99, None, 20, Division(20, 1)),
        (0, None, 20, Division(16, 1)),
        (0, 3, 20, Division(5, 3)),
        (0, None, 5, Division(5, 3)),
        (0, None, 1, Division(1, None)),
        (0, None, 0, Division(1, None)),
    ],
)
def test_the_cores_are_divided(machine, market, jobs, threads, trainings, expected):
    machine(16, 10**12)
    assert divide(settings_with(evaluate__jobs=jobs, train__threads=threads), market, trainings) == expected


def test_memory_limits_what_is_chosen_and_warns_of_what_is_asked_for(machine, market):
    config = settings_with(evaluate__jobs=0, train__threads=None)
    need = training_bytes(config, market, CPU)
    machine(16, int(3.5 * need))
    assert divide(config, market, 20) == Division(3, 5)
    asked = divide(settings_with(evaluate__jobs=4, train__threads=None), market, 20)
    assert asked[:2] == (4, 4) and "fewer --jobs are safer" in asked.warning
    machine(16, need // 2)
    assert divide(config, market, 20) == Division(1, None)


def test_what_a_training_needs_grows_with_its_data(market):
    base = settings_with()
    assert training_bytes(settings_with(episodes__count=4000), market, CPU) > training_bytes(base, market, CPU)
    small, large = (settings_with(algorithm="dqn", replay__capacity=n) for n in (1000, 1_000_000))
    states = 2 * (market.features.shape[1] + 3) * 4  # a state and the next one
    assert training_bytes(large, market, CPU) - training_bytes(small, market, CPU) >= 999_000 * states


WORK = {
    "algorithm": "dqn",
    "episodes.count": 128,
    "episodes.launch": 64,
    "dqn.updates": 1,
    "replay.capacity": 100_000,
    "train.steps": 106_496,
}


def test_a_training_takes_no_more_than_was_expected():
    """The peak of a real process. What is expected holds for one that compiles everything, which takes 200 MB and more."""
    command = [sys.executable, str(Path(__file__).parent / "fold_memory.py"), json.dumps(WORK)]
    done = subprocess.run(command, capture_output=True, text=True, env=user_environment(), timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["peak"] <= found["expected"] <= 1.6 * found["peak"]


def test_free_memory_is_the_groups_where_it_allows_less(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  8000 kB\nMemFree: 10 kB\nMemAvailable:    4000 kB\n")
    assert memory.main_memory(tmp_path)[0] == 4000 * 1024
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("1000000\n")
    for limit, expected in (("max", 4000 * 1024), ("3000000", 2_000_000), ("500000", 0)):
        (group / "memory.max").write_text(f"{limit}\n")
        assert memory.main_memory(tmp_path)[0] == expected
