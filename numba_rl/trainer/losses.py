"""The losses of proximal policy optimisation (Schulman et al. 2017), finite wherever their inputs are.

Logits float32 [S, A]; actions int64 [S]; everything else float32 [S] or a scalar tensor. Means are over the S samples.
"""

from typing import NamedTuple

import torch
from torch.nn import functional

LOG_RATIO_LIMIT = 20.0  # e^20 is far outside any clip range and its products stay finite


class PolicyLoss(NamedTuple):
    """Scalars: the clipped surrogate, and what is watched of it (no gradient)."""

    loss: torch.Tensor
    approx_kl: torch.Tensor  # mean of (ratio - 1) - log ratio (Schulman 2020, estimator k3)
    clip_fraction: torch.Tensor  # share of samples whose ratio left the clip range
    overflows: torch.Tensor  # number of samples whose log ratio met LOG_RATIO_LIMIT


def log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """Log-softmax; an action with logit -inf gets -inf, a row without a finite logit NaN, which the guard skips."""
    return functional.log_softmax(logits, dim=-1)


def entropy(log_probs: torch.Tensor) -> torch.Tensor:
    """Entropy in nats of each row of log-probabilities, [S]; 0 log 0 is 0, in the gradient too."""
    probabilities = log_probs.exp()
    return -(probabilities * log_probs.masked_fill(probabilities == 0, 0.0)).sum(-1)


def normalized(advantages: torch.Tensor) -> torch.Tensor:
    """(A - mean) / deviation over the samples of a minibatch; a single sample, or equal ones, give zeros.

    In float64, so that the rounding of the mean of equal advantages is not blown up; n in the deviation, not n - 1.
    """
    centred = advantages.double() - advantages.double().mean()
    return (centred / (centred.square().mean().sqrt() + 1e-8)).float()


def policy_loss(log_probs: torch.Tensor, old_log_probs: torch.Tensor, advantages: torch.Tensor, clip: torch.Tensor) -> PolicyLoss:
    """-mean(min(r A, clip(r, 1 - c, 1 + c) A)), r = exp(log_probs - old_log_probs), the log-ratio held within +-20."""
    raw = log_probs - old_log_probs
    log_ratio = raw.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
    loss = -torch.minimum(ratio * advantages, clipped * advantages).mean()
    with torch.no_grad():
        approx_kl = (ratio - 1.0 - log_ratio).mean()
        clip_fraction = ((ratio - 1.0).abs() > clip).float().mean()
        overflows = (raw.abs() > LOG_RATIO_LIMIT).float().sum()
    return PolicyLoss(loss, approx_kl, clip_fraction, overflows)


def value_loss(values: torch.Tensor, returns: torch.Tensor) -> torch.Tensor:
    """Mean squared error of the critic."""
    return functional.mse_loss(values, returns)


def explained_variance(values: torch.Tensor, returns: torch.Tensor) -> torch.Tensor:
    """1 - variance(returns - values) / variance(returns), a scalar; 0 where the returns do not vary."""
    spread = returns.var(correction=0)
    residual = (returns - values).var(correction=0)
    return torch.where(spread > 0, 1.0 - residual / spread.clamp_min(1e-12), torch.zeros_like(spread))
