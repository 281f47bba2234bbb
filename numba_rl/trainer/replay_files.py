"""The replay beside the latest checkpoint: RUN/checkpoints/replay-STEPS.safetensors, where it is not too large.

It is written before the checkpoint of the same number of steps, and older ones are removed after it, so that a kill at any
moment leaves a checkpoint with the replay that belongs to it.
"""

from pathlib import Path

from numba_rl.config import ReplayConfig
from numba_rl.errors import CheckpointError
from numba_rl.kernels.replay_layout import row_bytes
from numba_rl.replay import PrioritizedReplay
from numba_rl.replay.storage import load_replay, save_replay, stored_bytes

GB = 1e9


def describe(replay: PrioritizedReplay, config: ReplayConfig) -> str:
    """One line on its size, and whether a resume will have it."""
    size = replay.capacity * row_bytes(replay.state_width, config.mode) / GB
    where = "main memory" if replay.on_host else f"the memory of {replay.device}"
    saved = (
        "saved with every checkpoint"
        if size <= config.checkpoint_limit_gb
        else f"saved with checkpoints while it holds less than replay.checkpoint_limit_gb = {config.checkpoint_limit_gb:g} GB; "
        "above that a resumed run begins with an empty one, and differs from a run without a break"
    )
    return f"replay: {replay.capacity:,} transitions, {size:.3g} GB of {where}, {saved}"


def save(replay: PrioritizedReplay, config: ReplayConfig, folder: Path, steps: int) -> None:
    """Write the replay of a checkpoint at `steps`, unless it is empty or above replay.checkpoint_limit_gb."""
    if len(replay) and stored_bytes(replay) <= config.checkpoint_limit_gb * GB:
        save_replay(replay, _file(folder, steps))


def clear(folder: Path, steps: int) -> None:
    """Remove the replays of other checkpoints than the one at `steps`."""
    for path in folder.glob("replay-*.safetensors"):
        if path != _file(folder, steps):
            path.unlink(missing_ok=True)


def load(replay: PrioritizedReplay, folder: Path, steps: int) -> str | None:
    """Restore the replay of the checkpoint at `steps`; where that cannot be done it stays empty, and the answer says why."""
    path = _file(folder, steps)
    if steps and not path.exists():
        return "the replay was not saved with the checkpoint; training goes on with an empty one, and differs from a run without a break"
    try:
        if path.exists():
            load_replay(replay, path)
    except CheckpointError as error:
        return f"training goes on with an empty replay: {error}"
    return None


def _file(folder: Path, steps: int) -> Path:
    return folder / f"replay-{steps}.safetensors"
