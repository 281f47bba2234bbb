"""PPO with nothing between the kernels: a whole iteration, from the first action to the last weight, in two CUDA graphs.

Rollout, critic, advantages and every pass of the update are captured once and replayed; what changes between replays
(learning rate, permutation, random counters, step count) lies in device memory. The second graph is the update: while the host hands
its hundreds of kernels to the GPU, that plays the rollout of the first. The host reads the sums of an iteration once, at its end,
through `trainer.readback`. The first iteration runs uncaptured: it compiles and loads what the captures then record.
"""

from collections.abc import Callable, Mapping

import torch

from numba_rl.collect.fused import FusedCollector
from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.gpu import SIMULATED, stream, view
from numba_rl.kernels.gae_scan import launch_gae_scan
from numba_rl.trainer import losses
from numba_rl.trainer.branches import Branches
from numba_rl.trainer.capture import captured
from numba_rl.trainer.checkpoint import Policy
from numba_rl.trainer.episodes import Episodes
from numba_rl.trainer.fused_update import FusedUpdate
from numba_rl.trainer.guard import Guard
from numba_rl.trainer.networks import build_actor, build_critic
from numba_rl.trainer.optimizer import learning_rate
from numba_rl.trainer.ppo import FIGURES
from numba_rl.trainer.readback import Readback


