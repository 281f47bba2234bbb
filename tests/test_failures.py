"""What can go wrong goes wrong, in real processes: kills, a full disk, broken numbers. Nothing is lost, and each says so in a line.

Elsewhere: signals (cases/test_F-05.py), two runs on one directory (cases/test_F-06.py, test_rundir.py), damaged, foreign and
unsafe checkpoints (trainer/test_checkpoint.py), features that are not finite (data/test_features_own.py).
"""

import random

import child
import pytest

from numba_rl import rundir


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "kills"), [("ppo", 6), ("dqn", 4)])
def test_a_run_that_is_killed_again_and_again_equals_one_without_a_break(tmp_path, algorithm, kills):
    changes = {"algorithm": algorithm, "train.steps": 80 * child.EPOCH}
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    whole = child.start(straight, changes)
    moments, cut_off, epochs = random.Random(3), 0, [0]
    for number in range(kills):
        process = child.start(broken, changes, resume=number > 0)
        cut_off += child.kill(process, broken, saving=number % 2 == 1, random=moments)
        assert rundir.status(broken) == "killed"
        epochs.append(child.saved_epochs(broken))
    assert epochs == sorted(epochs) and epochs[-1] > 0
    assert cut_off > 0, "no kill came while a checkpoint was written"
    assert child.finish(child.start(broken, changes, resume=True)) == 0
    assert child.finish(whole) == 0
    assert child.same_training(straight, broken)
    assert not [path for path in broken.rglob(".*.tmp")], "what the kills left is removed"
