"""Collection and whole PPO iterations on a GPU with all of the rules, medians of CUDA events around graph replays, warm.

    python profiles/bench/ppo.py [--json FILE]

Before a size is timed its outputs are checked: log-probabilities of the actions that were played against the network in
float64, values against the critic in float32, advantages against the recursion in float64.
"""

import argparse
import json
import time

import msgspec
import numpy as np
import torch
from ppo_update import captured, median_ms

from numba_rl.collect.fused import FusedCollector, rebuilt
from numba_rl.config import Config, EpisodeConfig
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.trainer.fused_ppo import FusedPpo

COLLECT = ((128, 500), (1024, 500), (8192, 500), (65_536, 128))
ITERATE = ((128, 500), (4096, 128))


def configured(count, launch):
    return msgspec.structs.replace(Config(), episodes=EpisodeConfig(count=count, launch=launch))


def logits_in_double(actor, x):
    x = x.double()
    for name in actor.layers:
        layer = getattr(actor, name)
        x = x @ layer.weight.double().t() + layer.bias.double()
        x = x if name == actor.layers[-1] else x.relu()
    return x


def check(trainer):
    """Raises AssertionError unless the collector's last launch is what the networks and the definition say."""
    r, steps = trainer.collector.rollout, trainer.collector.steps
    some = torch.arange(0, trainer.collector.episodes, max(1, trainer.collector.episodes // 128), device="cuda")
    states = rebuilt(r.features, r.rows[:, some], r.account[:, some])
    log_pi = torch.log_softmax(logits_in_double(trainer.actor, states[:steps]), -1).gather(-1, r.actions[:, some].long()[..., None])[..., 0]
    error = (log_pi - r.log_probs[:, some]).abs()
    direct = trainer.critic(states)[..., 0]
    values = (trainer.values[:, some] - direct).norm() / direct.norm()
    arrays = r.rewards, r.ends, trainer.values, trainer.final_values
    rewards, ends, value, finals = (part[:, some].double().cpu().numpy() for part in arrays)
    running, worst = np.zeros(len(some)), 0.0
    for t in range(steps - 1, -1, -1):
        end = ends[t].astype(int)
        following = np.where(end == 0, value[t + 1], np.where(end > 0, finals[np.maximum(end - 1, 0), np.arange(len(some))], 0.0))
        running = rewards[t] + 0.99 * following - value[t] + 0.99 * 0.95 * np.where(end == 0, running, 0.0)
        worst = max(worst, np.abs(running - trainer.advantages[t, some].double().cpu().numpy()).max())
    found = {"log_prob_error_max": float(error.max()), "log_prob_error_mean": float(error.mean()), "value_error": float(values), "advantage_error": worst}
    assert found["log_prob_error_mean"] < 1e-3 and found["value_error"] < 0.03 and worst < 1e-2, found
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    market = load_market(Config(), generate("mean_reverting", 40_000, 3).bars)
    rows = []
    for count, launch in COLLECT:
        config = configured(count, launch)
        trainer = FusedPpo(config, FusedCollector(market, config))
        trainer.collector.start()
        with torch.no_grad():
            begun = time.perf_counter()
            trainer.collect()
            torch.cuda.synchronize()
            first = time.perf_counter() - begun
            errors = check(trainer)
            whole = median_ms(captured(trainer.collect).replay)
            alone = median_ms(captured(trainer.play).replay)
        rows.append({"work": "collect", "form": trainer.collector.plan.form, "episodes": count, "steps": launch, "rollout_ms": alone, "with_critic_and_gae_ms": whole,
                     "million_steps_per_s": count * launch / whole / 1e3, "first_call_s": first, **errors})  # fmt: skip
        print(rows[-1], flush=True)
        del trainer
        torch.cuda.empty_cache()
    for count, launch in ITERATE:
        config = configured(count, launch)
        trainer = FusedPpo(config, FusedCollector(market, config))
        for _ in range(3):
            trainer.epoch()
        ms = median_ms(trainer._graph.replay)
        figures = trainer.statistics()
        assert figures["losses/skipped"] == 0
        begun = time.perf_counter()
        for _ in range(20):
            trainer.epoch()
            trainer.statistics()
        wall = (time.perf_counter() - begun) / 20 * 1e3
        rows.append({"work": "iteration", "episodes": count, "steps": launch, "iteration_ms": ms, "with_host_ms": wall,
                     "million_trained_steps_per_s": count * launch / ms / 1e3})  # fmt: skip
        print(rows[-1], flush=True)
        if options.profile:
            from ppo_update import kernel_table

            print(kernel_table(trainer._graph.replay))
        del trainer
        torch.cuda.empty_cache()
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
