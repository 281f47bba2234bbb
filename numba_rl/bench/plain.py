"""What a practitioner writes in torch alone: the baselines of the benchmarks. Nothing here waits for the host, so it can be captured.

The game is simpler than numba_rl's: market orders that fill at the close, proportional costs, log returns, episodes that never end. Networks,
batch sizes and passes are those of numba_rl's settings.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from numba_rl.config import DqnConfig, PpoConfig
from numba_rl.data.market import Market
from numba_rl.rules.actions import ACTIONS, EXPOSURES

COST = 5e-4  # of a change of exposure by 1
ORDERS_OF_AN_EXPOSURE = ACTIONS // EXPOSURES


def sequential(*sizes: int) -> nn.Sequential:
    """Linear layers with ReLU between."""
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def adam(parameters, lr: float, device: torch.device) -> torch.optim.Adam:
    """The fused Adam step, on a GPU one that can be captured."""
    return torch.optim.Adam(parameters, lr=lr, eps=1e-5, fused=True, capturable=device.type == "cuda")


class Played(NamedTuple):
    """A rollout: states float32 [L + 1, N, F + 3], actions int64, extra (of the chooser) and rewards float32 [L, N]."""

    states: torch.Tensor
    actions: torch.Tensor
    extra: torch.Tensor
    rewards: torch.Tensor


class Game:
    """N accounts that trade for L steps from random bars on."""

    def __init__(self, market: Market, episodes: int, steps: int, device: torch.device) -> None:
        self.features, self.close = (torch.from_numpy(part).to(device) for part in (market.features, market.prices[:, 3].copy()))
        self.episodes, self.steps, self.device = episodes, steps, device
        self.last = len(market) - steps - 1
        self.targets = torch.linspace(-1.0, 1.0, EXPOSURES, device=device)

    @torch.no_grad()
    def play(self, choose: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]) -> Played:
        """choose: states [N, F + 3] -> (actions int64 [N], something float32 [N] to be kept)."""
        n = self.episodes
        first = torch.randint(0, self.last, (n,), device=self.device)
        equity, held, spread = (
            torch.ones(n, device=self.device),
            torch.zeros(n, device=self.device),
            torch.full((n, 1), 1e-4, device=self.device),
        )
        states, actions, extra, rewards = [], [], [], []
        for t in range(self.steps + 1):
            bar = first + t
            states.append(torch.cat([self.features[bar], equity[:, None], held[:, None], spread], 1))
            if t == self.steps:
                break
            action, kept = choose(states[-1])
            target = self.targets[action // ORDERS_OF_AN_EXPOSURE]
            change = target * (self.close[bar + 1] / self.close[bar] - 1).float() - (target - held).abs() * COST
            equity, held = equity * (1 + change), target
            actions.append(action)
            extra.append(kept)
            rewards.append(1000 * torch.log1p(change))
        return Played(*(torch.stack(part) for part in (states, actions, extra, rewards)))


def gae(rewards, values, ends, final_values, gamma, gae_lambda, advantages, returns) -> None:
    """Advantages and returns [L, N], step by step backwards; the arrays of kernels.gae."""
    going = (ends == 0).to(values.dtype)
    following = values[1:] * going + torch.where(ends > 0, final_values.gather(0, (ends.long() - 1).clamp_min(0)), 0.0)
    delta = rewards + gamma * following - values[:-1]
    running = torch.zeros_like(rewards[0])
    for t in range(len(rewards) - 1, -1, -1):
        running = delta[t] + gamma * gae_lambda * going[t] * running
        advantages[t] = running
    torch.add(advantages, values[:-1], out=returns)


class PlainPpo:
    """PPO on `Game`."""

    def __init__(self, market: Market, config: PpoConfig, episodes: int, steps: int, device: torch.device) -> None:
        self.config, self.game, self.device = config, Game(market, episodes, steps, device), device
        width = market.features.shape[1] + 3
        self.actor = sequential(width, *config.actor, ACTIONS).to(device)
        self.critic = sequential(width, *config.critic, 1).to(device)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimizer = adam(self.parameters, config.lr, device)
        self.ends = torch.zeros(steps, episodes, dtype=torch.int16, device=device)
        self.final_values = torch.zeros(1, episodes, device=device)

    def _draw(self, states):
        log_pi = torch.log_softmax(self.actor(states), -1)
        action = (log_pi - torch.empty_like(log_pi).exponential_().log()).argmax(1)  # Gumbel's trick: no wait for the host
        return action, log_pi.gather(1, action[:, None])[:, 0]

    def play(self) -> Played:
        """The rollout alone."""
        return self.game.play(self._draw)

    @torch.no_grad()
    def collect(self) -> tuple[torch.Tensor, ...]:
        """Rollout, critic and advantages: states, actions, log-probabilities, advantages, returns of all samples."""
        played = self.play()
        values = self.critic(played.states)[..., 0]
        advantages, returns = torch.empty_like(played.rewards), torch.empty_like(played.rewards)
        gae(played.rewards, values, self.ends, self.final_values, self.config.gamma, self.config.gae_lambda, advantages, returns)
        return played.states[:-1].flatten(0, 1), *(part.flatten() for part in (played.actions, played.extra, advantages, returns))

    def update(self, states, actions, old, advantages, returns) -> None:
        """All passes over the samples."""
        config = self.config
        for _ in range(config.epochs):
            for part in torch.randperm(len(states), device=self.device).chunk(config.minibatches):
                a = advantages[part]
                a = (a - a.mean()) / (a.std() + 1e-8)
                log_pi = torch.log_softmax(self.actor(states[part]), -1)
                ratio = (log_pi.gather(1, actions[part][:, None])[:, 0] - old[part]).exp()
                policy = -torch.minimum(ratio * a, ratio.clamp(1 - config.clip, 1 + config.clip) * a).mean()
                entropy = -(log_pi.exp() * log_pi).sum(-1).mean()
                value = (self.critic(states[part])[:, 0] - returns[part]).square().mean()
                self.optimizer.zero_grad(set_to_none=True)
                (policy + config.value_coef * value - config.entropy_coef * entropy).backward()
                nn.utils.clip_grad_norm_(self.parameters, config.max_grad_norm, foreach=True)
                self.optimizer.step()

    def iteration(self) -> None:
        """Collection and update."""
        self.update(*self.collect())


class PlainReplay:
    """Proportional replay by cumsum and searchsorted over all priorities: O(slots) a draw."""

    def __init__(
        self, arrays: dict[str, torch.Tensor], priorities: torch.Tensor, *, alpha: float, eps: float, largest: float, beta: float
    ) -> None:
        """arrays: tensors [slots, ...] by name, priorities float32 [slots]."""
        self.arrays, self.priorities = arrays, priorities.clone()
        self.alpha, self.eps, self.largest, self.beta = alpha, eps, largest, beta

    def sample(self, size: int) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
        """A batch by name, importance weights and slots."""
        slots, device = len(self.priorities), self.priorities.device
        edges = self.priorities.cumsum(0, dtype=torch.float64)
        strata = (torch.arange(size, device=device) + torch.rand(size, device=device, dtype=torch.float64)) / size
        drawn = torch.searchsorted(edges, strata * edges[-1], right=True).clamp_(max=slots - 1)
        weights = (slots * self.priorities[drawn] / edges[-1].float()) ** -self.beta
        return {name: array[drawn] for name, array in self.arrays.items()}, weights / weights.max(), drawn

    def update(self, slots: torch.Tensor, errors: torch.Tensor) -> None:
        """New priorities."""
        new = (errors.abs() ** self.alpha + self.eps).clamp_(self.eps, self.largest)
        self.priorities.scatter_reduce_(0, slots, new, "amax", include_self=False)


class Dueling(nn.Module):
    """The default Q-network: hidden layers, then a value's and the advantages' stream."""

    def __init__(self, width: int, config: DqnConfig) -> None:
        super().__init__()
        self.body = nn.Sequential(sequential(width, *config.hidden), nn.ReLU())
        self.value = sequential(config.hidden[-1], config.head, 1)
        self.advantage = sequential(config.hidden[-1], config.head, ACTIONS)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        h = self.body(states)
        advantage = self.advantage(h)
        return self.value(h) + advantage - advantage.mean(1, keepdim=True)


class PlainDqn:
    """Double DQN with prioritized replay by autograd."""

    def __init__(self, replay: PlainReplay, config: DqnConfig, width: int, device: torch.device) -> None:
        self.config, self.replay, self.device = config, replay, device
        self.online, self.target = Dueling(width, config).to(device), Dueling(width, config).to(device)
        self.target.requires_grad_(False)
        self.parameters = list(self.online.parameters())
        self.optimizer = adam(self.parameters, config.lr, device)

    def update(self) -> None:
        """Sample, targets, loss, backward, Adam, priorities, Polyak averaging."""
        batch, weights, slots = self.replay.sample(self.config.batch)
        with torch.no_grad():
            best = self.online(batch["next_states"]).argmax(1, keepdim=True)
            targets = batch["rewards"] + batch["discounts"] * self.target(batch["next_states"]).gather(1, best).squeeze(1)
        q = self.online(batch["states"]).gather(1, batch["actions"].long()[:, None]).squeeze(1)
        loss = (weights * functional.huber_loss(q, targets, reduction="none")).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm, foreach=True)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target.parameters()), self.parameters, self.config.target_rate)
            self.replay.update(slots, q - targets)

    def choose(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Epsilon-greedy with epsilon = 0.1, and the value of what was chosen."""
        q = self.online(states)
        random = torch.randint(0, ACTIONS, (len(q),), device=self.device)
        action = torch.where(torch.rand(len(q), device=self.device) < 0.1, random, q.argmax(1))
        return action, q.gather(1, action[:, None])[:, 0]
