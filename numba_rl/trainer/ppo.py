"""Proximal policy optimisation: collect, estimate advantages, update.

Nothing in an epoch waits for a GPU: what changes between epochs lies in device scalars, statistics are summed on the device
and read once, by `statistics`. Every random choice is addressed by seed and counters, so a resumed run repeats exactly.
"""

import copy
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from numba_rl.collect.batched import BatchedCollector, Rollout
from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.gpu import stream, view
from numba_rl.kernels.gae import gae_cpu, launch_gae
from numba_rl.kernels.shuffle import launch_shuffle, shuffle_cpu
from numba_rl.trainer import losses
from numba_rl.trainer.checkpoint import Policy
from numba_rl.trainer.curiosity import Curiosity
from numba_rl.trainer.episodes import Episodes
from numba_rl.trainer.guard import Guard
from numba_rl.trainer.networks import build_actor, build_critic
from numba_rl.trainer.optimizer import FlatAdam, learning_rate
from numba_rl.trainer.precision import reduced, resolve

CRITIC_ROWS = 262_144  # states of one forward pass of the critic; bounds its memory to about 1 GB
KL_SLACK = 1.5  # a pass stops the update when its mean KL exceeds this times target_kl

SUMS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clipfrac", "actor_norm", "critic_norm", "samples", "steps", "overflows")


FIGURES = (
    "charts/learning_rate", "losses/policy_loss", "losses/value_loss", "losses/entropy", "losses/approx_kl", "losses/clipfrac",
    "losses/explained_variance", "losses/grad_norm_actor", "losses/grad_norm_critic", "losses/samples", "losses/updates",
    "losses/ratio_overflows", "losses/skipped", "losses/curiosity_loss", "rollout/reward_mean", "rollout/ep_rew_mean", "rollout/ep_len_mean",
    "rollout/episodes", "rollout/ruined", "rollout/equity_mean", "rollout/broken_slots", "rollout/curiosity_bonus",
)  # fmt: skip


class Batch(NamedTuple):
    """The samples of one rollout, in its order; float32 but for the actions."""

    states: torch.Tensor  # [S, F + 3]
    actions: torch.Tensor  # int64 [S]
    log_probs: torch.Tensor  # [S]
    advantages: torch.Tensor  # [S]
    returns: torch.Tensor  # [S]


