"""Windows stepped with any network, by kernels (simulated without a GPU), against the CPU path: the same choices and the same money."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from reference.trades import GAMES
from rules.driver import random_bars

from numba_rl import settings
from numba_rl.config import Config
from numba_rl.data.windows import Range
from numba_rl.errors import UserError
from numba_rl.evaluate import stepped
from numba_rl.evaluate.acting import Acting, form_of
from numba_rl.evaluate.backtest import play_policy
from numba_rl.evaluate.device import actions_of, equity_of, lay_out
from numba_rl.evaluate.stepped import SteppedWindows
from numba_rl.gpu import SIMULATED
from numba_rl.rules.routing import HIGH_VOLATILITY, LOW_VOLATILITY
from numba_rl.trainer.checkpoint import Policy
from numba_rl.trainer.dqn_networks import build_q_network
from numba_rl.trainer.networks import build_actor, build_critic

DEVICE = "cpu" if SIMULATED else "cuda"
FEATURES = 5
WINDOWS = [Range(5, 17), Range(4, 5), Range(20, 28), Range(3, 6)]
SMALL = {"dqn.hidden": (8, 6), "dqn.head": 4, "dqn.quantiles": 3, "ppo.actor": (8, 6)}
NETWORKS = {
    **{variant: {"algorithm": "dqn", "dqn.variant": variant} for variant in ("dueling", "noisy", "iqn", "branching", "exposure")},
    "deep actor": {"ppo.actor": (8, 6, 5)},
    "leaky actor": {"ppo.leaky_slope": 0.1},
}


def market_of(wild=False):
    """Small and without names; volatility regimes on both sides of where routing changes."""
    random = np.random.default_rng(4)
    prices = random_bars(random, 40, 0.08 if wild else 0.01)
    features = random.standard_normal((len(prices), FEATURES)).astype(np.float32)
    regime = random.uniform(LOW_VOLATILITY - 0.5, HIGH_VOLATILITY + 0.5, (len(prices), 3)).astype(np.float32)
    return SimpleNamespace(
        prices=prices, features=features, regime=regime, timestamp=60_000_000_000 * np.arange(len(prices)), bars_per_year=525_600.0,
        interval_ns=60_000_000_000, source="test",
    )  # fmt: skip


def config_of(name, changes=None):
    return settings.replace(Config(), SMALL | NETWORKS[name] | (changes or {}))


@torch.no_grad()
def network_of(config, seed=0):
    """A network with clear opinions."""
    build = build_q_network if config.algorithm == "dqn" else build_actor
    network = build(config, FEATURES, torch.Generator().manual_seed(seed))
    (network.advantage_output if config.algorithm == "dqn" else network.policy_output).weight.mul_(300.0)
    return network


def exact(market, network, config, windows=WINDOWS):
    return play_policy(market, windows, Policy(network, config, None), config)


def assert_same(windows, played):
    actions = actions_of(windows)
    for w, account in enumerate(played):
        n = len(account)
        assert int(windows.outputs.steps[w]) == n and not actions[n:, w].any()
        np.testing.assert_array_equal(actions[:n, w], account.action)
        np.testing.assert_allclose(windows.outputs.equity[:n, w].cpu().numpy(), account.equity[1:], rtol=1e-12)
    np.testing.assert_allclose(equity_of(windows), played[0].equity, rtol=1e-12)


@pytest.mark.parametrize("policy", ["greedy", "softmax"])
@pytest.mark.parametrize("name", NETWORKS)
def test_choices_and_money_are_the_cpu_path_s(name, policy):
    config, market = config_of(name, {"evaluate.policy": policy, "evaluate.temperature": 20.0}), market_of()
    first, second = network_of(config), network_of(config, 1)
    windows = SteppedWindows(market, WINDOWS, first, config, DEVICE)
    windows.prepare()
    windows.launch()
    assert_same(windows, exact(market, first, config))
    windows.load(second)
    windows.launch()
    played = exact(market, second, config)
    assert_same(windows, played)
    assert len(np.unique(np.concatenate([account.action for account in played]))) > 2


@pytest.mark.parametrize("name", ["ruin", "episodes"])
def test_other_games(name):
    config = config_of("exposure", GAMES[name])
    market, network = market_of(name == "ruin"), network_of(config)
    windows = SteppedWindows(market, WINDOWS, network, config, DEVICE)
    windows.launch()
    played = exact(market, network, config)
    assert_same(windows, played)
    assert any(account.terminated for account in played) == (name == "ruin")


def test_steps_past_the_end_of_all_windows_change_nothing(monkeypatch):
    """A graph has a fixed number of steps."""
    config, market = config_of("exposure"), market_of()
    network = network_of(config)
    windows = SteppedWindows(market, WINDOWS, network, config, DEVICE)
    windows.prepare()
    monkeypatch.setattr(stepped, "STEPS_A_GRAPH", 5)
    replayed = []

    def replay():
        replayed.append([windows._step() for _ in range(5)])

    windows._graph = SimpleNamespace(replay=replay)
    for _ in range(2):
        windows.launch()
        assert_same(windows, exact(market, network, config))
    assert len(replayed) == 2 * 3  # the longest has 12 steps


@pytest.mark.parametrize("part", ["advantage_output", "value_output", "stream_layer"])
@torch.no_grad()
def test_a_network_that_is_broken_anywhere_is_told(part):
    config, market = config_of("dueling"), market_of()
    network = network_of(config)
    windows = lay_out(market, WINDOWS, network, config, DEVICE)
    assert isinstance(windows, SteppedWindows)
    getattr(network, part).bias[0] = torch.nan
    windows.load(network)
    windows.launch()
    for read in (actions_of, equity_of):
        with pytest.raises(UserError, match="the policy gave NaN in window 0 at step 0"):
            read(windows)
    with pytest.raises(UserError, match="the policy gave NaN in window 0 at step 0"):
        exact(market, network, config)


@pytest.mark.parametrize("windows", [[Range(0, 1)], [Range(39, 41)], []])
def test_windows_that_cannot_be_played_are_named(windows):
    config, market = config_of("dueling"), market_of()
    with pytest.raises(UserError) as here:
        lay_out(market, windows, network_of(config), config, DEVICE)
    with pytest.raises(UserError) as there:
        exact(market, network_of(config), config, windows)
    assert str(here.value) == str(there.value)


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_are_the_networks_but_for_what_all_choices_share(name):
    config = config_of(name)
    network, states = network_of(config), torch.randn(7, FEATURES + 3, generator=torch.Generator().manual_seed(0))
    found = Acting(network, torch.device("cpu"))(states)
    with torch.no_grad():
        wanted = network.values(states) if name == "exposure" else network(states)
    torch.testing.assert_close(found.log_softmax(1), wanted.log_softmax(1), rtol=1e-5, atol=1e-4)


def test_only_networks_of_one_form_take_each_other_s_place():
    forms = [form_of(network_of(config_of(name))) for name in NETWORKS]
    forms += [form_of(network_of(config_of("iqn", {"dqn.quantiles": 4}))), form_of(network_of(config_of("dueling", {"dqn.head": 8})))]
    assert len(set(forms)) == len(forms) and None not in forms
    assert form_of(network_of(config_of("iqn"), 1)) == form_of(network_of(config_of("iqn")))
    critic = build_critic(settings.replace(Config(), {"ppo.critic": (8,)}), FEATURES)
    assert all(form_of(other) is None for other in (critic, torch.nn.Linear(8, 45), None))
