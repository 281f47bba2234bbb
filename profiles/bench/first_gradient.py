"""The first layer's backward on a GPU: ReLU's kernel and a matrix product against one pass, by rows of a minibatch.

    python profiles/bench/first_gradient.py --json first_gradient.json
    python profiles/bench/first_gradient.py --rows 131072 --groups 26,52,79,105 --no-update

All gradients are checked against float64 before anything is timed. A time is the median over launches of one graph that holds 20 calls,
between CUDA events, divided by the calls; 16,000 rows stay in the L2 between them, as in an update, which has just written them. Groups of
rows are those of the kernel's rule unless they are given. `update` is one minibatch of a whole update, by both ways.
"""

import argparse
import itertools
import json
from pathlib import Path

import torch
from torch import nn

from numba_rl.bench.rows import machine, require
from numba_rl.bench.timing import Clock
from numba_rl.config import PpoConfig
from numba_rl.gpu import blocks_for, stream, view
from numba_rl.kernels import first_gradient, relu_grad
from numba_rl.rules.actions import ACTIONS
from numba_rl.trainer.fused_update import GROUPS, FusedUpdate

DEVICE = torch.device("cuda")
CLOCK = Clock(DEVICE, 1.0)
REPEAT = 20  # calls of a graph
MINIBATCHES = 4
TOLERANCE = 1e-4  # of the norm of a gradient


def numbers(text):
    return [int(part) for part in text.split(",")]


def words(tensor, kind, unsigned):
    return view(tensor.view(kind).view(unsigned))


def current():
    return stream(torch.cuda.current_stream(DEVICE).cuda_stream)


