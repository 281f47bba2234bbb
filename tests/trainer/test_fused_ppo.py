"""The fused iteration: in the simulator one tiny epoch end to end; on a GPU graphs against plain runs, resume and learning signals."""

import numpy as np
import pytest
import torch

from numba_rl import gpu
from numba_rl.config import Config, EpisodeConfig, PpoConfig, TrainConfig
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.evaluate.backtest import play_policy


@pytest.fixture(scope="module")
def market():
    return load_market(Config(), generate("mean_reverting", 3000, 1).bars)


def build(market, config, **block):
    from numba_rl.collect.fused import FusedCollector
    from numba_rl.trainer.fused_ppo import FusedPpo

    return FusedPpo(config, FusedCollector(market, config, device="cpu" if gpu.SIMULATED else "cuda"), **block)


@pytest.mark.skipif(not gpu.SIMULATED, reason="a tiny network in the simulator")
def test_an_epoch_in_the_simulator(market):
    config = Config(episodes=EpisodeConfig(count=2, launch=3, length=2), ppo=PpoConfig(actor=(8, 8), critic=(8, 8), epochs=1, minibatches=1))
    trainer = build(market, config, lanes=4, warps=1, groups=2)
    trainer.epoch()
    r = trainer.collector.rollout
    assert r.states.shape == (4, 2, 54)
    assert (r.ends[1] == 1).all(), "episodes of two steps end at the second"
    figures = trainer.statistics()
    assert figures["losses/skipped"] == 0 and figures["rollout/episodes"] == 2
    assert np.isfinite(figures["losses/policy_loss"]) and int(trainer.update.made) == 1


GPU_CONFIG = Config(episodes=EpisodeConfig(count=64, launch=50, length=40), train=TrainConfig(seed=4))


@pytest.mark.gpu
def test_first_ratio_is_one_and_values_are_the_critic_s(market):
    trainer = build(market, GPU_CONFIG)
    trainer.collector.start()
    trainer.collect()
    r = trainer.collector.rollout
    log_pi = torch.log_softmax(trainer.actor(r.states[:-1]).double(), -1).gather(-1, r.actions.long()[..., None])[..., 0]
    assert (log_pi - r.log_probs).abs().max() < 1e-4
    for values, states in ((trainer.values, r.states), (trainer.final_values, r.final_states)):
        direct = trainer.critic(states)[..., 0]
        assert (values - direct).norm() / direct.norm() < 0.02


@pytest.mark.gpu
def test_replays_are_reproducible_and_resume_exactly(market):
    whole = build(market, GPU_CONFIG)
    for _ in range(6):
        whole.epoch()
    half = build(market, GPU_CONFIG)
    for _ in range(3):
        half.epoch()
    saved = {name: torch.as_tensor(np.asarray(value.cpu() if torch.is_tensor(value) else value)).clone() for name, value in half.state().items()}
    resumed = build(market, GPU_CONFIG)
    resumed.load(saved)
    for _ in range(3):
        resumed.epoch()
    for name, value in whole.state().items():
        other = resumed.state()[name]
        assert np.array_equal(np.asarray(value.cpu() if torch.is_tensor(value) else value), np.asarray(other.cpu() if torch.is_tensor(other) else other)), name


@pytest.mark.gpu
def test_it_learns_a_little(market):
    config = Config(episodes=EpisodeConfig(count=128, launch=100))
    trainer = build(market, config)
    first = last = None
    for epoch in range(40):
        trainer.epoch()
        if epoch == 0:
            first = trainer.statistics()["rollout/reward_mean"]
    last = trainer.statistics()["rollout/reward_mean"]
    assert trainer.statistics()["losses/skipped"] == 0
    assert last > first
    policy = trainer.policy(market)
    assert len(play_policy(market, [market.test], policy, config)[0]) > 0
