"""What a run has come to, and the checkpoints that keep it: the time spent, the best validation, and everything of the trainer.

`latest` of a run with a replay has it in a file beside it (trainer.replay_files). A pair of a trainer and its `Epochs` is handed in
with every save and load, since a failing GPU has both replaced.
"""

import time

import numpy as np
import torch

from numba_rl.collect.epoch import Epochs
from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.errors import CheckpointError
from numba_rl.rundir import RunDir
from numba_rl.trainer import checkpoint, replay_files

SLOW_SAVE, SAVES_SHARE = 1.0, 0.1  # a save of more seconds than this waits until such saves take no more than this share of the time


class RunState:
    """Of one run: best, best_step: figure and step of the best validation (None: none yet); stale: validations since then."""

    def __init__(self, config: Config, run: RunDir, market: Market):
        self.config, self.run_dir, self.market = config, run, market
        self.best, self.best_step, self.stale = None, None, 0
        self._before, self._started = 0.0, time.monotonic()  # seconds of earlier sessions, and when this one began
        self._saving, self._saved = 0.0, 0.0  # seconds that the last save of all took, and when it ended

    @property
    def seconds(self) -> float:
        """Seconds of training in all."""
        return self._before + time.monotonic() - self._started

    def start_clock(self) -> None:
        """Count from now on: what was done so far was preparation."""
        self._started = time.monotonic()

    def copied(self, trainer, epochs: Epochs) -> tuple[dict, dict]:
        """Everything that a checkpoint holds, copied: (tensors, JSON)."""
        whole = trainer.state() | {f"epochs/{name}": value for name, value in epochs.state_dict().items()}
        tensors = {name: value.clone() if torch.is_tensor(value) else np.copy(value) for name, value in whole.items()}
        progress = {
            "steps": trainer.steps, "epochs": trainer.epochs, "seconds": self.seconds, "best": self.best, "best_step": self.best_step,
            "stale": self.stale, "device": trainer.device.type, "precision": trainer.precision, "threads": torch.get_num_threads(),
        }  # fmt: skip
        return tensors, checkpoint.describe(self.config, self.market, **progress)

    def save_is_due(self) -> bool:
        """A full replay can be gigabytes: writing it every few epochs would take longer than these."""
        return self._saving <= SLOW_SAVE or time.monotonic() - self._saved >= self._saving * (1 / SAVES_SHARE - 1)

    def save(self, name: str, trainer, epochs: Epochs, copied: tuple[dict, dict] | None = None) -> None:
        """Write the checkpoint `name`, of the state as it is or as it was `copied`. UserError: it cannot be written."""
        begun = time.monotonic()
        tensors, metadata = copied or self.copied(trainer, epochs)
        folder, replay = self.run_dir.checkpoints, trainer.replay
        with_replay = replay is not None and name == "latest"
        if with_replay:
            replay_files.save(replay, self.config.replay, folder, metadata["steps"])
        checkpoint.save(folder / f"{name}.safetensors", tensors, metadata)
        if with_replay:
            replay_files.clear(folder, metadata["steps"])
        if name == "latest":
            self._saved = time.monotonic()
            self._saving = self._saved - begun

    def load(self, trainer, epochs: Epochs) -> list[str]:
        """Put both where `latest` was; the answer says what will differ from a run without a break, a line each.

        Raises CheckpointError where it is not of this training, or lacks what is needed.
        """
        path = self.run_dir.checkpoints / "latest.safetensors"
        saved = checkpoint.load(path)
        checkpoint.refuse_changes(saved, self.config, self.market)
        try:
            trainer.load(saved.tensors)
            epochs.load_state_dict({name: saved.tensors[f"epochs/{name}"].numpy() for name in epochs.state_dict()})
            self._before, self._started = float(saved.metadata["seconds"]), time.monotonic()
            self.best, self.best_step, self.stale = (saved.metadata[name] for name in ("best", "best_step", "stale"))
        except (KeyError, RuntimeError, ValueError, TypeError) as error:
            raise CheckpointError(f"{path}: lacks what a resume needs ({' '.join(str(error).split())}); train anew") from None
        notices, now = [], torch.get_num_threads()
        if trainer.replay is not None:
            lacking = replay_files.load(trainer.replay, self.run_dir.checkpoints, saved.metadata["steps"])
            notices += [lacking] if lacking is not None else []
        threads = saved.metadata.get("threads")
        if trainer.device.type == "cpu" and threads != now:
            notices.append(f"resumed with {now} threads instead of {threads}: sums may round differently than in a run without a break")
        return notices
