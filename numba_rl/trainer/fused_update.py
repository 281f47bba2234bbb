"""The PPO update with its backward written out: bf16 matrix products around a few Numba kernels, nothing else.

Weights are float32; every step also writes them as bf16 (the shadow), which the products read. Actor and critic share the
input, so their first layers are one product; matrix products go through torch, with the ReLU in their epilogue, and the
weight gradients come out in float32. The first layer's backward, the largest, is one pass of a kernel where there are rows enough
(kernels.first_gradient). Independent products run on side streams, which a captured graph keeps as branches.
All sums are added in a fixed order, so that a rerun is identical bit for bit.

A network fits when it has at least two hidden layers for actor and critic, plain ReLU, sizes that are multiples of 8, a
last critic layer of at most 128, and the GPU has bf16 (compute capability 8.0); others go through autograd in
`trainer.ppo`.
"""

import contextlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from numba_rl.config import GuardConfig, PpoConfig
from numba_rl.gpu import blocks_for, view
from numba_rl.kernels import adam, first_gradient, minibatch, ppo_loss, relu_grad, value_head
from numba_rl.trainer.branches import Branches
from numba_rl.trainer.guard import Guard
from numba_rl.trainer.optimizer import EPSILON

GROUPS = 264  # rows of partial sums: blocks of the loss kernel and of each bias gradient
VALUE_ROWS = 270_336  # states of one pass of the critic: a little over 2^18, so that 2^k samples and their last states go in 2^(k - 18) passes
BETAS = (0.9, 0.999)


def padded(size: int) -> int:
    """The next multiple of 8, which bf16 products want."""
    return (size + 7) // 8 * 8


def fits(config: PpoConfig) -> bool:
    """Whether the networks of these settings can be updated here."""
    sizes = (*config.actor, *config.critic)
    deep = len(config.actor) >= 2 and len(config.critic) >= 2
    return deep and config.leaky_slope == 0 and all(size % 8 == 0 for size in sizes) and config.critic[-1] <= 128


def takes_one_pass(rows: int, first: int, inputs: int, device: torch.device) -> bool:
    """Whether the first layer's backward, of `first` outputs and `inputs` for minibatches of `rows`, is one kernel."""
    if device.type != "cuda" or not first_gradient.fits(first, inputs):
        return False
    return first_gradient.pays(rows, first, torch.cuda.get_device_properties(device).multi_processor_count)


