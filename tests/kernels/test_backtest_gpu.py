"""The backtest kernel on a GPU, at its real size: the float64 ledger fill by fill and trade by trade, the choices of the network."""

import numpy as np
import pytest
import torch
from reference.trades import GAMES, account, assert_fills, assert_windows

from numba_rl import settings
from numba_rl.bench.backtest import check_windows
from numba_rl.config import Config
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.data.windows import Range
from numba_rl.evaluate.backtest import play_policy
from numba_rl.evaluate.device import GpuWindows, actions_of, can_play, lay_out
from numba_rl.evaluate.windows import windows_of_policy
from numba_rl.trainer.capture import captured
from numba_rl.trainer.checkpoint import Policy
from numba_rl.trainer.networks import build_actor, build_critic

pytestmark = pytest.mark.gpu
CONFIG = settings.replace(Config(), {"data.bars_per_year": 525_600.0, "market.leverage": 2.0})
NARROW, WIDE = 7, 13_000  # windows: 16 a warp, and 32 on a card of up to 135 multiprocessors


@pytest.fixture(scope="module")
def market():
    return load_market(CONFIG, generate("mean_reverting", 8000, 1).bars)


def actor(market, config=CONFIG):
    network = build_actor(config, len(market.names), torch.Generator().manual_seed(0))
    with torch.no_grad():
        network.policy_output.weight.mul_(100.0)
    return network


@pytest.fixture(scope="module")
def network(market):
    return actor(market)


def some_windows(market, count, longest=61):
    starts = np.random.default_rng(0).integers(1, len(market) - longest - 3, count)
    return [Range(int(start), int(start) + 1 + k % longest) for k, start in enumerate(starts)]


def chosen_in(market, ranges, network, config):
    """Actions int32 [S, W] of the kernel."""
    windows = lay_out(market, ranges, network, config)
    assert isinstance(windows, GpuWindows)
    windows.launch()
    return actions_of(windows)


@pytest.mark.parametrize("count", [NARROW, WIDE])
@pytest.mark.parametrize("name", GAMES)
def test_every_trade_is_the_ledgers_and_every_choice_the_networks(market, network, name, count):
    config = settings.replace(CONFIG, GAMES[name])
    ranges = some_windows(market, count)
    windows = GpuWindows(market, ranges, network, config)
    assert windows.groups == (2 if count == WIDE else 1)
    check_windows(market, ranges, windows, network, config)
    some = list(range(0, count, max(count // 50, 1)))
    replay, trips = assert_windows(windows.outputs, market, ranges, config, some)
    assert trips > (3 if count == NARROW else 60)
    assert any(backtest.terminated for backtest in replay) == (name in ("ruin", "gap"))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", ["default", "dear", "episodes"])
def test_every_fill_is_the_ledgers(market, network, name, groups):
    """Windows that begin together and end one bar later each: what the totals grow by is one bar's fills, bar by bar."""
    config = settings.replace(CONFIG, GAMES[name])
    ranges = [Range(500, stop) for stop in range(501, 701)]
    windows = GpuWindows(market, ranges, network, config, groups=groups)
    windows.launch()
    equity, actions, totals, steps, status = (tensor.cpu().numpy() for tensor in windows.outputs)
    fills = 0
    for w, window in enumerate(ranges):
        n = window.bars
        assert steps[w] == n and status[w] == 0 and (actions[:n, w] == actions[:n, -1]).all()
        expected = account(config, market.bars_per_year, market.prices, window.start - 1, window.stop, actions[:, w])
        assert_fills(equity[:n, w], totals[w], expected, config.market)
        fills = len(expected.fills)
    assert fills > 50


@pytest.mark.parametrize("policy", ["greedy", "softmax"])
def test_real_size(market, network, policy):
    """Windows of 1,000 bars, twice as long as an episode, beside each other."""
    config = settings.replace(CONFIG, {"evaluate.policy": policy})
    ranges = [Range(int(start), int(start) + 1000) for start in np.linspace(1, len(market) - 1000, 1000)]
    windows = GpuWindows(market, ranges, network, config)
    checks = check_windows(market, ranges, windows, network, config)
    _, trips = assert_windows(windows.outputs, market, ranges, config, [0, 1, 500, 999])
    assert trips > 200
    if policy == "greedy":
        assert checks["same_choices"] > 0.995


@pytest.mark.parametrize("policy", ["greedy", "softmax"])
def test_a_window_does_not_depend_on_its_neighbours(market, network, policy):
    config = settings.replace(CONFIG, {"evaluate.policy": policy})
    ranges = some_windows(market, 1000)
    alone, beside = (GpuWindows(market, ranges, network, config, groups=groups) for groups in (1, 2))
    fewer = GpuWindows(market, ranges[:66], network, config)
    for windows in (alone, beside, fewer):
        windows.launch()
    for whole, one, part in zip(alone.outputs, beside.outputs, fewer.outputs, strict=True):
        torch.testing.assert_close(whole, one, rtol=1e-12, atol=1e-12)
        first = whole[:66] if len(whole) == 1000 else whole[:, :66]
        torch.testing.assert_close(first, part, rtol=0, atol=0)


def test_other_networks(market):
    config = settings.replace(CONFIG, {"ppo.actor": (40, 24), "ppo.leaky_slope": 0.01})
    network, ranges = actor(market, config), some_windows(market, 100)
    assert can_play(network)
    windows = GpuWindows(market, ranges, network, config)
    check_windows(market, ranges, windows, network, config)
    assert_windows(windows.outputs, market, ranges, config, list(range(20)))


def test_a_captured_launch_plays_the_same(market, network):
    windows = GpuWindows(market, some_windows(market, 100), network, CONFIG)
    windows.launch()
    before = [tensor.clone() for tensor in windows.outputs]
    graph = captured(windows.launch)
    for tensor in windows.outputs:
        tensor.zero_()
    graph.replay()
    for one, other in zip(before, windows.outputs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_evaluation_of_windows_goes_through_it(market, network):
    config = settings.replace(CONFIG, {"evaluate.test": "200", "evaluate.step": "100"})
    found = windows_of_policy(Policy(network, config, market.scaling), market, config)
    spans = [window.span for window in found]
    assert len(found) > 5 and all(span.bars == 200 for span in spans)
    chosen = chosen_in(market, spans, network, config)
    own = play_policy(market, spans, network, config)
    for w, window in enumerate(found):
        np.testing.assert_array_equal(window.agent.action, chosen[: len(window.agent), w])
        assert np.mean(window.agent.action == own[w].action) > 0.95


def test_what_it_can_play_and_broken_networks(market, network):
    assert can_play(network)
    assert not can_play(build_critic(CONFIG, len(market.names)))
    broken = build_actor(CONFIG, len(market.names))
    with torch.no_grad():
        broken.policy_output.bias.fill_(float("nan"))
    for policy in ("greedy", "softmax"):
        with pytest.raises(Exception, match="the policy gave NaN in window 0 at step 0"):
            chosen_in(market, [Range(10, 20)], broken, settings.replace(CONFIG, {"evaluate.policy": policy}))
