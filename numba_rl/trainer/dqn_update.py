"""One update of a Q-network, by autograd, for every variant: sample, targets, loss, backward, Adam, priorities, Polyak averaging.

Nothing in it waits for the host, so that on a GPU several updates are captured into one CUDA graph. All that changes from
update to update (Adam's step, the replay's counters, noise) lies in device memory.
"""

import contextlib
import copy
import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

import torch

from numba_rl.config import Config
from numba_rl.gpu import stream, view
from numba_rl.kernels import noise as kernel
from numba_rl.replay import Batch, PrioritizedReplay
from numba_rl.trainer import dqn_losses as losses
from numba_rl.trainer.dqn_networks import NoisyLinear, QNetwork
from numba_rl.trainer.guard import Guard
from numba_rl.trainer.optimizer import FlatAdam, weight_decay_of
from numba_rl.trainer.precision import reduced

SUMS = ("td_loss", "td_error", "q_mean", "grad_norm", "updates")


class Noise:
    """The noise of a network's noisy layers and its quantile levels, drawn anew by `reset` and `levels`.

    which: kernels.noise.ONLINE or TARGET: each draws numbers of its own. counter int64 [2]: resets and level batches so far.
    """

    def __init__(self, network: QNetwork, seed: int, which: int):
        layers = [layer for layer in network.modules() if isinstance(layer, NoisyLinear)]
        device = next(network.parameters()).device
        self.device, self.seed, self.which = device, seed, which
        self.counter = torch.zeros(2, dtype=torch.int64, device=device)
        sizes = [layer.in_features + layer.out_features for layer in layers]
        self.values = torch.zeros(sum(sizes), device=device)
        where = [(index, unit) for index, size in enumerate(sizes) for unit in range(size)]
        self.layers, self.units = (torch.tensor(column, dtype=torch.int32, device=device) for column in zip(*where, strict=True)) if where else (None, None)
        place = 0
        for layer in layers:
            layer.noise_in = self.values[place : place + layer.in_features]
            place += layer.in_features
            layer.noise_out = self.values[place : place + layer.out_features]
            place += layer.out_features

    def reset(self) -> None:
        """New noise in every noisy layer."""
        if self.layers is None:
            return
        arrays = (self.values, self.layers, self.units, self.counter[:1])
        if self.device.type == "cpu":
            kernel.noise_cpu(*(array.numpy() for array in arrays), self.seed, self.which)
        else:
            kernel.launch_noise(*map(view, arrays), self.seed, self.which, stream=self._stream())
        self.counter[:1] += 1

    def levels(self, rows: int, count: int) -> torch.Tensor:
        """float32 [rows, count], uniform in [0, 1)."""
        out = torch.empty(rows * count, device=self.device)
        counter = self.counter[1:]
        if self.device.type == "cpu":
            kernel.levels_cpu(out.numpy(), counter.numpy(), self.seed, self.which)
        else:
            kernel.launch_levels(view(out), view(counter), self.seed, self.which, stream=self._stream())
        counter += 1
        return out.view(rows, count)

    def _stream(self):
        return stream(torch.cuda.current_stream(self.device).cuda_stream)


class _Part(NamedTuple):
    """What one batch of an update gave."""

    batch: Batch
    loss: torch.Tensor  # scalar, its share of the update's loss
    errors: torch.Tensor  # [B]
    q: torch.Tensor  # values of the actions taken