class Ppo:
    """One actor, one critic, and what trains them on the rollouts of a collector."""

    name = "ppo"
    FIGURES = FIGURES  # what `statistics` gives, in the order of the log
    replay = None  # nothing is kept beside `state`

    def __init__(self, config: Config, collector: BatchedCollector, poll: Callable[[], None] = lambda: None):
        """poll is called between the steps of an epoch, on the host; it may raise, which leaves the epoch undone."""
        self.config = config
        self.collector = collector
        self.poll = poll
        self.device = collector.device
        self.precision = resolve(config.train.precision, self.device)
        features = collector.features.shape[1]
        generator = torch.Generator().manual_seed(config.train.seed)
        self.actor = build_actor(config, features, generator).to(self.device)
        self.critic = build_critic(config, features, generator).to(self.device)
        ppo = config.ppo
        self.optimizer = FlatAdam({"actor": self.actor, "critic": self.critic}, ppo.lr, ppo.max_grad_norm, ppo.weight_decay)
        self.curiosity = Curiosity(config, collector.features, generator) if config.reward.curiosity > 0 else None
        self.clip = torch.tensor(ppo.clip, device=self.device)
        self.entropy_coef = torch.tensor(ppo.entropy_coef, device=self.device)
        samples = collector.steps * collector.episodes
        self.minibatches = min(ppo.minibatches, samples)
        self.order = torch.zeros(samples, dtype=torch.int64, device=self.device)
        self.turn = torch.zeros(1, dtype=torch.int64, device=self.device)  # passes made: the number of the next permutation
        self.stopped = torch.zeros((), device=self.device)  # 1 once the KL divergence has ended this epoch's update
        self.sums = torch.zeros(len(SUMS), device=self.device)
        self.guard = Guard(config.guard, self.device)
        self.episodes = Episodes(collector.episodes, self.device)
        self.report: dict[str, torch.Tensor] = {}
        self.observe: Callable = lambda rollout: None  # called with each rollout, where a GPU captures it as well
        self.epochs = 0

    @property
    def steps(self) -> int:
        """Environment steps played."""
        return self.collector.played

    @property
    def steps_per_epoch(self) -> int:
        """Environment steps of one launch."""
        return len(self.order)

    def epoch(self) -> None:
        """One rollout and the update on it."""
        self.optimizer.lr.fill_(learning_rate(self.config.ppo, self.steps, self.config.train.steps))
        rollout = self.collector.collect(self._act)
        self.observe(rollout)
        rewards = self._rewards(rollout)
        batch, values = self._batch(rollout, rewards)
        self._update(batch)
        if self.curiosity is not None:
            self.report["losses/curiosity_loss"] = self.curiosity.train(rollout.bars, rollout.actions, self._parts())
        self.epochs += 1
        self.report |= {
            "losses/explained_variance": losses.explained_variance(values, batch.returns),
            "rollout/reward_mean": rewards.mean(),
            "rollout/equity_mean": rollout.states[-1, :, -3].mean(),
            "rollout/broken_slots": (rollout.status != 0).float().sum(),
            "rollout/finished": self.episodes.add(rollout, rewards),
        }

    def _act(self, states: torch.Tensor) -> torch.Tensor:
        self.poll()
        return self.actor(states)

    @torch.no_grad()
    def _rewards(self, rollout: Rollout) -> torch.Tensor:
        """float32 [L, N]: what the game paid, and the bonus for surprise."""
        if self.curiosity is None:
            return rollout.rewards
        bonus = self.curiosity.bonus(rollout.bars, rollout.actions)
        self.report["rollout/curiosity_bonus"] = bonus.mean()
        return rollout.rewards + self.config.reward.curiosity * bonus

    @torch.no_grad()
    def values(self, states: torch.Tensor) -> torch.Tensor:
        """The critic's value of each state, float32 of the leading shape of `states`."""
        rows = states.reshape(-1, states.shape[-1])
        with reduced(self.precision, self.device):
            values = torch.cat([self.critic(part) for part in rows.split(CRITIC_ROWS)])
        return values.view(states.shape[:-1])

    def _batch(self, rollout: Rollout, rewards: torch.Tensor) -> tuple[Batch, torch.Tensor]:
        """The samples with their advantages, and the values [S] that these were measured against."""
        values = self.values(rollout.states)
        finals = rollout.final_states
        if self.device.type == "cpu":  # here it is known, at no cost, how many rows are in use
            finals = finals[: max(int(rollout.finals.max()), 1)]
        final_values = self.values(finals)
        advantages, returns = torch.empty_like(rewards), torch.empty_like(rewards)
        arrays = (rewards, values, rollout.ends, final_values)
        gamma, gae_lambda = self.config.ppo.gamma, self.config.ppo.gae_lambda
        if self.device.type == "cpu":
            scalar = rewards.numpy().dtype.type
            gae_cpu(*(a.numpy() for a in arrays), scalar(gamma), scalar(gae_lambda), advantages.numpy(), returns.numpy())
        else:
            launch_gae(*map(view, arrays), gamma, gae_lambda, view(advantages), view(returns), stream=self._stream())
        batch = Batch(
            rollout.states[:-1].reshape(-1, rollout.states.shape[-1]),
            rollout.actions.reshape(-1).long(),
            rollout.log_probs.reshape(-1),
            advantages.reshape(-1),
            returns.reshape(-1),
        )
        return batch, values[:-1].reshape(-1)

    def _update(self, batch: Batch) -> None:
        """config.ppo.epochs passes over the samples, each in a new order, or fewer where the policy has moved too far."""
        self.sums.zero_()
        self.stopped.zero_()
        target = self.config.ppo.target_kl
        for _ in range(self.config.ppo.epochs):
            self._shuffle()
            divergence = [self._minibatch(Batch(*(column[part] for column in batch))) for part in self._parts()]
            if target is not None:
                self.stopped.copy_(torch.maximum(self.stopped, (torch.stack(divergence).mean() > KL_SLACK * target).float()))
                if self.device.type == "cpu" and self.stopped:
                    break

    def _shuffle(self) -> None:
        seed = self.config.train.seed
        if self.device.type == "cpu":
            shuffle_cpu(self.order.numpy(), seed, self.turn.numpy())
        else:
            launch_shuffle(view(self.order), seed, view(self.turn), stream=self._stream())
        self.turn += 1

    def _parts(self):
        """The order cut into minibatches whose sizes differ by one at most: every sample is used once a pass."""
        return self.order.tensor_split(self.minibatches)

    def _minibatch(self, batch: Batch) -> torch.Tensor:
        """One step on both networks; the approximate KL divergence before it, a scalar."""
        self.poll()
        ppo = self.config.ppo
        self.optimizer.zero_grad()
        all_log_probs = losses.log_probabilities(self.actor(batch.states))
        log_probs = all_log_probs.gather(1, batch.actions[:, None]).squeeze(1)
        advantages = losses.normalized(batch.advantages) if ppo.normalize_advantage else batch.advantages
        policy = losses.policy_loss(log_probs, batch.log_probs, advantages, self.clip)
        entropy = losses.entropy(all_log_probs).mean()
        with reduced(self.precision, self.device):
            values = self.critic(batch.states).squeeze(1)
        value = losses.value_loss(values, batch.returns)
        loss = policy.loss - self.entropy_coef * entropy + ppo.value_coef * value
        loss.backward()
        skip = torch.maximum(self.stopped, self.guard.halted[0])
        norms = self.optimizer.step(skip, loss)
        self.guard.check(loss, norms, values, self.stopped)
        with torch.no_grad():
            count = torch.full_like(value, len(batch.actions))
            row = [policy.loss, value, entropy, policy.approx_kl, policy.clip_fraction, *norms, count, torch.ones_like(value), policy.overflows]
            row = torch.stack(row).detach()
            live = (self.optimizer.left_out == 0) & row.isfinite().all()
            self.sums += torch.where(live, row, torch.zeros_like(row))
        return policy.approx_kl

    def _stream(self):
        return stream(torch.cuda.current_stream(self.device).cuda_stream)

    def statistics(self) -> dict[str, float]:
        """Figures of the last epoch, read from the device; nan where there is none."""
        sums = dict(zip(SUMS, self.sums.tolist(), strict=True))
        made = sums["steps"] or math.nan
        figures = {f"losses/{name}": sums[name] / made for name in SUMS[:5]}
        figures |= {"losses/grad_norm_actor": sums["actor_norm"] / made, "losses/grad_norm_critic": sums["critic_norm"] / made}
        figures |= {"losses/samples": sums["samples"], "losses/updates": sums["steps"], "losses/ratio_overflows": sums["overflows"]}
        figures["losses/skipped"] = float(self.optimizer.skipped)
        figures["charts/learning_rate"] = float(self.optimizer.lr)
        report = dict(self.report)
        returns, lengths, finished, ruined = report.pop("rollout/finished").tolist()
        figures |= {name: float(value) for name, value in report.items()}
        figures |= {"rollout/episodes": finished, "rollout/ruined": ruined}
        figures |= {"rollout/ep_rew_mean": returns / finished if finished else math.nan}
        figures |= {"rollout/ep_len_mean": lengths / finished if finished else math.nan}
        return figures

    def policy(self, market: Market) -> Policy:
        """The policy as it is now, on the CPU, for validation; on the CPU path it shares the weights and is good until the next epoch."""
        actor = self.actor if self.device.type == "cpu" else copy.deepcopy(self.actor).cpu()
        return Policy(actor, self.config, market.scaling)

    @property
    def acting_network(self) -> torch.nn.Module:
        """The network that chooses actions, on the device."""
        return self.actor

    def networks(self) -> dict[str, torch.Tensor]:
        """The trained weights by layer name."""
        return {**self.actor.state_dict(), **self.critic.state_dict()}

    def state(self) -> dict:
        """Everything that an exact resume needs, as tensors and arrays by name."""
        state = {**self.networks(), "ppo/turn": self.turn, "ppo/epochs": torch.tensor([self.epochs]), "ppo/episodes": self.episodes.carried}
        state |= {f"optimizer/{name}": tensor for name, tensor in self.optimizer.state().items()}
        state |= {f"collector/{name}": array for name, array in self.collector.state_dict().items()}
        state |= {f"guard/{name}": tensor for name, tensor in self.guard.state().items()}
        if self.curiosity is not None:
            state |= self.curiosity.model.state_dict()
            state |= {f"curiosity/{name}": tensor for name, tensor in self.curiosity.optimizer.state().items()}
        return state

    def load(self, state: Mapping) -> None:
        """Take up where `state` left off; the settings must be those it was made with."""

        def under(prefix):
            return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}

        self.actor.load_state_dict({name: state[name] for name in self.actor.state_dict()})
        self.critic.load_state_dict({name: state[name] for name in self.critic.state_dict()})
        self.optimizer.load(under("optimizer/"))
        self.collector.load_state_dict({name: value.numpy() for name, value in under("collector/").items()})
        self.guard.load(under("guard/"))
        self.turn.copy_(state["ppo/turn"])
        self.episodes.carried.copy_(state["ppo/episodes"])
        self.epochs = int(state["ppo/epochs"])
        if self.curiosity is not None:
            self.curiosity.model.load_state_dict({name: state[name] for name in self.curiosity.model.state_dict()})
            self.curiosity.optimizer.load(under("curiosity/"))
