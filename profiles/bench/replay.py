"""Times the replay on a GPU: sample + update in a CUDA graph, inserting, and the same work in plain torch in the same run.

    python profiles/bench/replay.py --json replay.json
    python profiles/bench/replay.py --slots 1000000 --batch 1024 --fans 128x64,64x64 --sample-warps 4,8,16 --update-warps 8,16,32

Every configuration's outputs are compared with float64 NumPy before it is timed. A time is the median over launches of one graph
that holds `--repeat` pairs, between CUDA events, divided by the pairs. `skew` draws priorities whose largest thousandth holds most of the
mass. Widths are those of the agent: states of 54. "torch" is cumsum + searchsorted + gather + scatter_reduce, captured as well.
"""

import argparse
import itertools
import json
import platform
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from numba_rl.kernels.replay_layout import Layout, choose_layout, row_bytes
from numba_rl.replay import BetaSchedule, ReplayRules
from numba_rl.replay.device import DeviceReplay

WIDTH = 54
ALPHA, EPS, CAP, BETA = 0.6, 1e-6, 1e6, 0.4


def numbers(text):
    return [int(part) for part in text.split(",")]


def shapes(text):
    return [tuple(int(fan) for fan in part.split("x")) for part in text.split(",")] if text else [None]


def priorities_like(slots, kind, generator):
    """Priorities f32 [slots]: uniform in [0.01, 1.01), or skewed."""
    uniform = torch.rand(slots, device="cuda", generator=generator)
    return uniform + 0.01 if kind == "even" else (uniform + 1e-4).pow(-1.5)


def filled(slots, kind="even", layout=None, **warps):
    """A full replay of random rows."""
    generator = torch.Generator("cuda").manual_seed(0)
    replay = DeviceReplay(
        slots, WIDTH, ReplayRules(alpha=ALPHA, eps=EPS, max_priority=CAP, beta=BetaSchedule(BETA, BETA)), "cuda", layout=layout, **warps
    )
    wanted = priorities_like(slots, kind, generator)
    errors = (wanted - EPS).clamp_min(0).pow(1 / ALPHA)
    for low in range(0, slots, 1_000_000):
        n = min(1_000_000, slots - low)
        states, following = torch.randn((2, n, WIDTH), device="cuda", generator=generator)
        actions = torch.randint(0, 45, (n,), device="cuda", generator=generator, dtype=torch.int32)
        rewards = torch.randn(n, device="cuda", generator=generator)
        replay.insert(states, following, actions, rewards, 0.99, errors=errors[low : low + n])
    return replay


def check(replay, size):
    """Compares one draw and one update with NumPy; raises AssertionError."""
    lay = replay.layout
    priorities = replay.priorities.cpu().numpy().astype(np.float64)
    batch = replay.sample(size)
    slots = batch.indices.cpu().numpy()
    edges = np.concatenate([[0], np.cumsum(priorities)])
    stratum = edges[-1] / size
    low = np.arange(size) * stratum
    assert (edges[slots + 1] >= low * (1 - 1e-9)).all() and (edges[slots] <= (low + stratum) * (1 + 1e-9)).all(), "slots"
    raw = (replay.capacity * priorities[slots] / edges[-1]) ** -BETA
    np.testing.assert_allclose(batch.weights.cpu(), raw / raw.max(), rtol=1e-5, err_msg="weights")
    rows = replay.rows[batch.indices].view(torch.float32)
    assert torch.equal(batch.states, rows[:, :WIDTH]) and torch.equal(batch.rewards, rows[:, 2 * lay.padded + 1]), "rows"
    assert torch.equal(batch.next_states, rows[:, lay.padded : lay.padded + WIDTH]), "next states"
    errors = torch.randn(size, device="cuda")
    replay.update(batch, errors)
    new = np.clip(np.abs(errors.cpu().numpy().astype(np.float64)) ** ALPHA + EPS, EPS, CAP)
    priorities[slots] = 0
    np.maximum.at(priorities, slots, new)
    np.testing.assert_allclose(replay.priorities.cpu(), priorities, rtol=2e-6, err_msg="priorities")
    leaves = replay.leaves.double().cpu().numpy()
    np.testing.assert_allclose(replay.sums.cpu(), leaves.reshape(-1, lay.leaf_fan).sum(1), rtol=1e-13, err_msg="sums")
    np.testing.assert_allclose(replay.tops.cpu()[: lay.tops], leaves.reshape(-1, lay.top_leaves).sum(1), rtol=1e-12, err_msg="tops")


