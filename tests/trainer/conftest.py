"""A small market and small networks: an epoch takes milliseconds."""

import pytest

from numba_rl import settings
from numba_rl.collect.batched import BatchedCollector
from numba_rl.config import Config
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.rundir import RunDir
from numba_rl.trainer.ppo import Ppo

SMALL = {
    "episodes.count": 4, "episodes.launch": 16, "ppo.actor": (16, 8), "ppo.critic": (16, 16), "ppo.minibatches": 3,
    "train.tensorboard": False, "train.device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="session")
def bars():
    return generate("mean_reverting", 1200, 5).bars


@pytest.fixture(scope="session")
def market(bars):
    return load_market(Config(), bars)


@pytest.fixture(scope="session")
def small():
    """Settings of a small training, with changes: `small({"ppo.clip": 0.1})`."""

    def make(changes=None):
        return settings.replace(Config(), SMALL | (changes or {}))

    return make


@pytest.fixture(scope="session")
def trainer(market, small):
    """A Ppo on the small market, with changes of its settings."""

    def make(changes=None):
        config = small(changes)
        return Ppo(config, BatchedCollector(market, config))

    return make


@pytest.fixture
def new_run(tmp_path):
    """Makes run directories under the test's own folder."""
    runs = []

    def make(config, name="run"):
        runs.append(RunDir.create(tmp_path / name, config))
        return runs[-1]

    yield make
    for run in runs:
        run.close()
