"""The games that kernels are held to: bars, settings by the names of their sections' fields, and the Config made of them."""

import numpy as np
from rules.driver import random_bars

from numba_rl.config import Config, EpisodeConfig, MarketConfig, RewardConfig, TrainConfig

PRICES = random_bars(np.random.default_rng(4), 40, 0.01)
WILD = random_bars(np.random.default_rng(4), 40, 0.08)
EVERYTHING = {
    "reward": {"barrier": 0.5, "diversity": 1.0, "risk": 0.1, "shaping": "dsr"},
    "spread_bps": 5.0, "financing_rate": 0.3, "min_fee": 1.0, "tick": 0.01, "lot": 0.5,
}  # fmt: skip
RUIN = {"leverage": 30.0, "fill_at": "close"}
MANY_PRICES = random_bars(np.random.default_rng(5), 3000, 0.003)  # for a GPU
MANY_SETTINGS = {"default": {}, "everything": EVERYTHING, "ruin": {"leverage": 200.0, "fill_at": "close"}}


def config(length=6, seed=1, reward=None, **market):
    """Episodes of `length` steps; `market` and `reward`: fields of those sections."""
    return Config(
        market=MarketConfig(**market), reward=RewardConfig(**(reward or {})), episodes=EpisodeConfig(length=length), train=TrainConfig(seed=seed)
    )
