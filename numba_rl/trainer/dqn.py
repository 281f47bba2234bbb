"""Deep Q-learning: play, store transitions of n steps, update on prioritized batches.

On a GPU a launch of the collector and the updates after it are CUDA graphs, replayed; nothing within an epoch waits for the
host. Every random choice is addressed by seed and counters, so a resumed run, its replay restored, repeats exactly.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from numba_rl.collect.batched import BatchedCollector, Rollout
from numba_rl.collect.experience import Chooser, Experience
from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.kernels.replay_layout import INSERTED
from numba_rl.replay import PrioritizedReplay
from numba_rl.replay.interface import rejected_of
from numba_rl.trainer.capture import captured
from numba_rl.trainer.checkpoint import Policy
from numba_rl.trainer.curiosity import Curiosity
from numba_rl.trainer.dqn_fused import FusedLearner, fits
from numba_rl.trainer.dqn_networks import build_q_network, kind_of
from numba_rl.trainer.dqn_update import Learner
from numba_rl.trainer.episodes import Episodes
from numba_rl.trainer.guard import Guard
from numba_rl.trainer.optimizer import learning_rate
from numba_rl.trainer.precision import resolve
from numba_rl.trainer.readback import Readback

if TYPE_CHECKING:  # costly to import, and not needed on the CPU path
    from numba_rl.collect.fused import CompactRollout
    from numba_rl.collect.fused_q import FusedQCollector

STEPS_PER_UPDATE = 128  # of the environments, where dqn.updates is not set
CURIOSITY_STEPS = 4  # steps of the forward model an epoch

FIGURES = (
    "charts/learning_rate", "charts/epsilon", "losses/td_loss", "losses/td_error", "losses/q_mean", "losses/grad_norm", "losses/updates",
    "losses/skipped", "losses/curiosity_loss", "replay/size", "replay/rejected", "rollout/reward_mean", "rollout/ep_rew_mean",
    "rollout/ep_len_mean", "rollout/episodes", "rollout/ruined", "rollout/equity_mean", "rollout/broken_slots", "rollout/curiosity_bonus",
)  # fmt: skip


class Dqn:
    """One Q-network, its target network and replay, and what trains them on the rollouts of a collector."""

    name = "dqn"
    FIGURES = FIGURES  # what `statistics` gives, in the order of the log

    def __init__(self, config: Config, collector: BatchedCollector | FusedQCollector, regime: np.ndarray, poll: Callable[[], None] = lambda: None):
        """regime float32 [T, 3] of the market, unscaled. poll is called between the steps of an epoch on the CPU path; it may raise,
        which leaves the epoch undone."""
        dqn = config.dqn
        self.config = config
        self.collector = collector
        self.poll = poll
        self.device = collector.device
        generator = torch.Generator().manual_seed(config.train.seed)
        network = build_q_network(config, collector.features.shape[1], generator).to(self.device)
        self.replay = PrioritizedReplay.from_config(config.replay, network.inputs, device=self.device, seed=config.train.seed)
        if fits(config, self.device) and not self.replay.on_host:
            self.learner = FusedLearner(network, config, self.replay)
        else:
            self.learner = Learner(network, config, self.replay, resolve(config.train.precision, self.device))
        self.chooser = Chooser(collector, dqn, regime, kind_of(dqn.variant), config.train.seed)
        self.experience = Experience(collector, dqn.n_step, dqn.gamma)
        self.curiosity = Curiosity(config, collector.features, generator) if config.reward.curiosity > 0 else None
        self.updates = dqn.updates or max(1, self.steps_per_epoch // STEPS_PER_UPDATE)
        self.episodes = Episodes(collector.episodes, self.device)
        self.report: dict[str, torch.Tensor] = {}
        self.readback = Readback(self.device)
        self.observe: Callable = lambda rollout: None  # called with each rollout, where a GPU captures it as well
        self.epochs = 0
        self._graphs: dict = {}  # "play", and the updates by their number
        self._played_here = False

    @property
    def network(self):
        """The online network."""
        return self.learner.network

    @property
    def guard(self) -> Guard:
        """What judges the updates."""
        return self.learner.guard

    @property
    def precision(self) -> str:
        """Number format of the update's matrix products."""
        return self.learner.precision

    @property
    def steps(self) -> int:
        """Environment steps played."""
        return self.collector.played

    @property
    def steps_per_epoch(self) -> int:
        """Environment steps of one launch."""
        return self.collector.steps * self.collector.episodes

    @property
    def _captures(self) -> bool:
        return self.device.type == "cuda" and not self.replay.on_host

    # ------------------------------------------------------------------------------------------------ an epoch

    def epoch(self) -> None:
        """One rollout into the replay, and the updates that are due for it."""
        self.learner.set_rate(learning_rate(self.config.dqn, self.steps, self.config.train.steps))
        self._collect()
        self.learner.begin()
        self._learn()
        if self.curiosity is not None:
            rollout = self.collector.rollout
            order = torch.arange(self.steps_per_epoch, device=self.device)
            self.report["losses/curiosity_loss"] = self.curiosity.train(rollout.bars, rollout.actions, order.tensor_split(CURIOSITY_STEPS))
        self._report()
        self.epochs += 1

    def _collect(self) -> None:
        steady = self._played_here and self.experience.held == self.experience.n - 1
        if not (self._captures and steady):
            stores = self.experience.count > 0
            self._play()
            self._played_here = stores  # every kernel of a launch has then run once, and can be captured
            return
        if "play" not in self._graphs:
            played = self.collector.played
            self._graphs["play"] = captured(self._play)
            self.collector.played = played
        self._graphs["play"].replay()
        self.collector.played += self.steps_per_epoch

    def _play(self) -> None:
        rollout = self._rollout()
        self.observe(rollout)
        rewards = rollout.rewards
        with torch.no_grad():
            if self.curiosity is not None:
                bonus = self.curiosity.bonus(rollout.bars, rollout.actions)
                self.report["rollout/curiosity_bonus"] = bonus.mean()
                rewards = rewards + self.config.reward.curiosity * bonus
            if self.experience.count:
                self.replay.insert(*self.experience.add(rollout, rewards))
            else:
                self.experience.add(rollout, rewards)
            self.report |= {
                "rollout/reward_mean": rewards.mean(),
                "rollout/equity_mean": rollout.equities.mean(),
                "rollout/broken_slots": (rollout.status != 0).float().sum(),
                "rollout/finished": self.episodes.add(rollout, rewards),
            }

    def _rollout(self) -> Rollout | CompactRollout:
        if isinstance(self.collector, BatchedCollector):
            return self.collector.collect(self._values, choose=self.chooser)
        self.poll()
        return self.collector.collect(self.network.advantage_layers(), self.chooser.settings)

    def _values(self, states: torch.Tensor) -> torch.Tensor:
        self.poll()
        return self.learner.acting(states)

    def _learn(self) -> None:
        if self.steps <= self.experience.held * self.collector.episodes:  # all that was played waits for its return
            return
        if not self._captures:
            for _ in range(self.updates):
                self.poll()
                self.learner.updates(1)
            return
        left, since = self.updates, 0
        self.replay.refresh()
        while left:
            count = min(left, self.config.dqn.updates_per_graph)
            if since >= self.config.replay.resort_interval:
                self.replay.refresh()
                since = 0
            if count not in self._graphs:
                self.learner.warm_up()
                self._graphs[count] = captured(lambda count=count: self.learner.updates(count))
            self._graphs[count].replay()
            left -= count
            since += count * self.config.dqn.accumulate

    # ------------------------------------------------------------------------------------------------ figures

    def _report(self) -> None:
        """Send the epoch's figures on their way to the host."""
        counters = torch.as_tensor(self.replay.backend.counters).to(self.device)  # no copy where the replay lies there
        self.readback.pack({f"learner/{name}": tensor for name, tensor in self.learner.reported().items()} | self.report | {"replay": counters})
        self.readback.send()

    def statistics(self) -> dict[str, float]:
        """Figures of the last epoch, waiting for them; nan where there is none."""
        read = self.readback.read()
        learner = self.learner.figures({name.removeprefix("learner/"): part for name, part in read.items()})
        figures = {"charts/learning_rate": learner.pop("learning_rate"), "charts/epsilon": self.chooser.epsilon()}
        figures |= {f"losses/{name}": value for name, value in learner.items()}
        rejected = rejected_of(read["replay"])
        size = min(read["replay"][INSERTED], self.replay.capacity)
        figures |= {"replay/size": size, "replay/rejected": float(rejected["nan"] + rejected["infinite"])}
        returns, lengths, finished, ruined = read["rollout/finished"]
        figures |= {name: read[name][0] for name in self.report if name != "rollout/finished"}
        figures |= {"rollout/episodes": finished, "rollout/ruined": ruined}
        figures |= {"rollout/ep_rew_mean": returns / finished if finished else math.nan}
        figures |= {"rollout/ep_len_mean": lengths / finished if finished else math.nan}
        return figures

    def policy(self, market: Market) -> Policy:
        """The policy as it is now, on the CPU, for validation; on the CPU path it shares the weights and is good until the next epoch.

        It is the target network: an average over the last updates, in which much of what single batches put into the values is gone.
        """
        target = self.learner.target
        network = target if self.device.type == "cpu" else copy.deepcopy(target).cpu()
        return Policy(network, self.config, market.scaling)

    @property
    def acting_network(self) -> torch.nn.Module:
        """The network that chooses actions, on the device."""
        return self.network

    def networks(self) -> dict[str, torch.Tensor]:
        """The trained weights by layer name."""
        return dict(self.network.state_dict())

    # ------------------------------------------------------------------------------------------------ state

    def state(self) -> dict:
        """Everything that an exact resume needs beside the replay, as tensors and arrays by name."""
        state = self.learner.state()
        state |= {"dqn/epochs": torch.tensor([self.epochs]), "dqn/episodes": self.episodes.carried}
        state |= {f"experience/{name}": tensor for name, tensor in self.experience.state().items()}
        state |= {f"collector/{name}": array for name, array in self.collector.state_dict().items()}
        if self.curiosity is not None:
            state |= self.curiosity.model.state_dict()
            state |= {f"curiosity/{name}": tensor for name, tensor in self.curiosity.optimizer.state().items()}
        return state

    def load(self, state: Mapping) -> None:
        """Take up where `state` left off; the settings must be those it was made with."""

        def under(prefix):
            return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}

        self.learner.load(state)
        self.collector.load_state_dict({name: value.numpy() for name, value in under("collector/").items()})
        self.experience.load(under("experience/"))
        self.episodes.carried.copy_(state["dqn/episodes"])
        self.epochs = int(state["dqn/epochs"])
        if self.curiosity is not None:
            self.curiosity.model.load_state_dict({name: state[name] for name in self.curiosity.model.state_dict()})
            self.curiosity.optimizer.load(under("curiosity/"))
