"""Shapes of the fused rollout on a GPU, parts of it left out, and the source design's kernel: what `rltrain bench rollout` chose from.

    python profiles/bench/rollout.py --json rollout.json
    python profiles/bench/rollout.py --sizes 128x500 --variants block/256,block/128 --dissect
    python profiles/bench/rollout.py --sizes 65536x128 --variants warp/1/4/0,warp/2/4/128,warp/2/4/168

A variant is block/THREADS OF THE NETWORK or warp/TILES A WARP/WARPS A BLOCK/MOST REGISTERS (0: any). Each one's outputs are
checked before it is timed, as by `rltrain bench rollout`. Times are medians of CUDA events around graph replays, warm.
--dissect times the block form with parts of it left out, which says what a step waits for. Rules: barrier 0.5, diversity 1,
risk 0.1, shaping dsr ("all") or the default settings ("default").
"""

import argparse
import json
import platform
from pathlib import Path

import numpy as np
import torch
from numba import njit

from numba_rl.bench import games
from numba_rl.bench.rollout import EVERY_TERM, check_fused
from numba_rl.bench.timing import Clock, event_seconds
from numba_rl.collect.fused import FusedCollector
from numba_rl.gpu import cuda, device, float32, int32, jit, stream, view
from numba_rl.kernels.mma import tiles_of
from numba_rl.kernels.rollout import Plan
from numba_rl.kernels.rollout_block import block_names, block_of, rollout_block
from numba_rl.kernels.sampling import draw
from numba_rl.kernels.settled import pattern_of, specialised
from numba_rl.kernels.slots import load_slot, store_slot
from numba_rl.rules.fills import Outcome
from numba_rl.rules.game import play
from numba_rl.rules.philox import uniform
from numba_rl.rules.portfolio import portfolio_features
from numba_rl.trainer.networks import build_actor

SIZES = {
    (128, 500): ("block/256", "block/128", "block/512", "warp/1/1/0"),
    (1024, 500): ("block/256", "warp/1/1/0"),
    (8192, 500): ("warp/1/1/0", "warp/1/2/0", "warp/1/4/168", "warp/2/1/0"),
    (65_536, 128): ("warp/2/4/128", "warp/2/4/168", "warp/1/4/128", "warp/1/4/168", "warp/2/2/0"),
}
CLOCK = Clock(torch.device("cuda"), 1.0)


def milliseconds(run):
    """Of one call inside a captured graph."""
    return 1e3 * CLOCK.time(run)


def plan_of(variant, features, hidden):
    """The plan that a variant's name describes."""
    form, *numbers = variant.split("/")
    numbers = [int(number) for number in numbers]
    if form == "block":
        return Plan(block_of(features, hidden, network=numbers[0]), None)
    groups, warps, registers = numbers
    return Plan(None, tiles_of(features, hidden), groups, warps, registers or None)


# Parts of the block form replaced by next to nothing, to see what a step waits for.


@njit(error_model="numpy")
def _advance_not(portfolio, action, close, open_next, high_next, low_next, close_next, rules):
    return portfolio, Outcome(1.0, 1.0, close, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, portfolio.position, 0.0, 0, close)


@njit(error_model="numpy")
def _features_not(portfolio, rules):
    return portfolio.cash, portfolio.position, portfolio.spread


@njit(error_model="numpy")
def _base_not(outcome, close, close_next, step, rules):
    return np.float32(outcome.price)


@njit(error_model="numpy")
def _combine_not(base, barrier, window, shaping, outcome, close_next, rules):
    return np.float32(base), barrier, shaping


@njit(error_model="numpy")
def _number_not(*values):
    return values[0]


@device
def _draw_not(logits, actions, u, lane, redux):
    return int32(u * float32(45.0)), int32(0), logits[0, 0], float32(0.0), float32(1.0)


def _product_not():
    return device(lambda registers, k, activations, part: registers[0] * activations[part])


LEFT_OUT = {
    "nothing": {},
    "players": {"advance": _advance_not, "portfolio_features": _features_not},
    "reward": {"base": _base_not, "combine": _combine_not, "average_entry": lambda: None, "drawdown_of": lambda: None},
    "draw": {"draw_by_warp": _draw_not},
    "network": {"market_product": None, "second_product": None, "third_product": None},
}


def dissect(collector, actor, threads):
    """Milliseconds of the block form without some of its parts."""
    rows = {}
    block = block_of(collector.features.shape[1], (128, 64), network=threads)
    layers = [view(part) for part in actor.parameters()]
    for left_out in ("nothing", "players", "reward", "players+reward", "draw", "network", "players+reward+draw", "players+reward+network",
                     "players+reward+draw+network"):  # fmt: skip
        names = block_names(block, pattern_of(collector.rules))
        for part in left_out.split("+"):
            for name, stub in LEFT_OUT[part].items():
                if name.endswith("_product"):
                    stub = _product_not()
                elif name in ("average_entry", "drawdown_of"):
                    stub = njit(lambda a, b, c=0.0, d=0.0: b) if name == "average_entry" else njit(lambda a, b: b)
                names[name] = stub
        if "players" in left_out:
            names["write_account"] = device(_rebound_write(names))
        kernel = jit(specialised(rollout_block, names, left_out.count("+")))
        arguments = (*layers, *collector._slot_views, collector._prices, collector._market, *collector._outputs, collector._launch(), collector.rules)

        def run(kernel=kernel, arguments=arguments):
            kernel[collector.episodes, block.threads, stream(torch.cuda.current_stream().cuda_stream)](*arguments)

        rows[left_out] = milliseconds(run)
        print(f"  without {left_out:32s} {rows[left_out]:.4f} ms", flush=True)
    return rows


