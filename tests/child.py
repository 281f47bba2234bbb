"""Trainings in real processes that can be killed.

`profiles/kill_test.py` uses it as well.
"""

import contextlib
import json
import resource
import signal
import sys
import time
import traceback
from pathlib import Path

import forks

EPOCH = 64  # steps
SMALL = {
    "episodes.count": 4, "episodes.launch": 16, "episodes.length": 40, "ppo.actor": (16, 8), "ppo.critic": (16, 16), "ppo.minibatches": 3,
    "dqn.hidden": (16, 16), "dqn.head": 8, "dqn.batch": 32, "dqn.updates": 2, "dqn.n_step": 3, "replay.capacity": 4096,
    "train.tensorboard": False, "train.device": "cpu", "train.threads": 1, "train.checkpoint_every": 1,
}  # fmt: skip


def start(run: Path, changes: dict, *, resume=False, limit=None):
    """A process that trains into `run` on a small market. limit: bytes that a file may have, once two epochs were played."""
    return forks.start(_train, str(run), changes, resume, limit, daemon=True)


def finish(process, seconds=120) -> int:
    """Its exit code (negative: the signal that ended it)."""
    process.join(seconds)
    assert process.exitcode is not None, "still running"
    return process.exitcode


def error_of(run: Path) -> str:
    """What ended the training in `run` with exit code 2 or 1."""
    return Path(f"{run}.error").read_text()


def rows(run: Path) -> int:
    """Rows of metrics.csv so far."""
    try:
        return max((run / "metrics.csv").read_bytes().count(b"\n") - 1, 0)
    except FileNotFoundError:
        return 0


def kill(process, run: Path, *, saving: bool, random) -> bool:
    """End it by SIGKILL after two epochs of its own: within a save, or at a time drawn from `random`. Whether a save was cut off."""
    before, folder = rows(run), run / "checkpoints"
    while rows(run) < before + 2 and process.is_alive():
        time.sleep(0.001)
    if saving:
        deadline = time.monotonic() + 5
        while not _being_written(folder) and process.is_alive() and time.monotonic() < deadline:
            pass
    else:
        time.sleep(random.random() * 0.03)
    process.kill()
    process.join()
    return bool(_being_written(folder))


def _being_written(folder: Path) -> list[Path]:
    return list(folder.glob(".*.tmp"))


def _train(run, changes, resume, limit):
    from numba_rl import settings
    from numba_rl.config import Config
    from numba_rl.data.market import load_market
    from numba_rl.data.synthetic import generate
    from numba_rl.errors import UserError
    from numba_rl.rundir import RunDir
    from numba_rl.signals import StopRequest
    from numba_rl.trainer import session

    config = settings.replace(Config(), SMALL | changes)
    market = load_market(config, generate("mean_reverting", 1200, 5).bars)

    def progress(figures):
        if limit is not None and figures["step"] >= 2 * EPOCH:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    failed = Path(f"{run}.error")
    failed.write_text("")
    try:
        with contextlib.ExitStack() as stack:
            opened = stack.enter_context(RunDir.open(run) if resume else RunDir.create(run, config))
            stop = stack.enter_context(StopRequest())
            if resume:
                opened.begin()
            session.train(config, opened, market, stop=stop, progress=progress, resume=resume)
    except UserError as error:
        failed.write_text(str(error))
        sys.exit(2)
    except Exception:
        failed.write_text(traceback.format_exc())
        sys.exit(1)
    if stop.requested:
        sys.exit(128 + signal.Signals[stop.requested])


def saved_epochs(run: Path) -> int:
    """Epochs in the latest checkpoint, which is read whole."""
    from numba_rl.trainer import checkpoint

    return checkpoint.load(run / "checkpoints" / "latest.safetensors").metadata["epochs"]


def same_training(one: Path, other: Path) -> bool:
    """Whether two finished runs ended with the same numbers, bit for bit."""
    import torch

    from numba_rl.trainer import checkpoint

    first, second = (checkpoint.load(run / "checkpoints" / "final.safetensors").tensors for run in (one, other))
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def status(run: Path) -> tuple[str, str]:
    """Status and reason in meta.json."""
    meta = json.loads((run / "meta.json").read_text())
    return meta["status"], meta["reason"]
