"""The backtest kernel held against the CPU path's float64 accounts and against the network in float64, before it is timed."""

from collections.abc import Sequence

import numpy as np
import torch

from numba_rl import settings
from numba_rl.bench import games
from numba_rl.bench.rows import require
from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.data.windows import Range
from numba_rl.evaluate.backtest import Backtest, play_policy
from numba_rl.evaluate.device import GpuWindows
from numba_rl.evaluate.metrics import drawdowns, notional
from numba_rl.kernels.backtest_policy import FILLS, MAX_DRAWDOWN
from numba_rl.rules.actions import ACTIONS
from numba_rl.rules.philox import EVALUATE, uniform

CHECKED = 20  # windows of a launch, evenly spread
MONEY = 1e-9  # share of the capital
CHOICE = 1e-2  # of the fp16 network: log-probability below the best one, or place outside of the drawn action's interval


def replayed(market: Market, ranges: Sequence[Range], actions: np.ndarray, config: Config) -> tuple[list[Backtest], torch.Tensor]:
    """Given actions int [S, W] on the CPU path: (accounts, the states float32 [S, W, F + 3] that each was chosen in)."""
    states = []

    def policy(seen):
        states.append(seen.clone())
        return torch.nn.functional.one_hot(torch.from_numpy(actions[len(states) - 1].astype(np.int64)), ACTIONS).float()

    greedy = settings.replace(config, {"evaluate.policy": "greedy"})
    return play_policy(market, list(ranges), policy, greedy), torch.stack(states)


def totals_of(backtest: Backtest) -> np.ndarray:
    """TOTALS of the kernel, float64 [6], by the CPU path's account."""
    costs = [column.sum() for column in (backtest.fee, backtest.spread_cost, backtest.financing)]
    return np.array([*costs, notional(backtest).sum(), np.count_nonzero(backtest.traded), drawdowns(backtest.equity).max()])


def choice_error(log_probs: np.ndarray, actions: np.ndarray, uniforms: np.ndarray | None) -> float:
    """How far the worst of actions int [n] is from being the choice of log-probabilities float64 [n, 45]: log-probability below
    the best one; with uniforms float64 [n], place outside of the drawn action's interval."""
    rows = np.arange(len(actions))
    if uniforms is None:
        return float((log_probs.max(1) - log_probs[rows, actions]).max())
    probabilities = np.exp(log_probs)
    high = probabilities.cumsum(1)[rows, actions]
    low = high - probabilities[rows, actions]
    return float(np.maximum(np.maximum(uniforms - high, low - uniforms), 0.0).max())


def check_windows(market: Market, ranges: Sequence[Range], windows: GpuWindows, actor, config: Config) -> dict[str, float]:
    """Launches `windows` twice and raises OutputError unless both gave the same, and that was right; the largest errors.

    Of CHECKED windows every equity and total is compared with the CPU path's for the same actions, and every action with the
    network in float64 (`actor`, on the CPU) in the state that it was chosen in.
    """
    windows.launch()
    before = [tensor.clone() for tensor in windows.outputs]
    windows.launch()
    changed = sum(int((one != other).sum()) for one, other in zip(before, windows.outputs, strict=True))
    equity, actions, totals, steps, status = (tensor.cpu().numpy() for tensor in windows.outputs)
    some = np.unique(np.linspace(0, len(ranges) - 1, min(CHECKED, len(ranges))).astype(np.int64))
    exact, states = replayed(market, [ranges[w] for w in some], np.maximum(actions[:, some], 0), config)
    capital, temperature = config.market.initial_capital, config.evaluate.temperature
    greedy = config.evaluate.policy == "greedy"
    different, money, share, chosen, alike = [float(status.any())], [], [], [], []
    for k, (w, account) in enumerate(zip(some, exact, strict=True)):
        n, wanted = len(account), totals_of(account)
        apart = np.abs(totals[w] - wanted)
        different += [abs(int(steps[w]) - n), apart[FILLS]]
        share.append(apart[MAX_DRAWDOWN])
        money += [np.abs(equity[:n, w] - account.equity[1:]).max() / capital, (apart / np.maximum(wanted, capital))[:FILLS].max()]
        log_probs = games.log_policy(actor, states[:n, k])
        alike.append(log_probs.argmax(1).numpy() == actions[:n, w])
        uniforms = None
        if not greedy:
            log_probs = torch.log_softmax(log_probs / temperature, 1)
            uniforms = np.array([uniform(config.train.seed, EVALUATE, int(w), 0, t, 0) for t in range(n)])
        chosen.append(choice_error(log_probs.numpy(), actions[:n, w], uniforms))
    found = {"rerun_different": float(changed), "integers_different": float(np.sum(different))}
    largest = {"money_error": money, "drawdown_error": share, "choice_error": chosen}
    found |= {name: float(np.max(values)) for name, values in largest.items()}  # NaN where one is NaN
    if greedy:
        found["same_choices"] = float(np.concatenate(alike).mean())
    limits = {"rerun_different": 0.0, "integers_different": 0.0, "money_error": MONEY, "drawdown_error": MONEY, "choice_error": CHOICE}
    holds = all(found[name] <= limit for name, limit in limits.items())
    return require(holds, "the backtest", found)