def _rebound_write(names):
    from numba_rl.gpu import rebound
    from numba_rl.kernels.rollout_block import write_account

    return rebound(write_account.py_func, {"portfolio_features": names["portfolio_features"]})


def source_kernel(features):
    """The source design: one thread an episode, network in local memory (its critic, five times the work, left out)."""
    width = features + 3
    draw_row, load, store = draw.device, load_slot.device, store_slot.device

    @jit
    def kernel(w1, b1, w2, b2, w3, b3, portfolio, barrier, window, shaping, clock, prices, features_table, actions, log_probs, rewards, launch, rules):
        e = cuda.grid(1)
        if e >= clock.shape[0]:
            return
        x = cuda.local.array(width, float32)
        first = cuda.local.array(128, float32)
        second = cuda.local.array(64, float32)
        logits = cuda.local.array((1, 45), float32)
        slot = load(portfolio, barrier, window, shaping, e)
        bar = clock[e, 0]
        for t in range(actions.shape[0]):
            equity, share, spread = portfolio_features(slot.portfolio, rules)
            for i in range(features):
                x[i] = features_table[bar, i]
            x[features] = float32(equity)
            x[features + 1] = float32(share)
            x[features + 2] = float32(spread)
            for o in range(128):
                total = b1[o]
                for i in range(width):
                    total += w1[o, i] * x[i]
                first[o] = max(total, float32(0.0))
            for o in range(64):
                total = b2[o]
                for i in range(128):
                    total += w2[o, i] * first[i]
                second[o] = max(total, float32(0.0))
            for o in range(45):
                total = b3[o]
                for i in range(64):
                    total += w3[o, i] * second[i]
                logits[0, o] = total
            action, log_prob = draw_row(logits, 0, 45, float32(uniform(launch.seed, 2, e, 0, t, 0)), float32(1.0))
            slot, _, reward = play(
                slot, action, prices[bar, 3], prices[bar + 1, 0], prices[bar + 1, 1], prices[bar + 1, 2], prices[bar + 1, 3], t, rules
            )
            actions[t, e] = action
            log_probs[t, e] = log_prob
            rewards[t, e] = float32(reward)
            bar += 1
            if bar + 1 >= launch.stop:
                bar = launch.start
        store(slot, portfolio, barrier, window, shaping, e)

    return kernel


def time_source(market, config, actor):
    collector = FusedCollector(market, config, form="warp")
    collector.start()
    kernel = source_kernel(collector.features.shape[1])
    layers = [view(part) for part in actor.parameters()]
    outputs = collector._outputs
    arguments = (*layers, *collector._slot_views, collector._prices, view(collector.features), outputs[5], outputs[6], outputs[7], collector._launch(), collector.rules)

    def run():
        kernel[-(-collector.episodes // 32), 32, stream(torch.cuda.current_stream().cuda_stream)](*arguments)

    run()
    return 1e3 * event_seconds(run)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--sizes", help="such as 128x500,8192x500")
    parser.add_argument("--variants", help="for all sizes; default: those of the table above")
    parser.add_argument("--settings", default="all,default")
    parser.add_argument("--dissect", action="store_true")
    parser.add_argument("--beside", action="store_true", help="the source design's kernel at 128 x 500")
    options = parser.parse_args()
    sizes = [tuple(int(part) for part in size.split("x")) for size in options.sizes.split(",")] if options.sizes else list(SIZES)
    market = games.market()
    features, rows = market.features.shape[1], []
    for episodes, steps in sizes:
        for settings in options.settings.split(","):
            config = games.config(episodes, steps, EVERY_TERM if settings == "all" else {})
            actor = build_actor(config, features, torch.Generator().manual_seed(1)).cuda()
            games.give_opinions(actor)
            for variant in options.variants.split(",") if options.variants else SIZES.get((episodes, steps), ("block/256", "warp/1/1/0")):
                plan = plan_of(variant, features, config.ppo.actor)
                if plan.block is None and plan.tiles is None:
                    print(f"{variant} does not fit")
                    continue
                collector = FusedCollector(market, config, plan=plan)
                checks = check_fused(market, config, collector, actor)
                ms = milliseconds(lambda collector=collector, actor=actor: collector.launch(actor))
                rows.append({"episodes": episodes, "steps": steps, "settings": settings, "variant": variant, "ms": ms,
                             "giga_steps_per_s": episodes * steps / ms / 1e6, **checks})  # fmt: skip
                print(f"{episodes:6d} x {steps} {settings:8s} {variant:14s} {ms:.4f} ms  {rows[-1]['giga_steps_per_s']:.3f} G steps/s  {checks}", flush=True)
                if options.dissect and plan.block is not None:
                    rows[-1]["without"] = dissect(collector, actor, plan.block.network)
                del collector
                torch.cuda.empty_cache()
        if (episodes, steps) == (128, 500) and options.beside:
            rows.append({"episodes": episodes, "steps": steps, "variant": "source design, actor alone", "ms": time_source(market, config, actor)})
            print(rows[-1], flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "python": platform.python_version(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
