"""What a training is told while it goes on: what its policy earns on the validation range.

With a GPU all of it is played there (evaluate.player): bar after bar on the host, a validation takes longer than the epochs between two
of them.
"""

import logging
from collections.abc import Callable

import torch

from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.errors import one_line
from numba_rl.evaluate.player import Player
from numba_rl.trainer.checkpoint import Policy
from numba_rl.trainer.dqn_networks import build_q_network
from numba_rl.trainer.networks import build_actor

_log = logging.getLogger("numba_rl")


def validator(market: Market, config: Config, warn: Callable[[str], None] = _log.warning) -> Callable[[Policy], float]:
    """A function policy -> figure to be maximised: that of train.validate_by on the validation range.

    What it needs is compiled here: in the middle of a training a signal would have to wait for the compiler. warn: told in one line of
    a GPU that fails; from then on the CPU path plays.
    """
    window = market.validation

    def failed(error: Exception) -> None:
        warn(f"the GPU could not play the validation range ({one_line(error)}); it is played on the CPU path from now on")

    player = Player(market, config, failed)
    if window.stop - window.start >= 2:
        player.warm_up(_untrained(market, config) if player.on_gpu else None, window)

    return lambda policy: player.rank(policy, window)


def _untrained(market: Market, config: Config) -> Policy:
    build = build_actor if config.algorithm == "ppo" else build_q_network
    return Policy(build(config, len(market.names), torch.Generator().manual_seed(0)), config, market.scaling)
