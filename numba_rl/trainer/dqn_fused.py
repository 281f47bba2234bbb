"""The double-DQN update of a dueling network with its backward written out: bf16 products and few kernels, no host, no atomics.

States and next states go through the online network in one pass; the value's and the advantages' streams are one product, and
so are their last layers (a block matrix whose other blocks stay zero). Weights are float32; every step writes them as bf16
too (the shadow), which the products read. What does not depend on each other runs on side streams, which a captured graph
keeps as branches. All sums are added in a fixed order, so that a rerun is identical bit for bit.

It takes over the parameters of a `QNetwork` and gives what `dqn_update.Learner` gives, for variant "dueling" with sizes that
are multiples of 8, on a GPU with bf16 (compute capability 8.0); all else goes through autograd. The two are tested
against each other.
"""

import contextlib
import copy
import math
from collections.abc import Mapping

import numpy as np
import torch

from numba_rl.config import Config
from numba_rl.gpu import blocks_for, view
from numba_rl.kernels import adam, hidden_gradient, relu_grad
from numba_rl.kernels.dqn_loss import STATS, make_dqn_loss
from numba_rl.kernels.polyak import THREADS, launch_polyak
from numba_rl.replay import PrioritizedReplay
from numba_rl.rules.actions import ACTIONS
from numba_rl.trainer.branches import Branches
from numba_rl.trainer.dqn_losses import HUBER
from numba_rl.trainer.dqn_networks import QNetwork
from numba_rl.trainer.dqn_update import Noise
from numba_rl.trainer.guard import Guard
from numba_rl.trainer.optimizer import EPSILON, weight_decay_of

COLUMNS = 48  # of the last product: the value, 45 advantages, zeros
BETAS = (0.9, 0.999)
MOST_GROUPS = 64  # rows of partial sums


def fits(config: Config, device: torch.device) -> bool:
    """Whether the update of these settings can be made here."""
    dqn = config.dqn
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    sizes_fit = all(size % 8 == 0 for size in (*dqn.hidden, dqn.head)) and len(dqn.hidden) > 0
    return dqn.variant == "dueling" and sizes_fit and dqn.accumulate == 1 and config.train.precision in ("auto", "bf16")