class Layer:
    """Random gradient, outputs and inputs of a layer, and the places of its gradients."""

    def __init__(self, rows, first, inputs):
        random = torch.Generator(DEVICE).manual_seed(1)
        self.gradient, hidden, self.x = (
            torch.randn(rows, size, device=DEVICE, generator=random).bfloat16() for size in (first, first, inputs)
        )
        self.hidden = hidden.relu()
        self.weight = torch.zeros(first, inputs, device=DEVICE)
        self.partial = torch.zeros(GROUPS, first, device=DEVICE)

    def two_steps(self):
        """A function that masks the gradient in place, which may be done again and again, and multiplies."""
        gradient, hidden = (words(part, torch.int64, torch.uint64) for part in (self.gradient, self.hidden))
        partial, kernel = view(self.partial), relu_grad.make_relu_grad()
        grid = blocks_for(self.gradient.shape[1] // 4, 32), GROUPS

        def call():
            kernel[grid, 32 * relu_grad.ROWS, current()](gradient, hidden, partial, 0)
            torch.mm(self.gradient.t(), self.x, out_dtype=torch.float32, out=self.weight)

        return call

    def one_pass(self, groups):
        """A function that does the same by one kernel and its sums."""
        parts = torch.zeros(groups, *self.weight.shape, device=DEVICE)
        pairs = [words(part, torch.int32, torch.uint32) for part in (self.gradient, self.hidden, self.x)]
        kernels = first_gradient.make_kernels(self.x.shape[1])
        arguments = kernels, *pairs, view(parts), view(self.partial), 0, view(self.weight)

        def call():
            first_gradient.launch(*arguments, current())

        call.parts = parts  # the view does not own them
        return call

    def errors(self, call):
        """Of one call, relative to the gradients in float64, and whether a second call gives the same bits."""
        masked = torch.where(self.hidden > 0, self.gradient, 0).double()
        exact = masked.t() @ self.x.double(), masked.sum(0)
        found = []
        for _ in range(2):
            self.weight.fill_(torch.nan)
            self.partial.zero_()
            call()
            found.append((self.weight.clone(), self.partial.clone()))
        gradients = found[0][0], found[0][1].double().sum(0)
        wrong = [float((part.double() - wanted).norm() / wanted.norm()) for part, wanted in zip(gradients, exact, strict=True)]
        return {
            "weight_error": wrong[0], "bias_error": wrong[1],
            "changed": float(not all(torch.equal(a, b) for a, b in zip(*found, strict=True))),
        }  # fmt: skip


def checked(layer, call, work):
    found = layer.errors(call)
    return require(max(found["weight_error"], found["bias_error"]) < TOLERANCE and not found["changed"], work, found)


def time_layers(arguments):
    multiprocessors = torch.cuda.get_device_properties(DEVICE).multi_processor_count
    for rows in arguments.rows:
        layer = Layer(rows, arguments.first, arguments.inputs)
        size = {"rows": rows, "first": arguments.first, "inputs": arguments.inputs}
        chosen = arguments.groups or [first_gradient.groups_for(rows, arguments.first, multiprocessors)]
        passes = [layer.one_pass(groups) for groups in chosen]
        checks = [checked(layer, call, f"one pass of {rows} rows") for call in passes]  # before the gradient is masked in place
        two_steps = layer.two_steps()
        found = checked(layer, two_steps, f"two steps of {rows} rows")
        seconds = CLOCK.time(two_steps, repeat=REPEAT)
        yield {"what": "two steps", **size, "us": 1e6 * seconds, **found}
        traffic = 2 * rows * (2 * arguments.first + arguments.inputs)
        for call, check in zip(passes, checks, strict=True):
            seconds = CLOCK.time(call, repeat=REPEAT)
            pays = first_gradient.pays(rows, arguments.first, multiprocessors)
            yield {
                "what": "one pass", **size, "groups": len(call.parts), "us": 1e6 * seconds, "gb_per_s": traffic / seconds / 1e9,
                "pays": pays, **check,
            }  # fmt: skip


def network(sizes):
    return [nn.Linear(a, b).to(DEVICE) for a, b in itertools.pairwise(sizes)]


def time_updates(arguments):
    features = arguments.inputs - 5
    for rows in arguments.rows:
        samples, config = MINIBATCHES * rows, PpoConfig(epochs=1, minibatches=MINIBATCHES)
        random = torch.Generator(DEVICE).manual_seed(1)
        table = torch.randn(10_000, features, device=DEVICE, generator=random)
        bars, actions = (
            torch.randint(0, most, (samples,), device=DEVICE, generator=random, dtype=torch.int32) for most in (10_000, ACTIONS)
        )
        account = torch.randn(samples, 3, device=DEVICE, generator=random)
        log_probs, advantages, returns = (torch.randn(samples, device=DEVICE, generator=random) for _ in range(3))
        for one_pass in (False, True):
            actor, critic = network([features + 3, *config.actor, ACTIONS]), network([features + 3, *config.critic, 1])
            update = FusedUpdate(actor, critic, table, config, samples, seed=1, one_pass=one_pass)
            data = bars, account, actions, log_probs - 4.0, advantages, returns
            seconds = CLOCK.time(lambda u=update, d=data: u.update(*d)) / MINIBATCHES
            yield {"what": "update", "rows": rows, "way": "one pass" if one_pass else "two steps", "us": 1e6 * seconds}
            del update
            torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--rows", type=numbers, default=[16_000, 131_072])
    parser.add_argument("--first", type=int, default=640)
    parser.add_argument("--inputs", type=int, default=56)
    parser.add_argument("--groups", type=numbers, help=f"groups of rows, at most {GROUPS}; default: by the kernel's rule")
    parser.add_argument("--update", action=argparse.BooleanOptionalAction, default=True, help="time whole updates as well")
    arguments = parser.parse_args()
    rows = []
    for row in itertools.chain(time_layers(arguments), time_updates(arguments) if arguments.update else ()):
        print("  ".join(f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()), flush=True)
        rows.append(row)
        if arguments.json:
            arguments.json.write_text(json.dumps({"machine": machine(DEVICE), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
