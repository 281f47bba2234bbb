"""What a training is told of its policy: the figure of the validation range, wholly by the GPU where there is one that works."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from numba_rl import settings
from numba_rl.config import Config
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.data.windows import Range
from numba_rl.errors import UserError
from numba_rl.evaluate import player
from numba_rl.evaluate.backtest import play_actions, play_policy
from numba_rl.evaluate.device import GpuWindows, SteppedWindows
from numba_rl.evaluate.metrics import compute_metrics, rank_of_equity, rank_value
from numba_rl.evaluate.validation import validator
from numba_rl.gpu import SIMULATED
from numba_rl.rules.actions import ACTIONS, FLAT, MARKET, NORMAL, compose
from numba_rl.trainer.checkpoint import Policy
from numba_rl.trainer.dqn_networks import build_q_network
from numba_rl.trainer.networks import build_actor

CONFIG = settings.replace(Config(), {"data.bars_per_year": 525_600.0})
SMALL = settings.replace(CONFIG, {"ppo.actor": (8, 6), "dqn.hidden": (8,), "dqn.head": 4})
STAY, LONG = compose(FLAT, MARKET, NORMAL), compose(FLAT + 2, MARKET, NORMAL)
VARIANTS = ("dueling", "noisy", "iqn", "branching", "exposure")
LINE = "the GPU could not play the validation range (CUDA_ERROR_LAUNCH_FAILED in a kernel); it is played on the CPU path from now on"


@pytest.fixture(scope="module")
def market():
    return load_market(CONFIG, generate("mean_reverting", 4000, 1).bars)


@torch.no_grad()
def policy_of(market, seed, config=CONFIG, always=None):
    """A policy with clear opinions; `always`: one that prefers this action."""
    build = build_actor if config.algorithm == "ppo" else build_q_network
    network = build(config, len(market.names), torch.Generator().manual_seed(seed))
    last = network.policy_output if config.algorithm == "ppo" else network.advantage_output
    last.weight.mul_(100.0)
    if always is not None:
        last.bias[always] = 1e4
    return Policy(network, config, market.scaling)


def exactly(market, policy, config=CONFIG):
    """The figure on the CPU path."""
    return rank_of_equity(play_policy(market, [market.validation], policy, config)[0].equity, config.train.validate_by)


def sharpe(market, policy):
    return compute_metrics(play_policy(market, [market.validation], policy, CONFIG)[0])["sharpe_per_bar"]


def grown(market, policy):
    equity = play_policy(market, [market.validation], policy, CONFIG)[0].equity
    return math.log(equity[-1] / equity[0])


@pytest.mark.parametrize(("by", "figure"), [("log_return", grown), ("sharpe", sharpe)])
def test_it_is_the_chosen_figure_of_the_validation_range(market, by, figure):
    validate = validator(market, settings.replace(CONFIG, {"train.device": "cpu", "train.validate_by": by}))
    found = [validate(policy_of(market, seed)) for seed in (1, 2)]
    assert found == pytest.approx([figure(market, policy_of(market, seed)) for seed in (1, 2)], rel=1e-12) and found[0] != found[1]


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_policy_that_stays_flat_is_better_than_one_that_loses(market, algorithm):
    flat, loser = policy_of(market, 1, always=STAY), policy_of(market, 2)
    validate = validator(market, settings.replace(CONFIG, {"algorithm": algorithm}))
    assert validate(flat) == 0.0 > validate(loser) > -math.inf


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_by_the_sharpe_ratio_a_policy_that_stays_flat_is_never_the_best(market, algorithm):
    flat, loser = policy_of(market, 1, always=STAY), policy_of(market, 2)
    validate = validator(market, settings.replace(CONFIG, {"algorithm": algorithm, "train.validate_by": "sharpe"}))
    assert sharpe(market, flat) is None and validate(flat) == -math.inf
    assert sharpe(market, loser) < 0.0 and validate(loser) > -math.inf


# ---------------------------------------------------------------------------------------------------- the figure from the equity alone

GAMES = {
    "default": {}, "levered": {"market.leverage": 3.0}, "ruinous": {"market.leverage": 20.0, "market.taker_bps": 200.0},
    "short episodes": {"episodes.length": 7},
}  # fmt: skip


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("kind", ["mean_reverting", "random_walk"])
def test_equity_alone_gives_the_same_figure(kind, game):
    config = settings.replace(CONFIG, GAMES[game])
    market = load_market(config, generate(kind, 1500, 2).bars)
    random = np.random.default_rng(0)
    figures, ruined = [], 0
    for length in (1, 2, 3, 40, 500):
        chosen = [np.full(length + 1, STAY), np.full(length + 1, LONG), random.integers(0, ACTIONS, length + 1)]
        span, actions = Range(100, 100 + length), np.stack(chosen, 1).astype(np.int32)
        for account in play_actions(market, [span] * len(chosen), actions, config, names=["flat", "long", "random"]):
            figures.append(rank_of_equity(account.equity, "sharpe"))
            ruined += account.terminated
            assert figures[-1] == rank_value(compute_metrics(account)["sharpe_per_bar"]), (length, account.name)
    assert -math.inf in figures and len(set(figures)) > 4
    assert (ruined > 0) == (game == "ruinous")


def test_equity_that_is_no_number_ranks_last():
    for equity in ([1.0, math.nan, 2.0], [1.0, 2.0], [1.0, 1.0, 1.0]):
        assert rank_of_equity(np.array(equity), "sharpe") == -math.inf
    for equity in ([1.0, 2.0, math.nan], [math.nan, 2.0], [1.0, math.inf], [1.0, 0.0], [1.0, -2.0]):
        assert rank_of_equity(np.array(equity), "log_return") == -math.inf
    assert rank_of_equity(np.array([1.0, 1.0, 1.0]), "log_return") == 0.0


# ---------------------------------------------------------------------------------------------------- wholly by kernels


def on_gpu(monkeypatch, lay_out):
    """Claims that there is a GPU, on which `lay_out` lays windows out."""
    monkeypatch.setattr(player, "usable", lambda: True)
    monkeypatch.setattr(player, "lay_out", lay_out)


def without_cpu_path(monkeypatch):
    monkeypatch.setattr(player, "play_policy", None)
    monkeypatch.setattr(player, "play_actions", None)


@pytest.mark.skipif(not SIMULATED, reason="tiny shapes of the simulator; the real ones are below")
@pytest.mark.parametrize(("game", "bars"), [("default", 2), ("default", 13), ("ruinous", 13)])
@pytest.mark.parametrize("way", [GpuWindows, SteppedWindows])
def test_kernels_alone_give_the_figure_of_the_cpu_path(market, monkeypatch, way, game, bars):
    start = market.validation.start + 5
    few = np.ascontiguousarray(market.features[:, :5])  # the simulator is slow
    market = replace(market, validation=Range(start, start + bars), features=few, names=market.names[:5])
    config, laid_out = settings.replace(SMALL, GAMES[game]), []

    def lay_out(*arguments):
        laid_out.append(way(*arguments, "cpu"))
        return laid_out[-1]

    policies = [policy_of(market, 3, config, always) for always in (STAY, LONG, None)]
    wanted = [exactly(market, policy, config) for policy in policies]
    with monkeypatch.context() as patch:
        on_gpu(patch, lay_out)
        without_cpu_path(patch)
        validate = validator(market, config)
        found = [validate(policy) for policy in policies]
    assert found == pytest.approx(wanted, rel=1e-12, abs=1e-12)
    assert found[0] == 0.0 and (bars == 2 or len(set(found)) == 3)
    assert len(laid_out) == 1, "what was laid out is used again"


@pytest.mark.skipif(not SIMULATED, reason="tiny shapes of the simulator")
def test_another_form_or_range_is_laid_out_anew(market, monkeypatch):
    on_gpu(monkeypatch, lambda *arguments: SteppedWindows(*arguments, "cpu"))
    players = player.Player(market, SMALL, lambda error: None)
    short, longer = Range(50, 53), Range(60, 64)
    dqn = settings.replace(SMALL, {"algorithm": "dqn"})
    for spans, config in (([short], SMALL), ([short, longer], SMALL), ([short, longer], dqn), ([longer], dqn)):
        policy = policy_of(market, 1, config)
        found = players.play(policy, spans)
        for account, wanted in zip(found, play_policy(market, spans, policy, config), strict=True):
            np.testing.assert_array_equal(account.equity, wanted.equity)
            np.testing.assert_array_equal(account.action, wanted.action)


# ---------------------------------------------------------------------------------------------------- a GPU that fails, or is not there


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_gpu_that_fails_is_told_once_and_not_asked_again(market, monkeypatch, caplog, algorithm):
    asked, said = [], []
    config = settings.replace(CONFIG, {"algorithm": algorithm})

    def broken(*arguments):
        asked.append(arguments)
        raise RuntimeError("CUDA_ERROR_LAUNCH_FAILED\nin a kernel")

    on_gpu(monkeypatch, broken)
    validate = validator(market, config, said.append)
    assert len(asked) == 1 and said == [LINE]
    policy = policy_of(market, 1, config)
    assert validate(policy) == exactly(market, policy, config)
    assert len(asked) == 1 and said == [LINE]
    validator(market, config)
    assert LINE in caplog.text, "told to the log where nobody else asks for it"


class Breaks:
    """Windows that are laid out and prepared, but cannot be launched."""

    def __init__(self, *arguments):
        self.outputs = SteppedOutputs

    def prepare(self):
        pass

    def load(self, network):
        pass

    def launch(self):
        raise RuntimeError("CUDA_ERROR_LAUNCH_FAILED\nin a kernel")


class SteppedOutputs:
    steps = torch.zeros(1, dtype=torch.int32)


def test_a_gpu_that_fails_later_is_told_then(market, monkeypatch):
    said, policy = [], policy_of(market, 1)
    on_gpu(monkeypatch, Breaks)
    validate = validator(market, CONFIG, said.append)
    assert said == []
    assert [validate(policy) for _ in range(2)] == [exactly(market, policy)] * 2
    assert said == [LINE]


@pytest.mark.parametrize(("algorithm", "gpu", "ways"), [("ppo", False, ["CPU"]), ("ppo", True, ["GPU"]), ("dqn", True, ["GPU"])])
def test_what_will_be_needed_is_compiled_and_nothing_else(market, monkeypatch, algorithm, gpu, ways):
    played, short = [], Range(market.validation.start, market.validation.start + 2)

    def on_cpu(market, spans, *arguments):
        assert spans == [short]
        played.append("CPU")
        return play_policy(market, spans, *arguments)

    class Prepared(Breaks):
        def __init__(self, market, spans, *arguments):
            super().__init__()
            assert spans == [market.validation]

        def prepare(self):
            played.append("GPU")

    monkeypatch.setattr(player, "play_policy", on_cpu)
    if gpu:
        on_gpu(monkeypatch, Prepared)
    else:
        monkeypatch.setattr(player, "usable", lambda: False)
    validator(market, settings.replace(CONFIG, {"algorithm": algorithm}))
    assert played == ways


def test_what_is_wrong_with_the_policy_is_not_blamed_on_the_gpu(market, monkeypatch):
    class Broken(Breaks):
        def launch(self):
            raise UserError("the policy gave NaN")

    on_gpu(monkeypatch, Broken)
    said = []
    validate = validator(market, CONFIG, said.append)
    for _ in range(2):
        with pytest.raises(UserError, match="gave NaN"):
            validate(policy_of(market, 1))
    assert said == []


def test_no_gpu_is_asked_where_it_is_not_wanted_or_cannot_play(market, monkeypatch):
    on_gpu(monkeypatch, None)
    on_cpu = settings.replace(CONFIG, {"train.device": "cpu"})
    assert validator(market, on_cpu)(policy_of(market, 1)) == exactly(market, policy_of(market, 1))
    unknown = Policy(torch.nn.Linear(len(market.names) + 3, ACTIONS), CONFIG, market.scaling)
    found = player.Player(market, CONFIG, lambda error: None).rank(unknown, market.validation)
    assert found == exactly(market, unknown)


# ---------------------------------------------------------------------------------------------------- on a GPU

REAL = {
    "fitting actor": {}, "deep actor": {"ppo.actor": (64, 64, 32)}, "leaky deep actor": {"ppo.actor": (64, 64, 32), "ppo.leaky_slope": 0.01},
    **{variant: {"algorithm": "dqn", "dqn.variant": variant} for variant in VARIANTS},
}  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("drawn", ["greedy", "softmax"])
@pytest.mark.parametrize("name", REAL)
def test_a_gpu_s_figure_is_the_cpu_path_s(market, monkeypatch, name, drawn):
    config = settings.replace(CONFIG, REAL[name] | {"evaluate.policy": drawn, "evaluate.temperature": 5.0})
    said = []
    with monkeypatch.context() as patch:
        without_cpu_path(patch)
        validate = validator(market, config, said.append)
        found = [validate(policy_of(market, seed, config)) for seed in (1, 2)]
        assert validate(policy_of(market, 1, config)) == found[0]
    assert said == [] and found[0] != found[1]
    for seed, figure in zip((1, 2), found, strict=True):
        policy = policy_of(market, seed, config)
        actions = chosen_on_gpu(market, policy, config)
        played = play_policy(market, [market.validation], policy, config)[0]
        same = np.mean(actions[: len(played), 0] == played.action)
        assert same > (0.97 if name == "fitting actor" else 0.995)  # the kernel's network is fp16; float32 differs at ties alone
        replayed = play_actions(market, [market.validation], actions, config, names=["replayed"])[0]
        assert figure == pytest.approx(rank_of_equity(replayed.equity, config.train.validate_by), rel=1e-9, abs=1e-12)
        if same == 1.0:
            assert figure == pytest.approx(exactly(market, policy, config), rel=1e-6)


def chosen_on_gpu(market, policy, config):
    windows = player.lay_out(market, [market.validation], policy.network, config)
    windows.launch()
    return player.actions_of(windows)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["dueling", "exposure"])
def test_many_windows_go_the_same_way(market, name):
    """More than a block and of other lengths than a graph has steps; the accounts are those of the actions in float64."""
    config = settings.replace(CONFIG, REAL[name])
    policy, said = policy_of(market, 1, config), []
    spans = [Range(start, start + 1 + start % 131) for start in range(1, 2000, 17)]
    found = player.Player(market, config, said.append).play(policy, spans)
    same = [account.action == wanted.action for account, wanted in zip(found, play_policy(market, spans, policy, config), strict=True)]
    assert said == [] and np.mean(np.concatenate(same)) > 0.995


COMPILED = """
import json, sys, torch
from numba_rl import settings
from numba_rl.config import Config
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.evaluate.validation import validator
from numba_rl.kernels import backtest, route
from numba_rl.trainer.checkpoint import Policy
from numba_rl.trainer.dqn_networks import build_q_network
from numba_rl.trainer.networks import build_actor

config = settings.replace(Config(), {"data.bars_per_year": 525_600.0} | json.loads(sys.argv[1]))
market = load_market(config, generate("mean_reverting", 4000, 1).bars)
build = build_actor if config.algorithm == "ppo" else build_q_network
said = []
validator(market, config, said.append)(Policy(build(config, len(market.names)), config, market.scaling))
functions = [backtest.open_windows, backtest.play_windows, backtest.play_given, route.route_cpu]
print(json.dumps([said, [len(function.signatures) for function in functions]]))
"""


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("changes", "compiled"),
    [({}, [0, 0, 0, 0]), ({"algorithm": "dqn", "dqn.variant": "exposure"}, [0, 0, 0, 0]), ({"train.device": "cpu"}, [1, 1, 0, 0])],
    ids=["ppo", "dqn", "cpu"],
)
def test_a_gpu_compiles_nothing_of_the_cpu_path(changes, compiled):
    done = subprocess.run([sys.executable, "-c", COMPILED, json.dumps(changes)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[], compiled]
