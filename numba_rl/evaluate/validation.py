"""What a training is told while it goes on: the Sharpe ratio of its policy on the validation range.

With a GPU the choices are made there, where the actor fits its kernel (evaluate.player): bar after bar on the host, a validation takes
longer than the epochs between two of them.
"""

import logging
from collections.abc import Callable

import torch

from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.data.windows import Range
from numba_rl.errors import one_line
from numba_rl.evaluate.backtest import play_policy
from numba_rl.evaluate.metrics import compute_metrics, rank_value
from numba_rl.evaluate.player import Player
from numba_rl.rules.actions import ACTIONS
from numba_rl.trainer.checkpoint import Policy
from numba_rl.trainer.networks import build_actor

_log = logging.getLogger("numba_rl")


def validator(market: Market, config: Config, warn: Callable[[str], None] = _log.warning) -> Callable[[Policy], float]:
    """A function policy -> figure to be maximised: the Sharpe ratio per bar on the validation range, by `rank_value`.

    What it needs is compiled here: in the middle of a training a signal would have to wait for the compiler. warn: told in one line of
    a GPU that fails; from then on the CPU path plays.
    """
    window = market.validation

    def failed(error: Exception) -> None:
        warn(f"the GPU could not play the validation range ({one_line(error)}); it is played on the CPU path from now on")

    player = Player(market, config, failed)
    if window.stop - window.start >= 2:
        short = Range(window.start, window.start + 2)
        play_policy(market, [short], lambda states: torch.zeros(len(states), ACTIONS), config)
        if config.algorithm == "ppo":
            player.play_on_gpu(
                Policy(build_actor(config, len(market.names), torch.Generator().manual_seed(0)), config, market.scaling), [short]
            )

    def validate(policy: Policy) -> float:
        return rank_value(compute_metrics(player.play(policy, [window])[0]))

    return validate
