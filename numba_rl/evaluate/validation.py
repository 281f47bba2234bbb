"""What a training is told while it goes on: the Sharpe ratio of its policy on the validation range.

With a GPU the choices are those of kernels.backtest_policy, where the actor fits it: bar after bar on the host, a validation takes
longer than the epochs between two of them. The account is the float64 one of the CPU path either way.
"""

from collections.abc import Callable

import torch

from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.data.windows import Range
from numba_rl.errors import UserError
from numba_rl.evaluate.backtest import AccountingError, Backtest, play_policy
from numba_rl.evaluate.metrics import compute_metrics, rank_value
from numba_rl.evaluate.windows import play_spans
from numba_rl.rules.actions import ACTIONS
from numba_rl.trainer.checkpoint import Policy
from numba_rl.trainer.networks import build_actor


def validator(market: Market, config: Config) -> Callable[[Policy], float]:
    """A function policy -> figure to be maximised: the Sharpe ratio per bar on the validation range, by `rank_value`.

    What it needs is compiled here: in the middle of a training a signal would have to wait for the compiler.
    """
    window = market.validation
    play = _player(market, config)
    if window.stop - window.start >= 2:
        short = Range(window.start, window.start + 2)
        play_policy(market, [short], lambda states: torch.zeros(len(states), ACTIONS), config)
        if config.algorithm == "ppo":
            play(Policy(build_actor(config, len(market.names), torch.Generator().manual_seed(0)), config, market.scaling), short)

    def validate(policy: Policy) -> float:
        return rank_value(compute_metrics(play(policy, window)))

    return validate


def _player(market: Market, config: Config) -> Callable[[Policy, Range], Backtest]:
    """Plays a policy over a range, on a GPU while there is one that works."""
    on_gpu = config.algorithm == "ppo"

    def play(policy: Policy, span: Range) -> Backtest:
        nonlocal on_gpu
        if on_gpu:
            try:
                return play_spans(policy, market, [span], config)[0]
            except (UserError, AccountingError):
                raise
            except Exception:  # noqa: BLE001 - a driver's errors have no common class; the trainer meets them too, and says so
                on_gpu = False
        return play_policy(market, [span], policy, config)[0]

    return play
