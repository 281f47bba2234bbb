"""The DQN update, captured: written out, and by autograd (each variant), beside plain torch; and whole epochs.

    python profiles/bench/dqn.py [--json FILE] [--quick]

Microseconds an update are medians over graph replays of 8 updates, replay of 1 million transitions included; outputs are
compared first (tests/trainer/test_dqn_gpu.py holds the tight comparison). Needs an NVIDIA GPU of compute capability 8.0 or newer.
"""

import argparse
import json
import statistics
import time

import torch
from torch import nn
from torch.nn import functional

from numba_rl import settings
from numba_rl.collect.batched import BatchedCollector
from numba_rl.config import Config
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.replay import PrioritizedReplay
from numba_rl.trainer.dqn import Dqn, _captured
from numba_rl.trainer.dqn_fused import FusedLearner
from numba_rl.trainer.dqn_networks import HEADS, build_q_network
from numba_rl.trainer.dqn_update import Learner

SLOTS, IN_GRAPH = 1_000_000, 8
BATCHES = (256, 1024, 4096)


def filled_replay():
    replay = PrioritizedReplay(SLOTS, 54, device="cuda", seed=1)
    random = torch.Generator("cuda").manual_seed(0)
    for _ in range(4):
        n = SLOTS // 4
        states = torch.randn(n, 54, device="cuda", generator=random)
        actions = torch.randint(0, 45, (n,), device="cuda", generator=random)
        rewards, errors = (torch.randn(n, device="cuda", generator=random) for _ in range(2))
        replay.insert(states, states + 0.1, actions, rewards, 0.99, None, errors)
    return replay


def learner_of(kind, replay, batch, variant="dueling", **options):
    config = settings.replace(Config(), {"algorithm": "dqn", "dqn.batch": batch, "dqn.variant": variant})
    network = build_q_network(config, 51, torch.Generator().manual_seed(0)).cuda()
    return kind(network, config, replay, **options)


def microseconds(graph, updates, repeats=30):
    for _ in range(5):
        graph.replay()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1000 / updates)
    return statistics.median(times)


class PlainTorch:
    """What a practitioner writes: cumsum and searchsorted over the priorities, autograd, fused Adam, captured."""

    def __init__(self, batch):
        random = torch.Generator("cuda").manual_seed(0)
        self.states = torch.randn(SLOTS, 54, device="cuda", generator=random)
        self.next_states = self.states + 0.1
        self.actions = torch.randint(0, 45, (SLOTS,), device="cuda", generator=random)
        self.rewards = torch.randn(SLOTS, device="cuda", generator=random)
        self.priorities = torch.rand(SLOTS, device="cuda", generator=random) + 0.1
        self.batch = batch
        self.online, self.target = Dueling().cuda(), Dueling().cuda()
        self.target.requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=1e-4, fused=True, capturable=True)

    def update(self):
        cumulated = self.priorities.cumsum(0, dtype=torch.float64)
        strata = (torch.arange(self.batch, device="cuda") + torch.rand(self.batch, device="cuda", dtype=torch.float64)) / self.batch
        index = torch.searchsorted(cumulated, strata * cumulated[-1]).clamp_max(SLOTS - 1)
        share = self.priorities[index] / cumulated[-1].float()
        weights = (SLOTS * share) ** -0.4
        weights = weights / weights.max()
        states, following = self.states[index], self.next_states[index]
        with torch.no_grad():
            best = self.online(following).argmax(1, keepdim=True)
            targets = self.rewards[index] + 0.99 * self.target(following).gather(1, best).squeeze(1)
        q = self.online(states).gather(1, self.actions[index][:, None]).squeeze(1)
        loss = (weights * functional.huber_loss(q, targets, reduction="none")).mean()
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target.parameters()), list(self.online.parameters()), 0.005)
            self.priorities[index] = (q - targets).abs() ** 0.6 + 1e-6


class Dueling(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(54, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        self.value = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1))
        self.advantage = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 45))

    def forward(self, x):
        h = self.body(x)
        advantage = self.advantage(h)
        return self.value(h) + advantage - advantage.mean(1, keepdim=True)


def plain_torch(batch):
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    plain = PlainTorch(batch)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            plain.update()
    torch.cuda.synchronize()
    time_of = microseconds(_captured(lambda: [plain.update() for _ in range(IN_GRAPH)]), IN_GRAPH)
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    return time_of


def updates(replay, quick):
    found = {}
    one, other = learner_of(FusedLearner, replay, 1024), learner_of(Learner, replay, 1024, precision="float32")
    for learner in (one, other):
        learner.begin()
        learner.updates(1)
    a, b = one.figures(), other.figures()
    assert abs(a["grad_norm"] - b["grad_norm"]) < 0.2 * b["grad_norm"], (a, b)
    for batch in BATCHES:
        learner = learner_of(FusedLearner, replay, batch)
        learner.warm_up()
        found[f"written out, {batch}"] = microseconds(_captured(lambda learner=learner: learner.updates(IN_GRAPH)), IN_GRAPH)
        found[f"plain torch in a graph, {batch}"] = plain_torch(batch)
    for variant in () if quick else HEADS:
        learner = learner_of(Learner, replay, 1024, variant, precision="tf32")
        learner.warm_up()
        found[f"autograd {variant}, 1024"] = microseconds(_captured(lambda learner=learner: learner.updates(IN_GRAPH)), IN_GRAPH)
    return found


def epochs(count, steps):
    """Seconds of an epoch of count x steps and its updates, and milliseconds of its collection."""
    config = settings.replace(Config(), {
        "algorithm": "dqn", "episodes.count": count, "episodes.launch": steps, "dqn.updates": 500, "replay.capacity": SLOTS,
    })  # fmt: skip
    market = load_market(config, generate("mean_reverting", 40_000, 5).bars)
    trainer = Dqn(config, BatchedCollector(market, config, device="cuda"), market.regime)
    times = {"epoch": [], "collection": []}
    for index in range(8):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        trainer._collect()
        torch.cuda.synchronize()
        collected = time.perf_counter()
        trainer.learner.begin()
        trainer._learn()
        torch.cuda.synchronize()
        if index >= 3:
            times["epoch"].append(time.perf_counter() - begun)
            times["collection"].append(collected - begun)
    return {f"{name} of {count} x {steps}, ms": statistics.median(values) * 1000 for name, values in times.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true", help="the written-out update and plain torch alone")
    arguments = parser.parse_args()
    found = {"gpu": torch.cuda.get_device_name()} | updates(filled_replay(), arguments.quick)
    if not arguments.quick:
        found |= epochs(128, 500)
    for name, value in found.items():
        print(f"{name:40} {value if isinstance(value, str) else f'{value:.1f}'}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
