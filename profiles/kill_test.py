"""Kill a training two hundred times, by SIGKILL, half of the times while it writes a checkpoint; then compare it with one never killed.

    python profiles/kill_test.py [--kills 200] [--algorithm ppo|dqn] [--out profiles/runs/NAME/kill_test.json]

After every kill the latest checkpoint has to load, whole, and may not lie before the last one. The run that is left in peace at
last has to end with the same numbers, bit for bit, as the run without a break. Needs no GPU.
"""

import argparse
import json
import platform
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import child


def killed(algorithm: str, kills: int, folder: Path) -> dict:
    """What happened, as numbers; AssertionError where something was lost."""
    changes = {"algorithm": algorithm, "train.steps": (6 * kills + 50) * child.EPOCH}
    straight, broken = folder / f"{algorithm}-straight", folder / f"{algorithm}-broken"
    began, moments, cut_off, epochs, alive = time.monotonic(), random.Random(0), 0, 0, 0
    assert child.finish(child.start(straight, changes), 600) == 0
    for number in range(kills):
        process = child.start(broken, changes, resume=number > 0)
        cut_off += child.kill(process, broken, saving=number % 2 == 1, random=moments)
        alive += process.exitcode == -9
        now = child.saved_epochs(broken)
        assert now >= epochs, f"kill {number}: the checkpoint went back from epoch {epochs} to {now}"
        epochs = now
    assert child.finish(child.start(broken, changes, resume=True), 600) == 0
    assert child.same_training(straight, broken), "the resumed run is not that without a break"
    return {
        "algorithm": algorithm, "kills": kills, "of_them_while_training": alive, "of_them_within_a_save": cut_off,
        "epochs": changes["train.steps"] // child.EPOCH, "lost": 0, "equal_to_the_run_without_a_break": True,
        "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip


def main() -> None:
    """Run it and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--algorithm", choices=["ppo", "dqn"], action="append")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = [killed(name, given.kills, Path(folder)) for name in given.algorithm or ["ppo", "dqn"]]
    text = json.dumps({"machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}", "results": results}, indent=2)
    print(text)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