def graph_of(call, repeat):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeat):
            call()
    return graph


def microseconds(call, repeat, launches):
    """Median time of one call inside a graph of `repeat`."""
    graph = graph_of(call, repeat)
    for _ in range(5):
        graph.replay()
    times = []
    for _ in range(launches):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / repeat)
    return float(np.median(times))


def eager_microseconds(call, count=200):
    for _ in range(20):
        call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / count * 1e6


class TorchReplay:
    """The same work as a good practitioner would write it in torch: O(slots) a draw."""

    def __init__(self, replay):
        rows, pad = replay.rows.view(torch.float32), replay.layout.padded
        self.p = replay.priorities.clone()
        self.states, self.next_states = rows[:, :WIDTH].contiguous(), rows[:, pad : pad + WIDTH].contiguous()
        self.actions, self.rewards = replay.rows[:, 2 * pad].contiguous(), rows[:, 2 * pad + 1].contiguous()
        self.discounts, self.flags = rows[:, 2 * pad + 2].contiguous(), replay.rows[:, 2 * pad + 3].contiguous()

    def pair(self, errors):
        size = len(errors)
        edges = torch.cumsum(self.p, 0)
        strata = (torch.arange(size, device="cuda") + torch.rand(size, device="cuda")) / size
        slots = torch.searchsorted(edges, strata * edges[-1], right=True).clamp_(max=len(edges) - 1)
        weights = (len(edges) * self.p[slots] / edges[-1]) ** -BETA
        batch = [array[slots] for array in (self.states, self.next_states, self.actions, self.rewards, self.discounts, self.flags)]
        new = (errors.abs() ** ALPHA + EPS).clamp_(EPS, CAP)
        self.p.scatter_reduce_(0, slots, new, "amax", include_self=False)
        return batch, weights / weights.max(), slots


def time_pairs(arguments):
    for slots, kind, fans in itertools.product(arguments.slots, arguments.priorities, arguments.fans):
        layout = Layout(slots, WIDTH, *fans) if fans else choose_layout(slots, WIDTH)
        for sample_warps, update_warps in itertools.product(arguments.sample_warps, arguments.update_warps):
            replay = filled(slots, kind, layout, sample_warps=sample_warps, update_warps=update_warps)
            for size in arguments.batch:
                replay.prepare(size)
                check(replay, size)
                errors = torch.randn(size, device="cuda")
                batch = replay.batch(size)

                def pair(replay=replay, size=size, errors=errors):
                    replay.update(replay.sample(size), errors)

                row = {
                    "what": "pair", "slots": slots, "batch": size, "priorities": kind, "fans": f"{layout.leaf_fan}x{layout.node_fan}",
                    "tops": layout.tops, "sample_warps": sample_warps, "update_warps": update_warps,
                    "pair_us": microseconds(pair, arguments.repeat, arguments.launches),
                    "sample_us": microseconds(lambda r=replay, n=size: r.sample(n), arguments.repeat, arguments.launches),
                    "update_us": microseconds(lambda r=replay, b=batch, e=errors: r.update(b, e), arguments.repeat, arguments.launches),
                }  # fmt: skip
                if (sample_warps, update_warps) == (arguments.sample_warps[0], arguments.update_warps[0]):
                    row["eager_us"] = eager_microseconds(pair)
                yield row
            del replay
            torch.cuda.empty_cache()


