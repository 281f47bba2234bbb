"""Returns and lengths of finished episodes, across launches, on the device and without a host read.

An episode may span several launches, or a launch several episodes; what is open at a launch's end is carried.
"""

import torch

from numba_rl.collect.batched import Rollout


class Episodes:
    """carried float32 [2, N]: return and length so far of each slot's open episode."""

    def __init__(self, slots: int, device: torch.device):
        self.carried = torch.zeros(2, slots, device=device)

    @torch.no_grad()
    def add(self, rollout: Rollout, rewards: torch.Tensor) -> torch.Tensor:
        """Sums over the episodes that the rollout finished, float32 [4]: return, length, number, ruins. rewards [L, N]."""
        ended = rollout.ends != 0
        after_last = ended.flip(0).cumsum(0).flip(0) == 0  # rows of the episode that stays open
        steps = torch.stack([rewards, torch.ones_like(rewards)])
        open_part = (steps * after_last).sum(1)
        total = self.carried + steps.sum(1)
        any_end = ended.any(0)
        finished = torch.where(any_end, total - open_part, torch.zeros_like(total))
        self.carried.copy_(torch.where(any_end, open_part, total))
        counts = torch.stack([ended.sum(), rollout.terminated.sum()]).float()
        return torch.cat([finished.sum(1), counts])
