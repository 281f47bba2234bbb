"""`python fold_memory.py CHANGES`: trains one fold in a worker's process; prints its peak of resident memory and what was expected, bytes.

CHANGES: JSON of settings, as those of small_folds; "bars": length of the market.
"""

import json
import resource
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from evaluate.small_folds import settings_with

from numba_rl import settings
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.evaluate.fold_division import training_bytes
from numba_rl.evaluate.fold_jobs import jobs, task_of
from numba_rl.evaluate.fold_workers import Worker
from numba_rl.evaluate.folds import plan
from numba_rl.rundir import RunDir


def main(changes):
    bars = changes.pop("bars", 1900)
    lengths = {"evaluate.train": str(bars * 2 // 3), "evaluate.test": str(bars // 6)}
    config = settings.replace(settings_with(), lengths | changes)
    market = load_market(config, generate("mean_reverting", bars, 5).bars)
    with tempfile.TemporaryDirectory() as folder, RunDir.create(Path(folder) / "run", config) as run:
        run.folds.mkdir(exist_ok=True)
        task = task_of(jobs(plan(market, config), config)[0], run, config, market, 1)
        worker = Worker()
        worker.give(task)
        while (heard := worker.hear())[0] != "ended":
            pass
        worker.let_go()
    assert heard[1].kind == "finished", heard[1].words
    peak = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(json.dumps({"peak": peak, "expected": training_bytes(config, task.market, torch.device("cpu"))}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
