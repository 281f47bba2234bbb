"""Targets and losses of Q-learning, finite wherever their inputs are.

Shapes (B samples, A choices of all heads, H heads, K and J quantile levels): q float32 [B, A]; chosen int64 [B, H]: place of
each head's choice in its row of q; rewards, discounts, weights float32 [B]; terminated bool [B]. The discount is gamma^k of the
steps really taken. A truncated transition is one like any other: its next state has a worth.
"""

from collections.abc import Sequence

import torch

from numba_rl.rules.actions import EXPOSURES, ORDERS, URGENCIES

HUBER = 1.0  # |error| at which the loss turns linear


def places(actions: torch.Tensor, heads: Sequence[int]) -> torch.Tensor:
    """int64 [B, H]: where each head's part of actions 0..44 lies in a row of q."""
    actions = actions.long()
    if len(heads) == 3:
        parts = [actions // (ORDERS * URGENCIES), EXPOSURES + actions // URGENCIES % ORDERS, EXPOSURES + ORDERS + actions % URGENCIES]
        return torch.stack(parts, 1)
    return (actions // (ORDERS * URGENCIES) if heads[0] == EXPOSURES else actions)[:, None]


def best_places(q: torch.Tensor, heads: Sequence[int]) -> torch.Tensor:
    """int64 [B, H]: where each head's largest value lies in a row of q."""
    found, first = [], 0
    for size in heads:
        found.append(q[:, first : first + size].argmax(1) + first)
        first += size
    return torch.stack(found, 1)


def bellman(rewards, discounts, terminated, next_values) -> torch.Tensor:
    """reward + discount x next value, the reward alone after a ruin. next_values [B] or [B, K]."""
    shape = (-1,) + (1,) * (next_values.dim() - 1)
    following = torch.where(terminated.view(shape), torch.zeros_like(next_values), discounts.view(shape) * next_values)
    return rewards.view(shape) + following


def q_targets(rewards, discounts, terminated, online_next, target_next, heads) -> torch.Tensor:
    """Targets [B]. online_next picks, target_next values (double DQN, van Hasselt et al. 2016); online_next None: target_next picks too.

    Several heads have one common target, made of the mean over the heads of their values (Tavakoli et al. 2018, equation 6).
    """
    best = best_places(target_next if online_next is None else online_next, heads)
    return bellman(rewards, discounts, terminated, target_next.gather(1, best).mean(1))


def element_loss(errors: torch.Tensor, kind: str) -> torch.Tensor:
    """Loss of each td error: half its square, or Huber's at 1."""
    if kind == "squared":
        return 0.5 * errors.square()
    size = errors.abs()
    return torch.where(size <= HUBER, 0.5 * errors.square(), HUBER * (size - 0.5 * HUBER))


def q_loss(q, chosen, targets, weights, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(weighted mean loss, td errors [B]). Of several heads the loss is the mean, the td error the mean of the sizes."""
    errors = q.gather(1, chosen) - targets[:, None]
    loss = (weights * element_loss(errors, kind).mean(1)).mean()
    return loss, errors.detach().squeeze(1) if errors.shape[1] == 1 else errors.detach().abs().mean(1)


def quantile_loss(predicted, levels, targets, weights, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(weighted mean loss, td errors [B]) of quantile regression (Dabney et al. 2018, equation 3).

    predicted, levels [B, K]: values of the action taken at their levels; targets [B, J]. Summed over K, averaged over J.
    """
    errors = targets[:, None, :] - predicted[:, :, None]
    tilt = (levels[:, :, None] - (errors.detach() < 0).float()).abs()
    loss = (tilt * element_loss(errors, kind)).mean(2).sum(1)
    return (weights * loss).mean(), errors.detach().abs().mean((1, 2))
