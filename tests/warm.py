"""Compiles the CPU path into the on-disk cache, in parts that workers share: else each of them would compile all of it, at the same time."""

import numpy as np

WHOLE_SUITE = 1000  # tests from which on it pays


def windows() -> None:
    """What plays policies and given actions over windows."""
    import torch

    from numba_rl.evaluate.backtest import play_actions, play_policy
    from numba_rl.rules.actions import ACTIONS

    market, config = _market()
    span = [market.validation]
    play_policy(market, span, lambda states: torch.zeros(len(states), ACTIONS), config)
    play_actions(market, span, np.zeros((market.validation.bars + 1, 1), np.int32), config, names=["flat"])


def training(algorithm: str) -> None:
    """What trains: the stepper, the updates, of DQN the replay of main memory, the figures of an epoch."""
    from numba_rl import settings
    from numba_rl.collect.epoch import Epochs
    from numba_rl.trainer.building import build

    market, config = _market()
    small = {
        "episodes.count": 4, "episodes.launch": 16, "ppo.actor": (8,), "ppo.critic": (8,), "dqn.hidden": (8,), "dqn.head": 8, "dqn.batch": 16,
        "replay.capacity": 512, "train.device": "cpu",
    }  # fmt: skip
    trainer = build(settings.replace(config, small | {"algorithm": algorithm}), market)
    epochs = Epochs(trainer.collector, market.regime[:, 0])
    trainer.observe = epochs.end
    epochs.begin()
    for _ in range(2):
        trainer.epoch()


def _market():
    from numba_rl.config import Config
    from numba_rl.data.market import load_market
    from numba_rl.data.synthetic import generate

    config = Config()
    return load_market(config, generate("mean_reverting", 1200, 5).bars), config


PARTS = {"gw0": (windows,), "gw1": (lambda: training("ppo"), lambda: training("dqn"))}  # by the name of a worker