class Learner:
    """The online network, its target network, and what changes them."""

    state_dtype = torch.float32  # of the batches that it draws

    def __init__(self, network: QNetwork, config: Config, replay: PrioritizedReplay, precision: str):
        dqn = config.dqn
        self.config, self.network, self.replay, self.precision = dqn, network, replay, precision
        self.device = next(network.parameters()).device
        self.target = copy.deepcopy(network).requires_grad_(False)
        self.optimizer = FlatAdam({"q": network}, dqn.lr, dqn.max_grad_norm, weight_decay_of(dqn))
        self.target_weights = self.optimizer.weights.detach().clone()
        place = 0
        for parameter in self.target.parameters():  # views of one tensor, averaged by one operation
            parameter.data = self.target_weights[place : place + parameter.numel()].view_as(parameter)
            place += parameter.numel()
        self.noise = Noise(network, config.train.seed, kernel.ONLINE)
        self.target_noise = Noise(self.target, config.train.seed, kernel.TARGET)
        self.sums = torch.zeros(len(SUMS), device=self.device)
        self.skip = torch.zeros((), device=self.device)
        self.guard = Guard(config.guard, self.device)

    @torch.no_grad()
    def acting(self, states: torch.Tensor) -> torch.Tensor:
        """What actions are chosen by while collecting: values float32 [N, A], with new noise."""
        self.noise.reset()
        return self.network.values(states, noise=True)

    def updates(self, count: int) -> None:
        """`count` updates, one after the other: each a step on the mean gradient of config.accumulate batches, and the target moved after it."""
        dqn = self.config
        for _ in range(count):
            self.optimizer.zero_grad()
            self._step([self._part(self._drawn()) for _ in range(dqn.accumulate)])

    def _drawn(self) -> Batch:
        """A new batch; where it is one of several, what its priorities will be written by is kept from the next draw."""
        batch = self.replay.sample(self.config.batch, self.state_dtype)
        if self.config.accumulate == 1:
            return batch
        return dataclasses.replace(batch, indices=batch.indices.clone(), stamp=batch.stamp.clone(), peak=batch.peak.clone())

    def _part(self, batch: Batch) -> _Part:
        """Add a batch's share of the gradient."""
        loss, errors, q = self.loss(batch)
        loss = loss / self.config.accumulate
        loss.backward()
        return _Part(batch, loss.detach(), errors.detach(), q.detach())

    @torch.no_grad()
    def _step(self, parts: list[_Part]) -> None:
        """The step on the gradient of `parts`, and all that follows only if it is made: priorities and the target's move."""
        loss = torch.stack([part.loss for part in parts]).sum()
        norms = self.optimizer.step(torch.maximum(self.skip, self.guard.halted[0]), loss)
        self.guard.check(loss, norms, parts[-1].q, self.skip)
        for part in parts:
            self.replay.update(part.batch, part.errors, self.optimizer.left_out)
            row = torch.stack([part.loss, part.errors.abs().mean() / len(parts), part.q.mean() / len(parts)])
            self.sums[:3] += torch.where(row.isfinite(), row, torch.zeros_like(row))
        made = 1.0 - self.optimizer.left_out
        self.target_weights.lerp_(self.optimizer.weights.detach(), self.config.target_rate * made)
        self.sums[3] += torch.where(made > 0, norms[0], torch.zeros_like(norms[0]))
        self.sums[4] += made

    def loss(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(weighted loss, td errors [B], values of the actions taken [B])."""
        self.noise.reset()
        self.target_noise.reset()
        with reduced(self.precision, self.device):
            if self.network.quantiles:
                return self._quantile_loss(batch)
            return self._value_loss(batch)

    def _value_loss(self, batch):
        heads = self.network.heads
        with torch.no_grad():
            online = self.network.values(batch.next_states, noise=True) if self.config.double else None
            following = self.target.values(batch.next_states, noise=True)
            targets = losses.q_targets(batch.rewards, batch.discounts, batch.terminated, online, following, heads)
        q = self.network.values(batch.states, noise=True)
        chosen = losses.places(batch.actions, heads)
        loss, errors = losses.q_loss(q, chosen, targets, batch.weights, self.config.loss)
        return loss, errors, q.gather(1, chosen)

    def _quantile_loss(self, batch):
        rows, count = len(batch), self.network.quantiles
        with torch.no_grad():
            following = self.target.quantile_values(batch.next_states, self.target_noise.levels(rows, count))
            judge = self.network.values(batch.next_states) if self.config.double else following.mean(1)
            best = judge.argmax(1)[:, None, None].expand(-1, count, 1)
            targets = losses.bellman(batch.rewards, batch.discounts, batch.terminated, following.gather(2, best).squeeze(2))
        levels = self.noise.levels(rows, count)
        chosen = batch.actions.long()[:, None, None].expand(-1, count, 1)
        predicted = self.network.quantile_values(batch.states, levels).gather(2, chosen).squeeze(2)
        loss, errors = losses.quantile_loss(predicted, levels, targets, batch.weights, self.config.loss)
        return loss, errors, predicted

    def warm_up(self) -> None:
        """Load every kernel that `updates` launches; nothing changes."""
        kept = [self.target_weights, self.noise.counter, self.target_noise.counter, self.noise.values, self.target_noise.values, self.sums]
        before = [tensor.clone() for tensor in kept]
        self.replay.prepare(self.config.batch, self.state_dtype)
        self.skip.fill_(1.0)
        with _aside(self.device):  # autograd remembers streams, and a capture must not meet the current one
            for _ in range(2):
                self.optimizer.zero_grad()
                self._step([self._part(self.replay.batch(self.config.batch, self.state_dtype)) for _ in range(self.config.accumulate)])
        self.skip.zero_()
        for tensor, value in zip(kept, before, strict=True):
            tensor.copy_(value)

    def set_rate(self, rate: float) -> None:
        """The learning rate from here on."""
        self.optimizer.lr.fill_(rate)

    def begin(self) -> None:
        """Figures are those of the updates from here on."""
        self.sums.zero_()

    def reported(self) -> dict[str, torch.Tensor]:
        """What `figures` are made of, on the device."""
        return {"sums": self.sums, "skipped": self.optimizer.skipped, "lr": self.optimizer.lr}

    def figures(self, read: Mapping[str, list[float]] | None = None) -> dict[str, float]:
        """Means over the updates since `begin`, their number, the updates skipped so far, and the next one's learning rate. read: what
        `reported` gave, if it is on the host already."""
        read = read or {name: tensor.reshape(-1).tolist() for name, tensor in self.reported().items()}
        sums = dict(zip(SUMS, read["sums"], strict=True))
        made = sums.pop("updates")
        means = {name: value / (made or math.nan) for name, value in sums.items()}
        return means | {"updates": made, "skipped": read["skipped"][0], "learning_rate": read["lr"][0]}

    def state(self) -> dict[str, torch.Tensor]:
        """Weights, target, moments and counters, by name."""
        state = dict(self.network.state_dict())
        state |= {f"target/{name}": tensor for name, tensor in self.target.state_dict().items()}
        state |= {f"optimizer/{name}": tensor for name, tensor in self.optimizer.state().items()}
        state |= {f"guard/{name}": tensor for name, tensor in self.guard.state().items()}
        return state | {"noise/online": self.noise.counter, "noise/target": self.target_noise.counter}

    def load(self, state) -> None:
        """Take over what `state` gave."""
        self.network.load_state_dict({name: state[name] for name in self.network.state_dict()})
        self.target.load_state_dict({name: state[f"target/{name}"] for name in self.target.state_dict()})
        self.optimizer.load({name: state[f"optimizer/{name}"] for name in self.optimizer.state()})
        self.guard.load({name.removeprefix("guard/"): tensor for name, tensor in state.items() if name.startswith("guard/")})
        self.noise.counter.copy_(state["noise/online"])
        self.target_noise.counter.copy_(state["noise/target"])


@contextlib.contextmanager
def _aside(device):
    """On a GPU: a stream of its own, after and before all else."""
    if device.type != "cuda":
        yield
        return
    current, side = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    side.wait_stream(current)
    with torch.cuda.stream(side):
        yield
    current.wait_stream(side)
