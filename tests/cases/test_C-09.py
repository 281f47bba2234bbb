"""C-09: nothing touches CUDA before it is needed, so that workers can be forked; several train at once, and one that dies takes nobody with it."""

import subprocess
import sys

import child
import pytest
from forks import user_environment

from numba_rl import rundir, settings
from numba_rl.config import Config
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.trainer.building import build

EVERYTHING = """
import pathlib, importlib, sys
import numba_rl, rltrain
from numba_rl import gpu
driver, asked = gpu.cuda.cudadrv.driver.driver, []
type(driver).ensure_initialized = lambda self: asked.append(1)  # is_initialized is set where there is no driver at all
for package in (numba_rl, rltrain):
    root = pathlib.Path(package.__file__ or list(package.__path__)[0])
    root = root.parent if root.is_file() else root
    for path in sorted(root.rglob("*.py")):
        name = ".".join((package.__name__, *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
        importlib.import_module(name)
import torch
assert not gpu.SIMULATED
print(torch.cuda.is_initialized(), driver.pid, asked, len([n for n in sys.modules if n.startswith("numba_rl.")]) > 80)
"""


def test_importing_all_of_it_initialises_no_driver():
    done = subprocess.run([sys.executable, "-c", EVERYTHING], env=user_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "None", "[]", "True"]


@pytest.mark.parametrize("words", [["--help"], ["train", "ppo", "--help"], ["config", "list"]])
def test_commands_that_need_no_gpu_work_without_one(rltrain, words):
    assert rltrain(*words, env={"CUDA_VISIBLE_DEVICES": ""}).returncode == 0


def used_by_this_process(device):
    """Trains an epoch here, so that whatever a device needs is set up in the parent."""
    config = settings.replace(Config(), child.SMALL | {"train.device": device})
    trainer = build(config, load_market(config, generate("mean_reverting", 1200, 5).bars))
    trainer.epoch()
    assert trainer.device.type == device


def check_two_workers(folder, device):
    used_by_this_process(device)
    changes = {"train.device": device, "train.steps": 20 * child.EPOCH}
    runs = [folder / f"seed-{seed}" for seed in range(2)]
    workers = [child.start(run, changes | {"train.seed": seed}) for seed, run in enumerate(runs)]
    assert [child.finish(worker) for worker in workers] == [0, 0], [child.error_of(run) for run in runs]
    assert [child.status(run)[0] for run in runs] == ["finished"] * 2
    assert not child.same_training(*runs), "each trained with its own seed"
    assert [rundir.read_meta(run)["device"] for run in runs] == [device] * 2


def check_a_dead_worker(folder, device):
    changes = {"train.device": device, "train.steps": 200 * child.EPOCH}
    lost, other = folder / "lost", folder / "other"
    one, two = child.start(lost, changes), child.start(other, changes | {"train.seed": 1})
    while child.rows(lost) < 2 and one.is_alive():
        two.join(0.01)
    one.kill()
    assert child.finish(one) == -9 and child.finish(two) == 0, child.error_of(other)
    assert child.status(other)[0] == "finished" and child.rows(other) == 200
    assert child.saved_epochs(lost) >= 1, "what the dead one had saved is whole"


def test_two_workers_beside_a_parent_that_trained(tmp_path):
    check_two_workers(tmp_path, "cpu")


def test_a_worker_that_dies_takes_nobody_with_it(tmp_path):
    check_a_dead_worker(tmp_path, "cpu")


@pytest.mark.gpu
def test_two_workers_beside_a_parent_that_used_the_gpu(tmp_path):
    check_two_workers(tmp_path, "cuda")


@pytest.mark.gpu
def test_a_worker_that_dies_takes_nobody_with_it_on_a_gpu(tmp_path):
    check_a_dead_worker(tmp_path, "cuda")
