"""What any agent has to beat: buy and hold, doing nothing, and trading as much at random, under the same costs."""

import numpy as np
from numba import njit

from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.data.windows import Range
from numba_rl.evaluate.backtest import Backtest, decision_range, play_actions
from numba_rl.rules.actions import EXPOSURES, FLAT, MARKET, NORMAL, compose
from numba_rl.rules.philox import BASELINE, below, uniform

# Mean size of a change between two exposures drawn evenly from -1, -0.5, 0, 0.5, 1.
MEAN_CHANGE = 0.8


def buy_and_hold(market: Market, window: Range, config: Config) -> Backtest:
    """Long at the first chance by a market order of normal urgency, closed at the end; the same sizing and costs."""
    return _constant(market, window, config, EXPOSURES - 1, "buy and hold")


def flat(market: Market, window: Range, config: Config) -> Backtest:
    """Never in the market."""
    return _constant(market, window, config, FLAT, "flat")


def _constant(market, window, config, exposure, name):
    played = decision_range(window)
    actions = np.full((played.stop - 1 - played.start, 1), compose(exposure, MARKET, NORMAL), np.int32)
    return play_actions(market, [window], actions, config, names=[name])[0]


def turnover_per_step(backtest: Backtest) -> float:
    """Mean size of the exposure's change a step, the first step measured from flat."""
    return float(np.mean(np.abs(np.diff(backtest.exposure, prepend=0.0)))) if len(backtest) else 0.0


def random_agents(
    market: Market, window: Range, config: Config, *, turnover: float, paths: int = 100, seed: int = 0
) -> list[Backtest]:
    """`paths` agents that ask for an evenly drawn exposure at random moments, as often as gives `turnover` a step.

    Orders are market orders of normal urgency. A turnover above 0.8 a step cannot be reached at random and is cut there.
    """
    played = decision_range(window)
    chance = min(turnover / MEAN_CHANGE, 1.0)
    actions = random_actions(played.stop - 1 - played.start, paths, chance, seed)
    names = [f"random {path}" for path in range(paths)]
    return play_actions(market, [window] * paths, actions, config, names=names)


@njit(error_model="numpy")
def random_actions(steps, paths, chance, seed):
    """int32 [steps, paths]: each path keeps its exposure, and draws a new one with probability `chance` a step."""
    actions = np.zeros((steps, paths), np.int32)
    for path in range(paths):
        exposure = FLAT
        for step in range(steps):
            if uniform(seed, BASELINE, path, 0, step, 0) < chance:
                exposure = np.int64(below(EXPOSURES, seed, BASELINE, path, 0, step, 1))
            actions[step, path] = compose(exposure, MARKET, NORMAL)
    return actions
