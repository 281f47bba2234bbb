"""Collecting and training on the CPU, beside Stable-Baselines3 on two public trading environments, in one run on one machine.

    pip install stable-baselines3 gym-trading-env gym-anytrading
    python profiles/bench/cpu.py [--json FILE] [--seconds 20]

All use 51 features of the same synthetic bars, the same two networks (54-128-64-45 and 54-512-384-256-128-64-1, or the
environment's own action count), 4 epochs and the same two threads. Steps a second are environment steps, medians of repeats.
A library that is not installed is left out and named.
"""

import argparse
import json
import os
import platform

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # for all of them: idle threads that spin spoil each other's times

import numpy as np
import torch

from numba_rl.bench.timing import Clock
from numba_rl.collect.batched import BatchedCollector
from numba_rl.config import Config
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.settings import replace
from numba_rl.trainer.building import build
from numba_rl.trainer.networks import build_actor

THREADS = 2
BARS = 20_000


def rate(steps, run, seconds):
    """Steps a second of `run`, by the median of repeats after one that is not counted."""
    return steps / Clock(torch.device("cpu"), seconds).time(run)


def ours(market, seconds):
    rows = []
    for count, launch in ((1024, 64), (128, 64)):
        config = replace(Config(), {"episodes.count": count, "episodes.launch": launch, "train.device": "cpu"})
        collector = BatchedCollector(market, config)
        actor = build_actor(config, len(market.names), torch.Generator().manual_seed(0))
        rows.append({"who": "numba_rl", "work": f"collect {count} x {launch}", "steps_per_s": rate(count * launch, lambda c=collector, a=actor: c.collect(a), seconds)})
    config = replace(Config(), {"train.device": "cpu"})
    trainer = build(config, market)
    rows.append({"who": "numba_rl", "work": "train 128 x 64, 4 x 4", "steps_per_s": rate(trainer.steps_per_epoch, trainer.epoch, seconds), "precision": trainer.precision})
    config = replace(config, {"train.precision": "float32"})
    trainer = build(config, market)
    rows.append({"who": "numba_rl", "work": "train 128 x 64, 4 x 4", "steps_per_s": rate(trainer.steps_per_epoch, trainer.epoch, seconds), "precision": trainer.precision})
    return rows


def trading_env(market):
    import gym_trading_env  # noqa: F401
    import gymnasium
    import pandas

    index = pandas.to_datetime(market.timestamp)
    frame = pandas.DataFrame({f"feature_{k}": market.features[:, k] for k in range(market.features.shape[1])}, index=index)
    for name, column in zip(("open", "high", "low", "close"), market.prices.T, strict=True):
        frame[name] = column
    return lambda: gymnasium.make("TradingEnv", df=frame, positions=[-1, -0.5, 0, 0.5, 1], trading_fees=4e-4, verbose=0, max_episode_duration=500)


def anytrading_env(market):
    import pandas
    from gym_anytrading.envs import StocksEnv

    frame = pandas.DataFrame(market.prices, columns=["Open", "High", "Low", "Close"])

    class Env(StocksEnv):
        def _process_data(self):
            return frame["Close"].to_numpy(dtype=np.float32), market.features

    return lambda: Env(df=frame, window_size=1, frame_bound=(1, 5000))


def theirs(name, make, seconds):
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    env = make_vec_env(make, n_envs=8)
    steps = 8 * 256
    nets = {"pi": [128, 64], "vf": [512, 384, 256, 128, 64]}
    model = PPO("MlpPolicy", env, n_steps=256, batch_size=steps // 4, n_epochs=4, policy_kwargs={"net_arch": nets}, device="cpu", seed=0)
    model.learn(steps)

    def collect():
        model.collect_rollouts(model.env, model._init_callback(None), model.rollout_buffer, n_rollout_steps=256)

    def train():
        collect()
        model.train()

    rows = [{"who": f"Stable-Baselines3 on {name}", "work": "collect 8 x 256", "steps_per_s": rate(steps, collect, seconds)},
            {"who": f"Stable-Baselines3 on {name}", "work": "train 8 x 256, 4 x 4", "steps_per_s": rate(steps, train, seconds)}]  # fmt: skip
    env.close()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    market = load_market(Config(), generate("mean_reverting", BARS, 3).bars)
    rows = ours(market, options.seconds)
    for name, environment in (("gym-trading-env", trading_env), ("gym-anytrading", anytrading_env)):
        try:
            rows += theirs(name, environment(market), options.seconds)
        except ImportError as missing:
            print(f"{name} is left out: {missing}")
    for row in rows:
        print(f"{row['who']:40s} {row['work']:26s} {row['steps_per_s']:12,.0f} steps/s  {row.get('precision', '')}")
    if options.json:
        meta = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__, "load": os.getloadavg()}
        with open(options.json, "w") as file:
            json.dump({**meta, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
