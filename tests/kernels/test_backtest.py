"""The backtest kernel in the simulator against the CPU path: the same choices but for near ties, the same money given them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from reference.trades import GAMES, account, assert_fills, assert_windows
from rules.driver import random_bars

from numba_rl import settings
from numba_rl.bench.backtest import check_windows
from numba_rl.bench.rows import OutputError
from numba_rl.config import Config
from numba_rl.data.windows import Range
from numba_rl.evaluate.device import GpuWindows
from numba_rl.gpu import SIMULATED
from numba_rl.trainer.networks import build_actor

pytestmark = pytest.mark.skipif(not SIMULATED, reason="tiny shapes of the simulator; test_backtest_gpu has the real ones")

FEATURES = 5
WINDOWS = [Range(3, 9), Range(9, 15), Range(4, 5), Range(20, 28), Range(1, 4), Range(30, 38), Range(31, 33), Range(10, 18), Range(2, 10)]
CONFIG = settings.replace(Config(), {"ppo.actor": (8, 6)})


def market_of(wild=False):
    prices = random_bars(np.random.default_rng(4), 40, 0.08 if wild else 0.01)
    features = np.random.default_rng(9).standard_normal((len(prices), FEATURES)).astype(np.float16).astype(np.float32)
    stamps = 60_000_000_000 * np.arange(len(prices))
    return SimpleNamespace(
        prices=prices, features=features, timestamp=stamps, bars_per_year=525_600.0, interval_ns=60_000_000_000, source="test"
    )


@torch.no_grad()
def network():
    built = build_actor(CONFIG, FEATURES, torch.Generator().manual_seed(0))
    built.policy_output.weight.mul_(300.0)
    return built


def play(config, market, actor, windows=WINDOWS, groups=1):
    """(equity, actions, totals, steps, status) of the kernel over the windows, NumPy."""
    played = GpuWindows(market, windows, actor, config, "cpu", groups=groups)
    played.launch()
    return tuple(tensor.numpy() for tensor in played.outputs)


@pytest.mark.parametrize("name", GAMES)
def test_choices_are_the_policys_and_money_is_the_ledgers(name):
    config = settings.replace(CONFIG, GAMES[name])
    market, actor = market_of(name in ("ruin", "gap")), network()
    windows = GpuWindows(market, WINDOWS, actor, config, "cpu", groups=2 if name == "dear" else 1)
    check_windows(market, WINDOWS, windows, actor, config)
    replay, trips = assert_windows(windows.outputs, market, WINDOWS, config, list(range(len(WINDOWS))))
    assert trips > len(WINDOWS) and len(np.unique(np.concatenate([backtest.action for backtest in replay]))) > 2
    assert any(backtest.terminated for backtest in replay) == (name in ("ruin", "gap"))


@pytest.mark.parametrize("name", ["default", "dear"])
def test_every_fill_is_the_ledgers(name):
    """Windows that begin together and end one bar later each: what the totals grow by is one bar's fills, bar by bar."""
    config = settings.replace(CONFIG, GAMES[name])
    market = market_of()
    windows = [Range(12, stop) for stop in range(13, 21)]
    equity, actions, totals, steps, _ = play(config, market, network(), windows)
    fills = 0
    for w, window in enumerate(windows):
        n = window.bars
        assert steps[w] == n and (actions[:n, w] == actions[:n, -1]).all()
        expected = account(config, market.bars_per_year, market.prices, window.start - 1, window.stop, actions[:, w])
        assert_fills(equity[:n, w], totals[w], expected, config.market)
        fills = len(expected.fills)
    assert fills > 4


class Wrong:
    """Windows whose launch goes wrong afterwards in one place."""

    def __init__(self, windows, change):
        self.windows, self.outputs, self.change = windows, windows.outputs, change

    def launch(self):
        self.windows.launch()
        self.change(self.outputs)


def other_action(outputs):
    outputs.actions[2, 3] = (outputs.actions[2, 3] + 9) % 45


FAULTS = {
    "money": lambda outputs: outputs.equity[1, 0].mul_(1 + 1e-7),
    "no number": lambda outputs: outputs.equity[1, 0].fill_(float("nan")),
    "fees": lambda outputs: outputs.totals[3, 0].add_(0.01),
    "traded": lambda outputs: outputs.totals[3, 3].mul_(1 + 1e-6),
    "fills": lambda outputs: outputs.totals[5, 4].add_(1),
    "drawdown": lambda outputs: outputs.totals[5, 5].add_(1e-6),
    "steps": lambda outputs: outputs.steps[7].sub_(1),
    "status": lambda outputs: outputs.status[1].add_(1),
    "action": other_action,
    "not the same twice": lambda outputs: outputs.equity[0, 1].add_(torch.rand(())),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_outputs_are_not_timed(fault):
    market, actor = market_of(), network()
    windows = Wrong(GpuWindows(market, WINDOWS, actor, CONFIG, "cpu"), FAULTS[fault])
    with pytest.raises(OutputError, match="the backtest is not timed"):
        check_windows(market, WINDOWS, windows, actor, CONFIG)


@pytest.mark.parametrize("policy", ["greedy", "softmax"])
def test_choices_that_are_not_the_networks_are_told(policy):
    """Another network's choices are played right, but are not this one's."""
    market, actor, other = market_of(), network(), network()
    with torch.no_grad():
        other.policy_output.bias += torch.linspace(-1.0, 1.0, 45)
    config = settings.replace(CONFIG, {"evaluate.policy": policy})
    with pytest.raises(OutputError, match="choice_error"):
        check_windows(market, WINDOWS, GpuWindows(market, WINDOWS, other, config, "cpu"), actor, config)


def test_a_window_does_not_depend_on_its_neighbours():
    market, actor = market_of(), network()
    one, two = play(CONFIG, market, actor, groups=1), play(CONFIG, market, actor, groups=2)
    for first, second in zip(one, two, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("policy", ["greedy", "softmax"])
def test_broken_networks_are_told(policy):
    actor = network()
    with torch.no_grad():
        actor.policy_output.bias.fill_(float("nan"))
    *_, status = play(settings.replace(CONFIG, {"evaluate.policy": policy}), market_of(), actor)
    assert (status == 1).all()