class FusedLearner:
    """Online and target weights of a dueling network, flat, and one update of them. See `dqn_update.Learner` for the methods."""

    precision = "bf16"
    state_dtype = torch.bfloat16  # of the batches that it draws

    def __init__(self, network: QNetwork, config: Config, replay: PrioritizedReplay, *, lanes: int = 32, warps: int = 8):
        """lanes, warps: the shape of a block; smaller in the simulator."""
        dqn = config.dqn
        self.config, self.network, self.replay = dqn, network, replay
        self.device = next(network.parameters()).device
        self.lanes, self.threads, self.head = lanes, lanes * warps, dqn.head
        self.target = copy.deepcopy(network).requires_grad_(False)
        network.requires_grad_(False)
        self.noise = Noise(network, config.train.seed, 0)  # none: this network has no noisy layers
        self.guard = Guard(config.guard, self.device)
        self.batch, self._acting = replay.batch(dqn.batch, self.state_dtype), None
        rows, width = dqn.batch, self.batch.stacked.shape[1]
        self._lay_out(width, network.inputs)
        size, new = self.matrices + self.tail, self._new
        self.weights, self.target_weights, self.first_moment, self.second_moment = (new(size) for _ in range(4))
        self.shadow, self.target_shadow = (new(size, dtype=torch.bfloat16) for _ in range(2))
        self.weight_gradient, self.tail_gradient = new(self.matrices), new(self.tail)
        self._adopt(network, self.weights)
        self._adopt(self.target, self.target_weights)
        self.refresh()
        self.mask = new(COLUMNS, 2 * self.head)
        self.mask[0, : self.head] = 1.0
        self.mask[1 : ACTIONS + 1, self.head :] = 1.0
        self.groups = max(1, min(MOST_GROUPS, rows // relu_grad.ROWS))
        self.partial, self.losses, self.stats = new(self.groups, self.tail), new(self.groups, 1), new(self.groups, STATS)
        half = torch.bfloat16
        self.h = [new(2 * rows, out, dtype=half) for out in self.sizes]
        self.target_h = [new(rows, out, dtype=half) for out in self.sizes]
        self.gradients = [new(rows, out, dtype=half) for out in self.sizes]
        self.online_out, self.target_out = new(2 * rows, COLUMNS), new(rows, COLUMNS)
        self.out_gradient, self.errors, self.values = new(rows, COLUMNS, dtype=half), new(rows), new(rows)
        edge = HUBER if dqn.loss == "huber" else math.inf
        self.loss_settings = torch.tensor([1.0 / rows, edge], device=self.device)
        self.adam_settings = torch.tensor([dqn.lr, *BETAS, EPSILON, weight_decay_of(dqn)], device=self.device)
        self.counts, self.begun = new(4, dtype=torch.int64), new(1, dtype=torch.int64)
        self.stop, self.left_out, self.loss, self.norms = new(1), new(1), new(1), new(2)
        self.squares = new(adam.norm_blocks(self.matrices, self.matrices, self.tail, self.tail))
        self._loss = make_dqn_loss(ACTIONS, COLUMNS, lanes, warps)
        self._relu_grad = relu_grad.make_relu_grad(lanes)
        self._norm, self._adam = adam.make_kernels(lanes, warps)
        self._branches = Branches(self.device, 2)

    def _new(self, *shape, dtype=torch.float32):
        return torch.zeros(shape, dtype=dtype, device=self.device)

    # ------------------------------------------------------------------------------------------------ layout

    def _lay_out(self, width, inputs):
        """Offsets of the matrices [out, in] of all layers, the last one included, then of their biases."""
        self.inputs, self.sizes = inputs, [*self.config.hidden, 2 * self.head]
        outs, ins = [*self.sizes, COLUMNS], [width, *self.sizes]
        self.shapes = list(zip(outs, ins, strict=True))
        self.at = np.cumsum([0] + [out * fan_in for out, fan_in in self.shapes]).tolist()
        self.matrices = self.at[-1]
        self.bias_at = np.cumsum([0, *outs]).tolist()
        self.tail = self.bias_at[-1]

    def _matrix(self, flat, layer):
        return flat[self.at[layer] : self.at[layer + 1]].view(self.shapes[layer])

    def _bias(self, flat, layer):
        return flat[self.matrices + self.bias_at[layer] : self.matrices + self.bias_at[layer + 1]]

    def named(self, flat) -> list[torch.Tensor]:
        """Views of a flat tensor in the order and shapes of the network's parameters."""
        views, last = [], len(self.shapes) - 1
        for layer in range(last):
            matrix = self._matrix(flat, layer)
            views += [matrix[:, : self.inputs] if layer == 0 else matrix, self._bias(flat, layer)]
        matrix, bias = self._matrix(flat, last), self._bias(flat, last)
        return [*views, matrix[:1, : self.head], bias[:1], matrix[1 : ACTIONS + 1, self.head :], bias[1 : ACTIONS + 1]]

    @torch.no_grad()
    def _adopt(self, network, flat):
        for parameter, place in zip(network.parameters(), self.named(flat), strict=True):
            place.copy_(parameter)
            parameter.data = place

    @torch.no_grad()
    def refresh(self) -> None:
        """Write both shadows anew, after weights were set from outside."""
        self.shadow.copy_(self.weights)
        self.target_shadow.copy_(self.target_weights)

    def _pairs(self, tensor):
        return view(tensor.view(torch.int32).view(torch.uint32))

    def _quads(self, tensor):
        return view(tensor.view(torch.int64).view(torch.uint64))

    # ------------------------------------------------------------------------------------------------ the update

    @torch.no_grad()
    def updates(self, count: int) -> None:
        """`count` updates, one after the other."""
        for index in range(count):
            self.batch = self.replay.sample(self.config.batch, self.state_dtype)
            self._learn(index % 2)
            self._branches.join(1)  # the next draw needs the new priorities; the target moves and the guard judges while it is made
        self._branches.join(0)
        if count % 2:
            self.counts[:1].copy_(self.counts[1:2])  # the next call begins with an even turn

    @torch.no_grad()
    def acting(self, states: torch.Tensor) -> torch.Tensor:
        """What actions are chosen by, float32 [N, 45]: the advantages, which differ from the values by the same number in a row."""
        rows = len(states)
        if self._acting is None or len(self._acting[0]) != rows:
            half = torch.bfloat16
            x, out = self._new(rows, self.batch.stacked.shape[1], dtype=half), self._new(rows, COLUMNS)
            self._acting = (x, [self._new(rows, size, dtype=half) for size in self.sizes], out, self._new(rows, ACTIONS))
        x, hidden, out, advantages = self._acting
        x[:, : self.inputs].copy_(states)
        self._forward(self.shadow, x, hidden, out)
        last = slice(1, ACTIONS + 1)
        return torch.add(out[:, last], self._bias(self.weights, len(self.sizes))[last], out=advantages)

    def _learn(self, turn) -> None:
        """One step on what lies in the batch's buffers. Branch 0 still moves the target and the guard, branch 1 the priorities, when it
        returns: none of them before it is known whether the step was made."""
        batch, rows, last = self.batch, self.config.batch, len(self.shapes) - 1
        with self._branches.fork(0):
            self._forward(self.target_shadow, batch.stacked[rows:], self.target_h, self.target_out)
        self._forward(self.shadow, batch.stacked, self.h, self.online_out)
        self._branches.join(0)
        self._loss[self.groups, self.threads, self._branches.stream()](
            view(self.online_out), view(self._bias(self.weights, last)), view(self.target_out), view(self._bias(self.target_weights, last)),
            view(batch.actions), view(batch.rewards), view(batch.discounts), view(batch.flags), view(batch.weights),
            view(self.loss_settings), int(self.config.double), view(self.errors), view(self.values), self._pairs(self.out_gradient),
            view(self.partial), self.bias_at[last], view(self.losses), view(self.stats),
        )  # fmt: skip
        above = self.out_gradient
        for layer in range(last, -1, -1):
            below = self.h[layer - 1][:rows] if layer else batch.stacked[:rows]
            with self._branches.fork(0) if layer else contextlib.nullcontext():
                self._gradient(layer, above, below)
                if layer == last:
                    self._matrix(self.weight_gradient, last).mul_(self.mask)
            if layer:
                self._backward(layer, above, below, self.gradients[layer - 1])
                above = self.gradients[layer - 1]
        self._branches.join(0)
        self._step(turn)
        with self._branches.fork(0):
            launch_polyak(
                view(self.weights), view(self.left_out), self.config.target_rate, view(self.target_weights), self._pairs(self.target_shadow),
                stream=self._branches.stream(), threads=min(self.threads, THREADS),
            )  # fmt: skip
            self.guard.check(self.loss, self.norms[:1], self.values, self.stop)
        with self._branches.fork(1):
            self.replay.update(batch, self.errors, self.left_out)

    def _forward(self, shadow, x, outputs, out):
        for layer, output in enumerate(outputs):
            torch._addmm_activation(self._bias(shadow, layer), x, self._matrix(shadow, layer).t(), out=output)
            x = output
        last = self._matrix(shadow, len(outputs)).t()
        if self.device.type == "cuda":
            torch.mm(x, last, out_dtype=torch.float32, out=out)
        else:
            torch.mm(x.float(), last.float(), out=out)

    def _backward(self, layer, above, hidden, gradient):
        """From the gradient at a layer's outputs to that at the outputs `hidden` of the layer below, before its ReLU, and of its biases."""
        weight, offset = self._matrix(self.shadow, layer), self.bias_at[layer - 1]
        if self._in_one_launch(len(above), *weight.shape):
            hidden_gradient.launch(
                hidden_gradient.make_kernel(len(weight)), *map(self._pairs, (above, weight, hidden, gradient)), view(self.partial), offset,
                self._branches.stream(),
            )  # fmt: skip
            return
        torch.mm(above, weight, out=gradient)
        grid = (blocks_for(gradient.shape[1] // 4, self.lanes), self.groups)
        self._relu_grad[grid, self.lanes * relu_grad.ROWS, self._branches.stream()](
            self._quads(gradient), self._quads(hidden), view(self.partial), offset
        )

    def _in_one_launch(self, rows, inner, columns):
        if self.device.type != "cuda" or blocks_for(rows, hidden_gradient.SIDE) > self.groups or not hidden_gradient.fits(inner, columns):
            return False
        return hidden_gradient.pays(rows, columns, torch.cuda.get_device_properties(self.device).multi_processor_count)

    def _gradient(self, layer, outputs, inputs):
        """Weight gradient outputs^T inputs, float32, into its place."""
        place = self._matrix(self.weight_gradient, layer)
        if self.device.type == "cuda":
            torch.mm(outputs.t(), inputs, out_dtype=torch.float32, out=place)
        else:
            torch.mm(outputs.float().t(), inputs.float(), out=place)

    def _step(self, turn):
        whole = self.matrices, self.tail  # one network: the second part is empty
        self._norm[len(self.squares) + 1, self.threads, self._branches.stream()](
            view(self.weight_gradient), view(self.partial), view(self.tail_gradient), *whole, view(self.squares), view(self.losses),
            view(self.loss_settings[:1]), view(self.loss),
        )  # fmt: skip
        self._adam[blocks_for(len(self.weights) // 2, self.threads), self.threads, self._branches.stream()](
            view(self.weights), view(self.first_moment), view(self.second_moment), view(self.weight_gradient), view(self.tail_gradient),
            *whole, view(self.squares), view(self.loss), view(self.adam_settings), np.float32(self.config.max_grad_norm), view(self.stop),
            view(self.guard.halted), view(self.left_out), view(self.counts), turn, view(self.norms), self._pairs(self.shadow),
        )  # fmt: skip

    @torch.no_grad()
    def warm_up(self) -> None:
        """Load every kernel that `updates` launches; nothing changes."""
        before = self.stats.clone(), self.counts.clone()
        self.replay.prepare(self.config.batch, self.state_dtype)
        self.stop.fill_(1)
        self._learn(0)
        self._branches.join(0, 1)
        self.stop.zero_()
        for tensor, value in zip((self.stats, self.counts), before, strict=True):
            tensor.copy_(value)

    # ------------------------------------------------------------------------------------------------ figures and state

    def set_rate(self, rate: float) -> None:
        """The learning rate from here on."""
        self.adam_settings[:1].fill_(rate)

    def begin(self) -> None:
        """Figures are those of the updates from here on."""
        self.stats.zero_()
        self.begun.copy_(self.counts[:1])

    def reported(self) -> dict[str, torch.Tensor]:
        """What `figures` are made of, on the device."""
        return {"stats": self.stats.sum(0), "counts": self.counts, "begun": self.begun, "norm": self.norms[:1], "lr": self.adam_settings[:1]}

    def figures(self, read: Mapping[str, list[float]] | None = None) -> dict[str, float]:
        """Means over the updates since `begin`, their number, the updates skipped so far, and the next one's learning rate. read: what
        `reported` gave, if it is on the host already."""
        read = read or {name: tensor.tolist() for name, tensor in self.reported().items()}
        made, _, skipped, _ = read["counts"]
        made -= read["begun"][0]
        names = ("td_loss", "td_error", "q_mean")
        figures = {name: value / (made * self.config.batch) if made else math.nan for name, value in zip(names, read["stats"], strict=True)}
        return figures | {"grad_norm": read["norm"][0], "updates": float(made), "skipped": float(skipped), "learning_rate": read["lr"][0]}

    def state(self) -> dict[str, torch.Tensor]:
        """As `dqn_update.Learner.state`, so that either goes on where the other stopped."""
        state = dict(self.network.state_dict())
        state |= {f"target/{name}": tensor for name, tensor in self.target.state_dict().items()}
        for name, flat in (("exp_avg", self.first_moment), ("exp_avg_sq", self.second_moment)):
            state[f"optimizer/{name}"] = torch.cat([part.reshape(-1) for part in self.named(flat)])
        made, _, skipped, row = self.counts.float().unbind()
        state |= {"optimizer/step": made, "optimizer/skipped": skipped, "optimizer/skipped_in_a_row": row}
        state |= {f"guard/{name}": tensor for name, tensor in self.guard.state().items()}
        return state | {"noise/online": self.noise.counter, "noise/target": torch.zeros_like(self.noise.counter)}

    @torch.no_grad()
    def load(self, state) -> None:
        """Take over what `state` gave."""
        self.network.load_state_dict({name: state[name] for name in self.network.state_dict()})
        self.target.load_state_dict({name: state[f"target/{name}"] for name in self.target.state_dict()})
        for name, flat in (("exp_avg", self.first_moment), ("exp_avg_sq", self.second_moment)):
            place = 0
            for part in self.named(flat):
                part.copy_(state[f"optimizer/{name}"][place : place + part.numel()].view(part.shape))
                place += part.numel()
        for place, name in ((0, "step"), (2, "skipped"), (3, "skipped_in_a_row")):
            self.counts[place] = int(state[f"optimizer/{name}"])
        self.guard.load({name.removeprefix("guard/"): tensor for name, tensor in state.items() if name.startswith("guard/")})
        self.refresh()
