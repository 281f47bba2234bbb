"""The market and settings of the benchmarks, and the checks of what a policy was said to do."""

import numpy as np
import torch
from numba import njit

from numba_rl import settings
from numba_rl.bench.rows import require
from numba_rl.config import Config
from numba_rl.data.market import Market, load_market
from numba_rl.data.synthetic import generate
from numba_rl.rules.philox import ACTION, uniform

BARS = 40_000
SEED = 3
OPINION = 200.0  # the last layer's weights times this: a policy that prefers some actions, as a trained one does


def market() -> Market:
    """The synthetic market that everything is measured on."""
    return load_market(Config(), generate("mean_reverting", BARS, SEED).bars)


def config(episodes: int, steps: int, changes: dict | None = None) -> Config:
    """Default settings but for the size, and `changes`."""
    return settings.replace(Config(), {"episodes.count": episodes, "episodes.launch": steps} | (changes or {}))


@torch.no_grad()
def give_opinions(actor) -> None:
    """Spread the logits of a new actor."""
    getattr(actor, actor.layers[-1]).weight.mul_(OPINION)


@torch.no_grad()
def log_policy(actor, states: torch.Tensor) -> torch.Tensor:
    """Log-probabilities float64 [..., 45] of an actor of dense layers, computed in float64 from float32 states."""
    x = states.double()
    for name in actor.layers:
        layer = getattr(actor, name)
        x = x @ layer.weight.double().T + layer.bias.double()
        x = x if name == actor.layers[-1] else torch.nn.functional.leaky_relu(x, actor.leaky_slope)
    return torch.log_softmax(x, -1)


def check_draws(actor, states, actions, log_probs, seed: int, *, exact: bool) -> dict[str, float]:
    """Raises OutputError unless the actions of a first launch are the policy's draws with the seed's random numbers.

    states float32 [L, N, F + 3] of the slots 0 to N - 1, actions [L, N], log_probs [L, N]. exact: float32 arithmetic; else fp16.
    """
    wanted = log_policy(actor, states)
    chosen = actions.long()[..., None]
    taken = wanted.gather(-1, chosen)[..., 0]
    high = wanted.exp().cumsum(-1).gather(-1, chosen)[..., 0].cpu().numpy()
    u = _uniforms(seed, *actions.shape)
    outside = float(np.maximum(np.maximum(u - high, high - taken.exp().cpu().numpy() - u), 0.0).max())
    error = (taken - log_probs).abs()
    found = {"log_prob_error": error.max().item(), "log_prob_error_mean": error.mean().item(), "draw_outside_its_interval": outside}
    return require(found["log_prob_error"] < (1e-5 if exact else 2e-2) and outside < (1e-5 if exact else 5e-3), "the rollout", found)


@njit
def _uniforms(seed, steps, slots):
    found = np.zeros((steps, slots))
    for t in range(steps):
        for e in range(slots):
            found[t, e] = uniform(seed, ACTION, e, 0, t, 0)
    return found