def time_torch(arguments):
    for slots in arguments.slots:
        if slots > 2_000_000:
            continue
        replay = filled(slots)
        plain = TorchReplay(replay)
        for size in arguments.batch:
            errors = torch.randn(size, device="cuda")
            batch, weights, drawn = plain.pair(errors)
            assert torch.equal(batch[0], plain.states[drawn]) and float(weights.max()) == 1
            yield {
                "what": "torch", "slots": slots, "batch": size,
                "pair_us": microseconds(lambda p=plain, e=errors: p.pair(e), 4, arguments.launches),
                "eager_us": eager_microseconds(lambda p=plain, e=errors: p.pair(e), 50),
            }  # fmt: skip
        del replay, plain
        torch.cuda.empty_cache()


def time_inserts(arguments):
    slots = 4_000_000
    replay = filled(slots)
    for n in arguments.insert:
        states, following = torch.randn((2, n, WIDTH), device="cuda")
        actions, flags = torch.randint(0, 45, (2, n), device="cuda", dtype=torch.int32)
        rewards, discounts, errors = torch.rand((3, n), device="cuda")

        def put(errors=None, fields=(states, following, actions, rewards, discounts, flags)):
            replay.insert(*fields, errors)

        put(errors)
        cursor, first = int(replay.counters[0]) % slots, min(n, 1000)
        begin = (cursor - n) % slots
        found = replay.rows.view(torch.float32)[(begin + torch.arange(first, device="cuda")) % slots]
        assert torch.equal(found[:, :WIDTH], states[:first]), "rows"
        repeat = max(1, min(20, 2_000_000 // n))
        row = {"what": "insert", "slots": slots, "count": n, "bytes_moved": n * (2 * WIDTH * 4 + 16 + replay.layout.words * 4 + 4)}
        for name, given in (("insert_us", None), ("insert_with_errors_us", errors)):
            row[name] = microseconds(lambda g=given, p=put: p(g), repeat, arguments.launches)
        row["million_per_s"] = n / row["insert_us"]
        row["gb_per_s"] = row["bytes_moved"] / row["insert_us"] / 1e3
        leaves = replay.leaves.double()
        assert torch.allclose(leaves.view(-1, replay.layout.leaf_fan).sum(1), replay.sums, rtol=1e-13, atol=0), "sums"
        yield row


def show(row):
    print("  ".join(f"{key} {value:.2f}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="file for the results")
    parser.add_argument("--slots", type=numbers, default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--batch", type=numbers, default=[256, 1024, 4096])
    parser.add_argument("--priorities", type=lambda text: text.split(","), default=["even", "skew"])
    parser.add_argument(
        "--fans", type=shapes, default=[None], help="leaf fan x node fan, such as 128x64,64x64; default: chosen by capacity"
    )
    parser.add_argument("--sample-warps", type=numbers, default=[8])
    parser.add_argument("--update-warps", type=numbers, default=[16])
    parser.add_argument("--insert", type=numbers, default=[128, 4096, 65_536, 1_000_000])
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--launches", type=int, default=50)
    parser.add_argument("--only", choices=["pair", "torch", "insert"], action="append", help="part to run; default: all")
    arguments = parser.parse_args()
    import numba
    import numba_cuda

    meta = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "numba": numba.__version__, "numba_cuda": numba_cuda.__version__,
        "python": platform.python_version(), "state_width": WIDTH, "bytes_a_slot": row_bytes(WIDTH), "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip
    show(meta)
    parts = {"pair": time_pairs, "torch": time_torch, "insert": time_inserts}
    rows = []
    for name in arguments.only or parts:
        for row in parts[name](arguments):
            show(row)
            rows.append(row)
            if arguments.json:
                Path(arguments.json).write_text(json.dumps({"meta": meta, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
