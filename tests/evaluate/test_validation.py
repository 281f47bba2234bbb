"""What a training is told of its policy: the figure of the validation range, by the GPU's kernel where there is one that works."""

import numpy as np
import pytest
import torch

from numba_rl import settings
from numba_rl.config import Config
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.data.windows import Range
from numba_rl.errors import UserError
from numba_rl.evaluate import player, validation
from numba_rl.evaluate.backtest import play_policy
from numba_rl.evaluate.metrics import compute_metrics, rank_value
from numba_rl.evaluate.validation import validator
from numba_rl.rules.actions import FLAT, MARKET, NORMAL, compose
from numba_rl.trainer.checkpoint import Policy
from numba_rl.trainer.dqn_networks import build_q_network
from numba_rl.trainer.networks import build_actor

CONFIG = settings.replace(Config(), {"data.bars_per_year": 525_600.0})


@pytest.fixture(scope="module")
def market():
    return load_market(CONFIG, generate("mean_reverting", 4000, 1).bars)


def policy_of(market, seed):
    network = build_actor(CONFIG, len(market.names), torch.Generator().manual_seed(seed))
    with torch.no_grad():
        network.policy_output.weight.mul_(100.0)
    return Policy(network, CONFIG, market.scaling)


def sharpe(market, policy):
    return compute_metrics(play_policy(market, [market.validation], policy, CONFIG)[0])["sharpe_per_bar"]


def test_it_is_the_sharpe_ratio_of_the_validation_range(market):
    validate = validator(market, CONFIG)
    found = [validate(policy_of(market, seed)) for seed in (1, 2)]
    assert found == [sharpe(market, policy_of(market, seed)) for seed in (1, 2)] and found[0] != found[1]


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_policy_that_stays_flat_lies_above_one_that_loses(market, algorithm):
    flat, loser = policy_of(market, 1), policy_of(market, 2)
    stay = compose(FLAT, MARKET, NORMAL)
    with torch.no_grad():
        flat.network.policy_output.bias[stay] = 1e9
    validate = validator(market, settings.replace(CONFIG, {"algorithm": algorithm}))
    assert sharpe(market, flat) is None and validate(flat) == 0.0
    assert sharpe(market, loser) == validate(loser) < 0.0


def on_gpu(monkeypatch, play):
    """Claims that there is a GPU, on which `play` chooses the actions."""
    monkeypatch.setattr(player, "can_play", lambda network: True)
    monkeypatch.setattr(player, "actions_on_gpu", play)


def test_a_gpu_that_fails_is_told_once_and_not_asked_again(market, monkeypatch, caplog):
    asked, said = [], []

    def broken(*arguments):
        asked.append(arguments)
        raise RuntimeError("CUDA_ERROR_LAUNCH_FAILED\nin a kernel")

    on_gpu(monkeypatch, broken)
    validate = validator(market, CONFIG, said.append)
    for seed in (1, 2):
        assert validate(policy_of(market, seed)) == sharpe(market, policy_of(market, seed))
    assert len(asked) == 1
    line = "the GPU could not play the validation range (CUDA_ERROR_LAUNCH_FAILED in a kernel); it is played on the CPU path from now on"
    assert said == [line]
    validator(market, CONFIG)
    assert line in caplog.text, "told to the log where nobody else asks for it"


@pytest.mark.parametrize(("algorithm", "gpu", "ways"), [("ppo", False, ["CPU"]), ("ppo", True, ["CPU", "GPU"]), ("dqn", True, ["CPU"])])
def test_each_way_to_play_is_compiled_once_before_it_is_needed(market, monkeypatch, algorithm, gpu, ways):
    played, short = [], Range(market.validation.start, market.validation.start + 2)

    def on_cpu(market, spans, *arguments):
        played.append(("CPU", spans))
        return play_policy(market, spans, *arguments)

    def choose(market, spans, *arguments):
        played.append(("GPU", spans))
        return np.zeros((2, 1), np.int32)

    for module in (validation, player):
        monkeypatch.setattr(module, "play_policy", on_cpu)
    if gpu:
        on_gpu(monkeypatch, choose)
    validator(market, settings.replace(CONFIG, {"algorithm": algorithm}))
    assert played == [(way, [short]) for way in ways]


def test_what_is_wrong_with_the_policy_is_not_blamed_on_the_gpu(market, monkeypatch):
    def broken(*arguments):
        raise UserError("the policy gave NaN")

    validate = validator(market, CONFIG)
    on_gpu(monkeypatch, broken)
    for _ in range(2):
        with pytest.raises(UserError, match="gave NaN"):
            validate(policy_of(market, 1))


def test_no_gpu_is_asked_where_it_is_not_wanted_or_cannot_play(market, monkeypatch):
    monkeypatch.setattr(player, "actions_on_gpu", None)
    config = settings.replace(CONFIG, {"algorithm": "dqn"})
    network = build_q_network(config, len(market.names))
    played = play_policy(market, [market.validation], Policy(network, config, market.scaling), config)[0]
    assert validator(market, config)(Policy(network, config, market.scaling)) == rank_value(compute_metrics(played))
    monkeypatch.setattr(player, "can_play", None)
    on_cpu = settings.replace(CONFIG, {"train.device": "cpu"})
    assert validator(market, on_cpu)(policy_of(market, 1)) == sharpe(market, policy_of(market, 1))


@pytest.mark.gpu
def test_the_kernel_s_figure_is_that_of_the_host_but_for_equal_choices(market, monkeypatch):
    validate = validator(market, CONFIG)
    monkeypatch.setattr(player, "play_policy", None)
    for seed in (1, 2):
        assert validate(policy_of(market, seed)) == pytest.approx(sharpe(market, policy_of(market, seed)), rel=0.05, abs=0.01)
