"""The backtest kernel on a GPU: many windows in one launch, held against the float64 ledger before anything is timed.

    python profiles/bench/backtest.py [--json FILE]

Times are medians of 20 launches between CUDA events, warm, packing of the weights included. 10,000 windows of 1,000 bars are
the target: 15 ms.
"""

import argparse
import json
import statistics

import numpy as np
import torch

from numba_rl import settings
from numba_rl.bench.timing import event_seconds
from numba_rl.config import Config
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.data.windows import Range
from numba_rl.evaluate.backtest import play_actions, play_policy
from numba_rl.evaluate.device import GpuWindows
from numba_rl.trainer.networks import build_actor

SIZES = ((128, 1000), (1000, 1000), (10_000, 1000), (40_000, 250))


def median_ms(function):
    return 1e3 * statistics.median([event_seconds(function) for _ in range(23)][3:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    given = parser.parse_args()
    config = settings.replace(Config(), {"data.bars_per_year": 525_600.0})
    market = load_market(config, generate("mean_reverting", 60_000, 1).bars)
    generator = torch.Generator().manual_seed(0)
    actor = build_actor(config, len(market.names), generator)
    with torch.no_grad():
        actor.policy_output.weight.mul_(100.0)  # logits apart, as those of a trained policy
    rows = []
    for policy in ("greedy", "softmax"):
        chosen = settings.replace(config, {"evaluate.policy": policy})
        for count, bars in SIZES:
            starts = np.linspace(1, len(market) - bars, count).astype(np.int64)
            ranges = [Range(int(start), int(start) + bars) for start in starts]
            windows = GpuWindows(market, ranges, actor, chosen)
            windows.launch()
            torch.cuda.synchronize()
            few = list(range(0, count, count // 20))[:20]
            actions = windows.actions.cpu().numpy().astype(np.int32)
            exact = play_actions(market, [ranges[w] for w in few], np.ascontiguousarray(actions[:, few]), chosen, names=[""] * len(few))
            equity = windows.equity.cpu().numpy()
            error = max(float(np.abs(equity[: len(b), w] / b.equity[1:] - 1).max()) for w, b in zip(few, exact, strict=True))
            same = float("nan")
            if policy == "greedy":
                own = play_policy(market, [ranges[w] for w in few], actor, chosen)
                same = float(np.mean([(b.action == actions[: len(b), w]).mean() for w, b in zip(few, own, strict=True)]))
            ms = median_ms(windows.launch)
            rows.append({"policy": policy, "windows": count, "bars": bars, "ms": ms, "error": error, "same": same, "status": int(windows.status.any())})
            print(
                f"{policy} {count:>6} x {bars}: {ms:.3f} ms, {count * bars / ms / 1e3:,.0f} M steps/s; equity against float64 {error:.1e}, "
                f"choices as in float32 {same:.2%}, broken {rows[-1]['status']}", flush=True,
            )  # fmt: skip
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump({"gpu": torch.cuda.get_device_name(), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
