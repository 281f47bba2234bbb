"""The backtest kernel on a GPU, at its real size: money as in the float64 ledger, choices as the float32 network's but for near ties."""

import numpy as np
import pytest
import torch

from numba_rl import settings
from numba_rl.config import Config
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.data.windows import Range
from numba_rl.evaluate.backtest import play_actions, play_policy
from numba_rl.evaluate.device import GpuWindows, actions_on_gpu, can_play
from numba_rl.trainer.networks import build_actor, build_critic

pytestmark = pytest.mark.gpu
CONFIG = settings.replace(Config(), {"data.bars_per_year": 525_600.0, "market.leverage": 2.0})


@pytest.fixture(scope="module")
def market():
    return load_market(CONFIG, generate("mean_reverting", 8000, 1).bars)


@pytest.fixture(scope="module")
def network(market):
    network = build_actor(CONFIG, len(market.names), torch.Generator().manual_seed(0))
    with torch.no_grad():
        network.policy_output.weight.mul_(100.0)
    return network


@pytest.mark.parametrize("policy", ["greedy", "softmax"])
@pytest.mark.parametrize("count", [7, 13_000])  # narrow and wide form
def test_money_and_choices(market, network, policy, count):
    config = settings.replace(CONFIG, {"evaluate.policy": policy})
    starts = np.random.default_rng(0).integers(1, len(market) - 70, count)
    ranges = [Range(int(start), int(start) + 3 + k % 61) for k, start in enumerate(starts)]
    windows = GpuWindows(market, ranges, network, config)
    windows.launch()
    some = list(range(0, count, max(count // 50, 1)))
    actions = np.ascontiguousarray(windows.actions.cpu().numpy()[:, some], np.int32)
    exact = play_actions(market, [ranges[w] for w in some], actions, config, names=[""] * len(some))
    equity = windows.equity.cpu().numpy()
    for w, backtest in zip(some, exact, strict=True):
        assert int(windows.steps[w]) == len(backtest)
        np.testing.assert_allclose(equity[: len(backtest), w], backtest.equity[1:], rtol=1e-12)
    assert not windows.status.any()
    if policy == "greedy":
        own = play_policy(market, [ranges[w] for w in some], network, config)
        assert np.mean(np.concatenate([actions[: len(b), k] == b.action for k, b in enumerate(own)])) > 0.98


def test_what_it_can_play_and_broken_networks(market, network):
    assert can_play(network)
    assert not can_play(build_critic(CONFIG, len(market.names)))
    broken = build_actor(CONFIG, len(market.names))
    with torch.no_grad():
        broken.policy_output.bias.fill_(float("nan"))
    with pytest.raises(Exception, match="the policy gave NaN in window 0 at step 0"):
        actions_on_gpu(market, [Range(10, 20)], broken, CONFIG)