class FusedUpdate:
    """Parameters, gradients and moments of actor and critic, flat, and one minibatch step on them.

    After construction the parameters of the given Linear layers are views of `weights`. `samples` is the size of a
    rollout, cut into `minibatches` equal parts (a remainder of less than one a minibatch waits for another order).
    """

    def __init__(
        self,
        actor: Sequence[nn.Linear],
        critic: Sequence[nn.Linear],
        table: torch.Tensor,
        config: PpoConfig,
        samples: int,
        seed: int,
        *,
        guard: Guard | None = None,
        lanes: int = 32,
        warps: int = 8,
        groups: int = GROUPS,
        one_pass: bool | None = None,
    ):
        """table: scaled market features float32 [T, F]. guard: what judges every step; None: one of the default settings. lanes, warps:
        the shape of a block, groups: rows of partial sums; smaller in the simulator. one_pass: whether the first layer's backward is
        one kernel; None: where it fits and pays. ValueError where it is to be and does not fit."""
        self.config, self.seed, self.lanes, self.threads, self.groups = config, seed, lanes, lanes * warps, groups
        self.device = table.device
        self.guard = guard or Guard(GuardConfig(), self.device)
        self.features = table.shape[1]
        self.samples = samples
        self.minibatches = min(config.minibatches, samples)
        self.rows = samples // self.minibatches
        self.actions = actor[-1].out_features
        inputs = padded(self.features + 3)
        self._lay_out([layer.out_features for layer in actor[:-1]], [layer.out_features for layer in critic[:-1]], inputs)
        self._adopt(actor, critic)
        new = self._new
        rows, hidden = self.rows, self.critic_sizes[-1]
        packed = new(len(table), inputs, dtype=torch.bfloat16)
        packed[:, : self.features] = table.to(torch.bfloat16)
        self.table = self._quads(packed)
        self._packed = packed
        # Two of each: the samples of the next minibatch are gathered while one is learned from.
        self.x = [new(rows, inputs, dtype=torch.bfloat16) for _ in range(2)]
        self.source = new(rows, dtype=torch.int64)
        self.batch = [[new(rows, dtype=torch.int32), new(rows), new(rows), new(rows)] for _ in range(2)]  # actions, log-probs, advantages, returns
        self.logit_gradient = new(rows, self.logits, dtype=torch.bfloat16)
        self.hidden_gradient = new(rows, hidden, dtype=torch.bfloat16)
        self.first_gradient = new(rows, self.first, dtype=torch.bfloat16)
        # Own memory for each layer's gradient: side streams still read one while the next is made.
        layers = [(f"a{k}", size) for k, size in enumerate(self.actor_sizes)][1:] + [
            (f"c{k}", size) for k, size in enumerate(self.critic_sizes)
        ][1:-1]
        self.gradients = {name: new(rows, size, dtype=torch.bfloat16) for name, size in layers}
        self.partial = new(groups, self.tail)
        self.sums = new(config.epochs * self.minibatches, groups, ppo_loss.SUMS)
        self.moments = new(2, self.minibatches, minibatch.MOMENT_BLOCKS, 2)  # of this pass and the next
        self.turn = new(1, dtype=torch.int64)  # permutations used
        self.turns, self._passes = new(config.epochs, dtype=torch.int64), torch.arange(config.epochs, device=self.device)
        self.counts = new(4, dtype=torch.int64)
        self.stop = new(1)  # 1 once the KL divergence has ended this update
        self.norms, self.loss, self.left_out = new(2), new(1), new(1)
        self.values = new(rows)  # the critic's, of the minibatch
        self.squares = new(adam.norm_blocks(self.matrices, self.weight_split, self.tail, self.tail_split))
        normalize = float(config.normalize_advantage)
        self.loss_settings = torch.tensor([config.clip, config.value_coef, config.entropy_coef, normalize], device=self.device)
        # of a minibatch's sums in its loss: policy, value, entropy
        self.shares = torch.tensor([1.0, config.value_coef, -config.entropy_coef], device=self.device) / rows
        self.adam_settings = torch.tensor([config.lr, *BETAS, EPSILON, config.weight_decay], device=self.device)
        self._pick, self._rows, self._states, self._moments = minibatch.make_kernels(lanes)
        group = min(lanes, ppo_loss.LANES)
        self._loss = ppo_loss.make_ppo_loss(self.actions, hidden // 2, group, self.threads // group)
        self._relu_grad = relu_grad.make_relu_grad(lanes)
        self.first_parts = self._one_pass(one_pass)
        self._norm, self._adam = adam.make_kernels(lanes, warps)
        self._value_head = value_head.make_value_head(hidden // 4, lanes)
        self._branches = Branches(self.device, 3)

    def _new(self, *shape, dtype=torch.float32):
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def _one_pass(self, wanted):
        """The partial sums of the kernel for the first layer's backward, or None where that takes two steps."""
        inputs = self.x[0].shape[1]
        if self.device.type != "cuda" or not first_gradient.fits(self.first, inputs):
            if wanted:
                most = first_gradient.MOST_INPUTS
                raise ValueError(f"the first layer's backward in one pass needs a GPU and at most {most} inputs, got {inputs}")
            return None
        if not (takes_one_pass(self.rows, self.first, inputs, self.device) if wanted is None else wanted):
            return None
        multiprocessors = torch.cuda.get_device_properties(self.device).multi_processor_count
        self._first_gradient = first_gradient.make_kernels(inputs)
        return self._new(min(first_gradient.groups_for(self.rows, self.first, multiprocessors), self.groups), self.first, inputs)

    def _lay_out(self, actor, critic, inputs):
        """Offsets: matrices of the actor, first layers of both, matrices of the critic; then biases in the same order."""
        self.actor_sizes, self.critic_sizes, self.logits = actor, critic, (self.actions + 15) // 16 * 16
        self.first = actor[0] + critic[0]
        shapes = {}
        for k in range(1, len(actor)):
            shapes[f"a{k}"] = (actor[k], actor[k - 1])
        shapes["logits"] = (self.logits, actor[-1])
        shapes["first"] = (self.first, inputs)
        for k in range(1, len(critic)):
            shapes[f"c{k}"] = (critic[k], critic[k - 1])
        self.shapes, self.at, place = shapes, {}, 0
        for name, (out, fan_in) in shapes.items():
            self.at[name] = place
            place += out * fan_in
        self.matrices = place
        self.weight_split = self.at["first"] + actor[0] * inputs
        tails = {f"a{k}": actor[k] for k in range(1, len(actor))} | {"logits": self.logits, "first": self.first}
        tails |= {f"c{k}": critic[k] for k in range(1, len(critic))} | {"head": critic[-1] + 1}
        self.tail_at, place = {}, 0
        for name, size in tails.items():
            self.tail_at[name] = place
            place += size
        self.tail_sizes = tails
        self.tail = place + (self.matrices + place) % 2  # an even number in all, for the pairs of the shadow
        self.tail_split = self.tail_at["first"] + actor[0]
        size = self.matrices + self.tail
        self.weights, self.first_moment, self.second_moment = (self._new(size) for _ in range(3))
        self.shadow = self._new(size, dtype=torch.bfloat16)
        self.weight_gradient, self.tail_gradient = self._new(self.matrices), self._new(self.tail)

    def _matrix(self, flat, name):
        out, fan_in = self.shapes[name]
        return flat[self.at[name] : self.at[name] + out * fan_in].view(out, fan_in)

    def _bias(self, flat, name):
        start = self.matrices + self.tail_at[name]
        return flat[start : start + self.tail_sizes[name]]

    def named(self, flat):
        """Views of a flat tensor by layer: {("actor", index): (weight, bias), ...}, of the sizes of the layers."""
        first, bias = self._matrix(flat, "first"), self._bias(flat, "first")
        width, split = self.features + 3, self.actor_sizes[0]
        views = {("actor", 0): (first[:split, :width], bias[:split]), ("critic", 0): (first[split:, :width], bias[split:])}
        for kind, sizes in (("actor", self.actor_sizes), ("critic", self.critic_sizes)):
            for k in range(1, len(sizes)):
                views[kind, k] = self._matrix(flat, f"{kind[0]}{k}"), self._bias(flat, f"{kind[0]}{k}")
        views["actor", len(self.actor_sizes)] = (self._matrix(flat, "logits")[: self.actions], self._bias(flat, "logits")[: self.actions])
        head = self._bias(flat, "head")
        views["critic", len(self.critic_sizes)] = head[None, :-1], head[-1:]
        return views

    @torch.no_grad()
    def _adopt(self, actor, critic):
        views = self.named(self.weights)
        for kind, layers in (("actor", actor), ("critic", critic)):
            for k, layer in enumerate(layers):
                for parameter, place in zip((layer.weight, layer.bias), views[kind, k], strict=True):
                    place.copy_(parameter)
                    parameter.data = place
        self.refresh()

    @torch.no_grad()
    def refresh(self):
        """Write the shadow anew, after the weights were set from outside."""
        self.shadow.copy_(self.weights)

    def _blocks_of_rows(self, rows):
        return blocks_for(rows, self.threads // self.lanes * minibatch.rows_a_warp(self.x[0].shape[1] // 4, self.lanes))

    def _pairs(self, tensor):
        return view(tensor.view(torch.int32).view(torch.uint32))

    def _quads(self, tensor):
        return view(tensor.view(torch.int64).view(torch.uint64))

    def _dense(self, name, x, rows=slice(None)):
        """ReLU(x W^T + b) in bf16."""
        return torch._addmm_activation(self._bias(self.shadow, name)[rows], x, self._matrix(self.shadow, name)[rows].t())

    def _gradient(self, name, outputs, inputs):
        """Weight gradient outputs^T inputs, float32, into its place."""
        place = self._matrix(self.weight_gradient, name)
        if self.device.type == "cuda":
            torch.mm(outputs.t(), inputs, out_dtype=torch.float32, out=place)
        else:
            torch.mm(outputs.float().t(), inputs.float(), out=place)

    def _relu_backward(self, gradient, hidden, name):
        grid = (blocks_for(gradient.shape[1] // 4, self.lanes), self.groups)
        self._relu_grad[grid, self.lanes * relu_grad.ROWS, self._branches.stream()](
            self._quads(gradient), self._quads(hidden), view(self.partial), self.tail_at[name]
        )

    def _first_backward(self, first, x):
        """Gradients of the first layer's weights and biases, from the gradient at its outputs `first`, for the inputs x."""
        if self.first_parts is None:
            self._relu_backward(self.first_gradient, first, "first")
            self._gradient("first", self.first_gradient, x)
            return
        first_gradient.launch(
            self._first_gradient, self._pairs(self.first_gradient), self._pairs(first), self._pairs(x), view(self.first_parts),
            view(self.partial), self.tail_at["first"], view(self._matrix(self.weight_gradient, "first")), self._branches.stream(),
        )  # fmt: skip

    def critic_values(self, *parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
        """The critic's values of the rows of each part (bars int32 [R], account float32 [R, 3], values float32 [R], written).

        Every second pass runs on a side stream: layers that wait for memory then share the GPU with those that compute.
        """
        turn = 0
        for part in parts:
            rows, arrays = len(part[0]), [view(array) for array in part]
            passes = blocks_for(rows, VALUE_ROWS)
            for k in range(passes):
                start, stop = k * rows // passes, (k + 1) * rows // passes
                with self._branches.fork(0) if turn % 2 else contextlib.nullcontext():
                    self._value_pass(*arrays, start, stop - start)
                turn += 1
        self._branches.join(0)

    def _value_pass(self, bars, account, values, start, rows):
        split = self.actor_sizes[0]
        x = torch.empty(rows, self.x[0].shape[1], dtype=torch.bfloat16, device=self.device)
        self._states[self._blocks_of_rows(rows), self.threads, self._branches.stream()](
            self.table, bars, account, self.features, start, self._quads(x)
        )
        h = self._dense("first", x, slice(split, None))
        for k in range(1, len(self.critic_sizes)):
            h = self._dense(f"c{k}", h)
        self._value_head[value_head.blocks_of(rows, self.threads, self.lanes), self.threads, self._branches.stream()](
            self._quads(h), view(self._bias(self.weights, "head")), start, values
        )

    def update(self, bars, account, actions, log_probs, advantages, returns) -> None:
        """All passes of one update. bars int32 [S], account float32 [S, 3], actions int32 [S], the others float32 [S].

        Nothing is read back: `sums`, `counts` and `norms` say on the device what happened.
        """
        source = [view(part) for part in (bars, account, actions, log_probs, advantages, returns)]
        self.stop.zero_()
        self.sums.zero_()
        self._begin(source)
        for index in range(self.config.epochs * self.minibatches):
            self._minibatch(source, index)
            if (index + 1) % self.minibatches == 0:
                self._branches.join(1)  # the guard has judged the last step
                if self.config.target_kl is not None:
                    self._stop_on_kl(index // self.minibatches)
        self.turn += self.config.epochs
        if self.config.epochs * self.minibatches % 2:
            self.counts[0].copy_(self.counts[1])  # the next update begins at place 0 again

    def _begin(self, source):
        """Number the permutations of this update, and gather the first minibatch."""
        torch.add(self.turn, self._passes, out=self.turns)
        self._gather(source, 0)

    def _gather(self, source, index):
        """The samples of minibatch `index` into its half of the buffers."""
        bars, account, *columns = source
        epoch, part = divmod(index, self.minibatches)
        turn, place, handle = view(self.turns[epoch : epoch + 1]), index % 2, self._branches.stream()
        if part == 0:
            self._moments[(self.minibatches, minibatch.MOMENT_BLOCKS), self.threads, handle](
                columns[2], self.seed, turn, self.rows, view(self.moments[epoch % 2])
            )
        self._pick[blocks_for(self.rows, self.threads), self.threads, handle](
            *columns, self.seed, turn, part, view(self.source), *map(view, self.batch[place])
        )
        self._rows[self._blocks_of_rows(self.rows), self.threads, handle](
            self.table, bars, account, view(self.source), self.features, self._quads(self.x[place])
        )

    def _stop_on_kl(self, epoch):
        passed = self.sums[epoch * self.minibatches : (epoch + 1) * self.minibatches].sum((0, 1))
        self.stop.copy_(torch.maximum(self.stop, (passed[3] > 1.5 * self.config.target_kl * passed[5]).float()))

    def _minibatch(self, source, index):
        epoch, part = divmod(index, self.minibatches)
        x, batch = self.x[index % 2], self.batch[index % 2]
        self._branches.join(2)
        if index + 1 < self.config.epochs * self.minibatches:
            with self._branches.fork(2):
                self._gather(source, index + 1)
        first = self._dense("first", x)
        split = self.actor_sizes[0]
        with self._branches.fork(0):
            acting = [first[:, :split]]
            for k in range(1, len(self.actor_sizes)):
                acting.append(self._dense(f"a{k}", acting[-1]))
            logits = self._logits(acting[-1])
        judging = [first[:, split:]]
        for k in range(1, len(self.critic_sizes)):
            judging.append(self._dense(f"c{k}", judging[-1]))
        self._branches.join(0, 1)  # 1: the guard has read the values of the step before
        self._loss[self.groups, self.threads, self._branches.stream()](
            view(logits), view(self._bias(self.weights, "logits")), self._pairs(judging[-1]), view(self._bias(self.weights, "head")),
            *map(view, batch), view(self.moments[epoch % 2]), part, view(self.loss_settings), self._pairs(self.logit_gradient),
            self._pairs(self.hidden_gradient), view(self.values), view(self.partial), self.tail_at["logits"],
            self.tail_at[f"c{len(self.critic_sizes) - 1}"], view(self.sums[index]),
        )  # fmt: skip
        with self._branches.fork(0):
            self._backward("a", acting, self.logit_gradient, "logits", self.first_gradient[:, :split])
        self._backward("c", judging, self.hidden_gradient, f"c{len(self.critic_sizes) - 1}", self.first_gradient[:, split:])
        self._branches.join(0)
        self._first_backward(first, x)
        self._branches.join(1)
        self._step(index)
        with self._branches.fork(1):  # beside the next minibatch, whose step waits for it
            self.guard.check(self.loss, self.norms, self.values, self.stop)

    def _logits(self, hidden):
        if self.device.type == "cuda":
            return torch.mm(hidden, self._matrix(self.shadow, "logits").t(), out_dtype=torch.float32)
        return torch.mm(hidden.float(), self._matrix(self.shadow, "logits").t().float())

    def _backward(self, kind, outputs, gradient, name, into):
        """From the gradient at the layer `name` (whose input is outputs[-1] or the one before) down to the first layer's."""
        layers = [f"{kind}{k}" for k in range(1, len(outputs))]
        inputs = list(outputs)
        if kind == "a":
            layers.append("logits")
        else:
            inputs.pop()  # the loss kernel has passed the last hidden layer already
        for layer, hidden in zip(reversed(layers), reversed(inputs), strict=True):
            if kind == "c":
                with self._branches.fork(1):  # nothing below waits for it
                    self._gradient(layer, gradient, hidden)
            else:
                self._gradient(layer, gradient, hidden)
            weight = self._matrix(self.shadow, layer)
            if layer == f"{kind}1":
                torch.mm(gradient, weight, out=into)
            else:
                below = layers[layers.index(layer) - 1]
                gradient = torch.mm(gradient, weight, out=self.gradients[below])
                self._relu_backward(gradient, hidden, below)

    def _step(self, index):
        size, threads = len(self.weights), self.threads
        splits = self.weight_split, self.tail_split
        self._norm[len(self.squares) + 1, threads, self._branches.stream()](
            view(self.weight_gradient), view(self.partial), view(self.tail_gradient), *splits, view(self.squares), view(self.sums[index]),
            view(self.shares), view(self.loss),
        )  # fmt: skip
        self._adam[blocks_for(size // 2, threads), threads, self._branches.stream()](
            view(self.weights), view(self.first_moment), view(self.second_moment), view(self.weight_gradient), view(self.tail_gradient),
            *splits, view(self.squares), view(self.loss), view(self.adam_settings), np.float32(self.config.max_grad_norm), view(self.stop),
            view(self.guard.halted), view(self.left_out), view(self.counts), index % 2, view(self.norms), self._pairs(self.shadow),
        )  # fmt: skip

    @property
    def made(self) -> torch.Tensor:
        """Steps made, int64 scalar on the device."""
        return self.counts[0]
