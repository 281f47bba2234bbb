"""How long a launch is where the settings do not say."""

import torch

from numba_rl import settings
from numba_rl.collect.batched import launch_steps
from numba_rl.config import Config


def test_q_learning_plays_short_launches_on_every_device():
    ppo, dqn = Config(), settings.replace(Config(), {"algorithm": "dqn"})
    steps = {(config.algorithm, device): launch_steps(config, torch.device(device)) for config in (ppo, dqn) for device in ("cpu", "cuda")}
    assert steps == {("ppo", "cpu"): 64, ("ppo", "cuda"): 500, ("dqn", "cpu"): 64, ("dqn", "cuda"): 64}
    assert launch_steps(settings.replace(dqn, {"episodes.launch": 7}), torch.device("cuda")) == 7