class FusedPpo:
    """The trainer of `trainer.ppo` on a GPU, for networks that the fused kernels take."""

    name = "ppo"
    FIGURES = FIGURES
    replay = None
    precision = "bf16"

    def __init__(self, config: Config, collector: FusedCollector, poll: Callable[[], None] = lambda: None, *, scan=None, **block):
        """poll is called between iterations. scan: shape of a block of kernels.gae_scan; None: by the size of a launch. block: sizes of
        FusedUpdate for the simulator."""
        self.config, self.collector, self.poll, self.device = config, collector, poll, collector.device
        features = collector.features.shape[1]
        generator = torch.Generator().manual_seed(config.train.seed)
        self.actor = build_actor(config, features, generator).to(self.device)
        self.critic = build_critic(config, features, generator).to(self.device)
        self.samples = collector.steps * collector.episodes
        self._actor_layers, critic_layers = ([getattr(net, name) for name in net.layers] for net in (self.actor, self.critic))
        self.guard = Guard(config.guard, self.device)
        self.update = FusedUpdate(
            self._actor_layers, critic_layers, collector.features, config.ppo, self.samples, config.train.seed, guard=self.guard, **block
        )
        rollout = collector.rollout
        self.values = torch.zeros(rollout.rows.shape, device=self.device)
        self.final_values = torch.zeros(rollout.final_rows.shape, device=self.device)
        self.advantages, self.returns = torch.zeros_like(rollout.rewards), torch.zeros_like(rollout.rewards)
        # the layers of the update are padded; the rollout reads whole ones
        self._weights = [torch.zeros(part.shape, device=self.device) for layer in self._actor_layers for part in (layer.weight, layer.bias)]
        self.episodes = Episodes(collector.episodes, self.device)
        self.readback = Readback(self.device)
        self._branches = Branches(self.device, 1)
        self.observe: Callable = lambda rollout: None  # called with each rollout, where a GPU captures it as well
        self.epochs = 0
        self._scan = scan
        self._graphs: tuple = ()
        self._warm = False
        self._lr = config.ppo.lr

    @property
    def steps(self) -> int:
        """Environment steps played."""
        return self.collector.played

    @property
    def steps_per_epoch(self) -> int:
        """Environment steps of an iteration."""
        return self.samples

    def epoch(self) -> None:
        """One iteration: the second one captures it, and later ones replay the captures."""
        self.poll()
        if not self.collector._started:
            self.collector.start()
        self._lr = learning_rate(self.config.ppo, self.steps, self.config.train.steps)
        self.update.adam_settings[:1].fill_(self._lr)
        if SIMULATED or not self._warm:
            self._run_uncaptured()
        else:
            if not self._graphs:
                first = captured(self.collect, stream=self._capture_stream)
                self._graphs = first, captured(self._learn, stream=self._capture_stream, after=first)
            for graph in self._graphs:
                graph.replay()
        self.readback.send()
        self.collector.played += self.samples
        self.epochs += 1

    def _run_uncaptured(self):
        if SIMULATED:
            self.collect()
            self._learn()
            return
        self._capture_stream = torch.cuda.Stream(self.device)
        self._capture_stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._capture_stream):
            self.collect()
            self._learn()
        torch.cuda.current_stream(self.device).wait_stream(self._capture_stream)
        self._warm = True

    @torch.no_grad()
    def _learn(self) -> None:
        """Everything of an iteration but what `collect` does."""
        r, steps = self.collector.rollout, self.collector.steps
        with self._branches.fork(0):  # figures of the rollout, while it is learned from
            self.observe(r)
            figures = {
                "losses/explained_variance": losses.explained_variance(self.values[:steps].reshape(-1), self.returns.view(-1)),
                "rollout/reward_mean": r.rewards.mean(), "rollout/equity_mean": r.account[steps, :, 0].mean(),
                "rollout/broken_slots": (r.status != 0).sum(), "finished": self.episodes.add(r, r.rewards),
            }  # fmt: skip
            figures = {name: tensor.double() for name, tensor in figures.items()}
        self.update.update(
            r.bars.reshape(-1), r.account[:steps].view(-1, 3), *(part.view(-1) for part in (r.actions, r.log_probs, self.advantages, self.returns))
        )
        self._branches.join(0)
        update = {"sums": self.update.sums.sum((0, 1)), "norms": self.update.norms, "counts": self.update.counts}
        self.readback.pack(figures | update)

    @torch.no_grad()
    def play(self) -> None:
        """The rollout alone."""
        for place, part in zip(self._weights, (part for layer in self._actor_layers for part in (layer.weight, layer.bias)), strict=True):
            place.copy_(part)
        self.collector.launch(self._weights)

    @torch.no_grad()
    def collect(self) -> None:
        """Rollout, critic and advantages: everything of an iteration but the update."""
        r = self.collector.rollout
        self.play()
        self.update.critic_values(
            (r.rows.view(-1), r.account.view(-1, 3), self.values.view(-1)),
            (r.final_rows.view(-1), r.final_account.view(-1, 3), self.final_values.view(-1)),
        )
        launch_gae_scan(
            view(r.rewards), view(self.values), view(r.ends), view(self.final_values), self.config.ppo.gamma, self.config.ppo.gae_lambda,
            view(self.advantages), view(self.returns), shape=(2, 2, 8) if SIMULATED else self._scan,
            stream=0 if SIMULATED else stream(torch.cuda.current_stream(self.device).cuda_stream),
        )  # fmt: skip

    def statistics(self) -> dict[str, float]:
        """Figures of the last iteration, waiting for them; nan where there is none."""
        read = self.readback.read()
        policy, value, entropy, kl, clipped, seen, _, _ = read["sums"]
        seen = seen or float("nan")
        names = ("policy_loss", "value_loss", "entropy", "approx_kl", "clipfrac")
        figures = {f"losses/{name}": part / seen for name, part in zip(names, (policy, value, entropy, kl, clipped), strict=True)}
        actor_norm, critic_norm = read["norms"]
        figures |= {"losses/grad_norm_actor": actor_norm, "losses/grad_norm_critic": critic_norm, "losses/samples": seen}
        figures |= {"losses/updates": seen / self.update.rows, "losses/skipped": read["counts"][2]}
        figures["charts/learning_rate"] = self._lr
        returns, lengths, finished, ruined = read["finished"]
        for name in ("losses/explained_variance", "rollout/reward_mean", "rollout/equity_mean", "rollout/broken_slots"):
            figures[name] = read[name][0]
        figures |= {"rollout/episodes": finished, "rollout/ruined": ruined}
        figures |= {"rollout/ep_rew_mean": returns / finished if finished else float("nan")}
        figures |= {"rollout/ep_len_mean": lengths / finished if finished else float("nan")}
        return figures

    def policy(self, market: Market) -> Policy:
        """A copy of the policy as it is now, on the CPU, for validation."""
        actor = build_actor(self.config, self.collector.features.shape[1])
        actor.load_state_dict({name: tensor.cpu() for name, tensor in self.actor.state_dict().items()})
        return Policy(actor, self.config, market.scaling)

    @property
    def acting_network(self) -> torch.nn.Module:
        """The network that chooses actions, on the device."""
        return self.actor

    def networks(self) -> dict[str, torch.Tensor]:
        """The trained weights by layer name."""
        both = {**self.actor.state_dict(), **self.critic.state_dict()}
        return {name: tensor.contiguous() for name, tensor in both.items()}

    def state(self) -> dict:
        """Everything that an exact resume needs, as tensors and arrays by name."""
        counts = self.update.counts
        state = {**self.networks(), "ppo/turn": self.update.turn, "ppo/epochs": torch.tensor([self.epochs]), "ppo/episodes": self.episodes.carried}
        state |= {"optimizer/exp_avg": self._flat(self.update.first_moment), "optimizer/exp_avg_sq": self._flat(self.update.second_moment)}
        state |= {"optimizer/step": counts[0].float(), "optimizer/skipped": counts[2].float(), "optimizer/skipped_in_a_row": counts[3].float()}
        state |= {f"guard/{name}": tensor for name, tensor in self.guard.state().items()}
        return state | {f"collector/{name}": array for name, array in self.collector.state_dict().items()}

    def _places(self, padded):
        """Views of a padded flat tensor, in the order of the networks' parameters."""
        views = self.update.named(padded)
        sizes = (("actor", len(self.update.actor_sizes)), ("critic", len(self.update.critic_sizes)))
        return [part for kind, last in sizes for k in range(last + 1) for part in views[kind, k]]

    def _flat(self, padded):
        """The numbers of a padded flat tensor as `trainer.optimizer` lays them: a checkpoint fits either trainer."""
        return torch.cat([part.reshape(-1) for part in self._places(padded)])

    @torch.no_grad()
    def load(self, state: Mapping) -> None:
        """Take up where `state` left off, of this trainer or that of `trainer.ppo`; the settings must be those it was made with."""

        def under(prefix):
            return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}

        for network in (self.actor, self.critic):
            network.load_state_dict({name: state[name] for name in network.state_dict()})
        self.update.refresh()
        for name, padded in (("exp_avg", self.update.first_moment), ("exp_avg_sq", self.update.second_moment)):
            places, flat = self._places(padded), state[f"optimizer/{name}"]
            for place, part in zip(places, flat.split([place.numel() for place in places]), strict=True):
                place.copy_(part.view_as(place))
        made, skipped, in_a_row = (int(state[f"optimizer/{name}"]) for name in ("step", "skipped", "skipped_in_a_row"))
        self.update.counts.copy_(torch.tensor([made, made, skipped, in_a_row]))
        self.update.turn.copy_(state["ppo/turn"])
        self.episodes.carried.copy_(state["ppo/episodes"])
        self.epochs = int(state["ppo/epochs"])
        self.guard.load(under("guard/"))
        self.collector.load_state_dict({name: value.numpy() for name, value in under("collector/").items()})
