"""Prioritized replay: sample and update of a full ring, and inserting; on the device or in main memory, beside plain torch."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from numba_rl.bench.plain import PlainReplay
from numba_rl.bench.rows import Row, require
from numba_rl.bench.timing import Clock
from numba_rl.replay import BetaSchedule, ReplayRules
from numba_rl.replay.device import DeviceReplay
from numba_rl.replay.host import HostReplay

WIDTH = 54
RULES = ReplayRules(alpha=0.6, eps=1e-6, max_priority=1e6, beta=BetaSchedule(0.4, 0.4))
SIZES = {
    "cuda": ((1_000_000, 256), (1_000_000, 1024), (1_000_000, 4096), (100_000, 1024), (10_000_000, 1024)),
    "cpu": ((100_000, 256), (100_000, 1024)),
}
GOALS = {(1_000_000, 256): 8e-6, (1_000_000, 1024): 10e-6, (1_000_000, 4096): 16e-6}
INSERT_GOAL = 500e6  # transitions a second, in chunks of INSERTED
INSERTED = 1_000_000
TIMED = 3  # of each size
REPEAT = 20  # pairs in a graph
LARGEST_PLAIN = 2_000_000  # slots of plain torch, whose memory holds everything twice


def run(clock: Clock, sizes: Sequence[tuple[int, ...]]) -> Iterator[Row]:
    """A row for each size (slots, batch), and one of inserting."""
    ring = None
    for slots, batch in sorted(sizes):
        if ring != slots:
            replay, arrays, priorities = filled(clock.device, slots)
            ring = slots
        replay.prepare(batch)
        checks = check(replay, batch, arrays)
        errors = torch.randn(batch, device=clock.device)

        def pair(replay=replay, batch=batch, errors=errors):
            replay.update(replay.sample(batch), errors)

        seconds = clock.time(pair, repeat=REPEAT)
        naive = None
        if slots <= LARGEST_PLAIN:
            rules = RULES
            plain = PlainReplay(arrays, priorities, alpha=rules.alpha, eps=rules.eps, largest=rules.max_priority, beta=rules.beta.start)

            def plain_pair(plain=plain, batch=batch, errors=errors):
                plain.update(plain.sample(batch)[2], errors)

            naive = clock.time(plain_pair, repeat=4)
        yield Row(
            f"sample + update, {slots:,} slots, batch {batch:,}", seconds, batch, "transitions", naive, GOALS.get((slots, batch)), checks
        )
    yield _insert(clock, min(max(slots for slots, _ in sizes), LARGEST_PLAIN))


def filled(device: torch.device, slots: int, *, skewed: bool = False, **options):
    """A full replay of random rows, its rows by name (None where they are too many to be kept twice) and its priorities float32 [slots].

    Priorities are uniform in [0.01, 1.01), or skewed: the largest thousandth holds most of their sum. options: those of DeviceReplay.
    """
    random = torch.Generator(device).manual_seed(0)
    replay = DeviceReplay(slots, WIDTH, RULES, device, **options) if device.type == "cuda" else HostReplay(slots, WIDTH, RULES, device)
    uniform = torch.rand(slots, device=device, generator=random)
    priorities = (uniform + 1e-4).pow(-1.5) if skewed else uniform + 0.01
    errors = (priorities - RULES.eps).pow(1 / RULES.alpha)
    kept = []
    for low in range(0, slots, INSERTED):
        rows = random_rows(min(INSERTED, slots - low), device, random)
        replay.insert(*rows.values(), errors=errors[low : low + INSERTED])
        if slots <= LARGEST_PLAIN:
            kept.append(rows)
    arrays = {name: torch.cat([part[name] for part in kept]) for name in kept[0]} if kept else None
    return replay, arrays, priorities


def random_rows(count: int, device: torch.device, random: torch.Generator) -> dict[str, torch.Tensor]:
    """Transitions by name, in the order of `insert`."""
    states, following = torch.randn((2, count, WIDTH), device=device, generator=random)
    actions, flags = (torch.randint(0, most, (count,), device=device, generator=random, dtype=torch.int32) for most in (45, 2))
    rewards, discounts = torch.rand((2, count), device=device, generator=random)
    return {"states": states, "next_states": following, "actions": actions, "rewards": rewards, "discounts": discounts, "flags": flags}


def check(replay, size: int, arrays: dict[str, torch.Tensor] | None) -> dict[str, float]:
    """Raises OutputError unless a draw, its weights and rows, and an update are those of float64 NumPy. arrays: as `filled` gives them."""
    priorities = replay.priorities.cpu().numpy().astype(np.float64)
    batch = replay.sample(size)
    slots = batch.indices.cpu().numpy()
    edges = np.concatenate([[0], np.cumsum(priorities)])
    stratum = edges[-1] / size
    low = np.arange(size) * stratum
    outside = np.maximum(np.maximum(low - edges[slots + 1], edges[slots] - low - stratum), 0.0).max() / edges[-1]
    raw = (replay.capacity * priorities[slots] / edges[-1]) ** -RULES.beta.start
    found = {
        "outside_its_stratum": float(outside),
        "weight_error": float(np.abs(batch.weights.cpu().numpy() / (raw / raw.max()) - 1).max()),
    }
    if arrays is not None:
        found["rows_different"] = float(sum(int((getattr(batch, name) != array[batch.indices]).sum()) for name, array in arrays.items()))
    errors = torch.randn(size, device=batch.indices.device)
    replay.update(batch, errors)
    new = np.clip(np.abs(errors.cpu().numpy().astype(np.float64)) ** RULES.alpha + RULES.eps, RULES.eps, RULES.max_priority)
    priorities[slots] = 0
    np.maximum.at(priorities, slots, new)
    found["priority_error"] = float(np.abs(replay.priorities.cpu().numpy() / priorities - 1).max())
    found["total_error"] = abs(replay.total() / float(replay.priorities.double().sum()) - 1)
    sound = found["outside_its_stratum"] < 1e-9 and found["weight_error"] < 1e-5 and found.get("rows_different", 0) == 0
    return require(sound and found["priority_error"] < 2e-6 and found["total_error"] < 1e-12, "the replay", found)


def _insert(clock: Clock, slots: int) -> Row:
    """Inserting a whole chunk into a ring of `slots`; first priorities are the largest stored."""
    count = min(INSERTED, slots)
    rows = list(random_rows(count, clock.device, torch.Generator(clock.device).manual_seed(1)).values())
    ring = DeviceReplay(slots, WIDTH, RULES, clock.device) if clock.device.type == "cuda" else HostReplay(slots, WIDTH, RULES, clock.device)
    ring.insert(*rows)
    drawn = ring.sample(64)
    checks = require(
        torch.equal(drawn.states, rows[0][drawn.indices]),
        "inserting",
        {"rows_different": float((drawn.states != rows[0][drawn.indices]).sum())},
    )
    seconds = clock.time(lambda: ring.insert(*rows))
    return Row(f"insert {count:,}", seconds, count, "transitions", None, count / INSERT_GOAL if count == INSERTED else None, checks)
