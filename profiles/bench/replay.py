"""Shapes of the replay on a GPU, and inserting by size of the chunk: what `rltrain bench replay` takes was chosen by this.

    python profiles/bench/replay.py --json replay.json
    python profiles/bench/replay.py --slots 1000000 --batch 1024 --fans 128x64,64x64 --sample-warps 4,8,16 --update-warps 8,16,32

Every configuration is checked before it is timed, as by `rltrain bench replay`. A time is the median over launches of one graph that
holds 20 calls, between CUDA events, divided by the calls. `skew` draws priorities whose largest thousandth holds most of the mass.
"""

import argparse
import itertools
import json
from pathlib import Path

import torch

from numba_rl.bench.replay import WIDTH, check, filled, random_rows
from numba_rl.bench.rows import machine
from numba_rl.bench.timing import Clock
from numba_rl.kernels.replay_layout import Layout, choose_layout, row_bytes

DEVICE = torch.device("cuda")
CLOCK = Clock(DEVICE, 1.0)
RING = 4_000_000  # slots that are inserted into


def numbers(text):
    return [int(part) for part in text.split(",")]


def shapes(text):
    return [tuple(int(fan) for fan in part.split("x")) for part in text.split(",")] if text else [None]


def microseconds(call, repeat=20):
    """Of one call inside a captured graph."""
    return 1e6 * CLOCK.time(call, repeat=repeat)


def time_pairs(arguments):
    for slots, kind, fans in itertools.product(arguments.slots, arguments.priorities, arguments.fans):
        layout = Layout(slots, WIDTH, *fans) if fans else choose_layout(slots, WIDTH)
        for sample_warps, update_warps in itertools.product(arguments.sample_warps, arguments.update_warps):
            warps = {"sample_warps": sample_warps, "update_warps": update_warps}
            replay, arrays, _ = filled(DEVICE, slots, skewed=kind == "skew", layout=layout, **warps)
            for size in arguments.batch:
                replay.prepare(size)
                checks = check(replay, size, arrays)
                errors, batch = torch.randn(size, device=DEVICE), replay.batch(size)

                def pair(replay=replay, size=size, errors=errors):
                    replay.update(replay.sample(size), errors)

                yield {
                    "what": "pair", "slots": slots, "batch": size, "priorities": kind, "fans": f"{layout.leaf_fan}x{layout.node_fan}",
                    "tops": layout.tops, **warps, "pair_us": microseconds(pair),
                    "sample_us": microseconds(lambda r=replay, n=size: r.sample(n)),
                    "update_us": microseconds(lambda r=replay, b=batch, e=errors: r.update(b, e)),
                    "eager_us": 1e6 * CLOCK.time_host(pair), **checks,
                }  # fmt: skip
            del replay
            torch.cuda.empty_cache()


def time_inserts(arguments):
    replay, _, _ = filled(DEVICE, RING)
    for n in arguments.insert:
        rows = list(random_rows(n, DEVICE, torch.Generator(DEVICE).manual_seed(1)).values())
        errors = torch.rand(n, device=DEVICE)
        repeat = max(1, min(20, 2_000_000 // n))
        moved = n * (2 * WIDTH * 4 + 16 + replay.layout.words * 4 + 4)
        us, with_errors = (microseconds(lambda e=given, r=rows: replay.insert(*r, errors=e), repeat) for given in (None, errors))
        assert torch.allclose(replay.leaves.double().view(-1, replay.layout.leaf_fan).sum(1), replay.sums, rtol=1e-13, atol=0), "sums"
        yield {
            "what": "insert", "slots": RING, "count": n, "bytes_moved": moved, "insert_us": us, "insert_with_errors_us": with_errors,
            "million_per_s": n / us, "gb_per_s": moved / us / 1e3,
        }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--slots", type=numbers, default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--batch", type=numbers, default=[256, 1024, 4096])
    parser.add_argument("--priorities", type=lambda text: text.split(","), default=["even", "skew"])
    parser.add_argument(
        "--fans", type=shapes, default=[None], help="leaf fan x node fan, such as 128x64,64x64; default: chosen by capacity"
    )
    parser.add_argument("--sample-warps", type=numbers, default=[None], help="warps of a block; default: what the replay takes")
    parser.add_argument("--update-warps", type=numbers, default=[None])
    parser.add_argument("--insert", type=numbers, default=[128, 4096, 65_536, 1_000_000])
    arguments = parser.parse_args()
    rows = []
    for row in itertools.chain(time_pairs(arguments), time_inserts(arguments)):
        print("  ".join(f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()), flush=True)
        rows.append(row)
        if arguments.json:
            meta = machine(DEVICE) | {"state_width": WIDTH, "bytes_a_slot": row_bytes(WIDTH)}
            arguments.json.write_text(json.dumps({"machine": meta, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
