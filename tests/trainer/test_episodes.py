"""Returns and lengths of finished episodes, against a plain loop, over several launches."""

from types import SimpleNamespace

import numpy as np
import torch

from numba_rl.trainer.episodes import Episodes


def test_sums_match_a_loop_over_launches():
    rng = np.random.default_rng(0)
    slots, episodes = 5, Episodes(5, torch.device("cpu"))
    returns, lengths = np.zeros(slots), np.zeros(slots)
    for steps in (7, 1, 12):
        rewards = rng.standard_normal((steps, slots)).astype(np.float32)
        ends = rng.choice([0, 0, 0, -1, 1], (steps, slots))
        wanted = np.zeros(4)
        for t in range(steps):
            returns += rewards[t]
            lengths += 1
            done = ends[t] != 0
            wanted += [returns[done].sum(), lengths[done].sum(), done.sum(), (ends[t] < 0).sum()]
            returns[done] = lengths[done] = 0
        rollout = SimpleNamespace(ends=torch.from_numpy(ends), terminated=torch.from_numpy(ends < 0))
        np.testing.assert_allclose(episodes.add(rollout, torch.from_numpy(rewards)).numpy(), wanted, rtol=1e-4, atol=1e-5)
