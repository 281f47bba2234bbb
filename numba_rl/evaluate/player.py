"""Playing policies over ranges of a market: on a GPU while there is one that works, else on the CPU path."""

from collections.abc import Callable
from typing import TypeVar

import torch

from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.data.windows import Range
from numba_rl.errors import UserError
from numba_rl.evaluate.acting import form_of
from numba_rl.evaluate.backtest import Backtest, play_actions, play_policy
from numba_rl.evaluate.device import GpuWindows, SteppedWindows, actions_of, equity_of, lay_out, usable
from numba_rl.evaluate.metrics import rank_of_equity
from numba_rl.rules.actions import ACTIONS

T = TypeVar("T")
Windows = GpuWindows | SteppedWindows


class Player:
    """Plays policies over ranges of one market, all ranges at once and each on an account of its own.

    On a GPU the choices are those of the network in fp16 where it fits kernels.backtest_policy, else in float32. What was laid out there
    is kept for the next policy of the same form on the same ranges. A GPU that fails is told once to `failed`, within the handler of its
    error, and is not asked again; until then nothing of the CPU path is compiled, but for the ledger of `play`.
    """

    def __init__(self, market: Market, config: Config, failed: Callable[[Exception], None]):
        self.market, self.config = market, config
        self._failed = failed
        self._gpu = config.train.device != "cpu"  # whether it is worth asking
        self._kept: tuple[tuple, Windows] | None = None

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU is asked first."""
        return self._gpu and usable()

    def play(self, policy, spans: list[Range]) -> list[Backtest]:
        """Play `policy` (as `play_policy` takes it) over `spans`, in float64 either way. Raises what `play_policy` raises."""
        actions = self._on_gpu(policy, spans, _actions)
        if actions is None:
            return play_policy(self.market, spans, policy, self.config)
        return play_actions(self.market, spans, actions, self.config, names=[f"window {w}" for w in range(len(spans))])

    def rank(self, policy, span: Range) -> float:
        """The figure of train.validate_by of the policy over one range. Raises what `play_policy` raises."""
        equity = self._on_gpu(policy, [span], _equity)
        if equity is None:
            equity = play_policy(self.market, [span], policy, self.config)[0].equity
        return rank_of_equity(equity, self.config.train.validate_by)

    def warm_up(self, policy, span: Range) -> None:
        """Compile what `rank` needs for policies like this one, which may be None where no GPU is asked, on this range."""
        if not self._on_gpu(policy, [span], _prepared):
            short = Range(span.start, span.start + 2)
            play_policy(self.market, [short], lambda states: torch.zeros(len(states), ACTIONS), self.config)

    def _on_gpu(self, policy, spans: list[Range], work: Callable[[Windows], T]) -> T | None:
        """`work` on the laid out windows. None: there is no GPU, it fails or has failed, or the policy's network has no form for it."""
        network = getattr(policy, "network", None)
        form = form_of(network)
        if form is None or not self.on_gpu:
            return None
        try:
            return work(self._laid_out(network, (tuple(spans), form)))
        except UserError:
            raise
        except Exception as error:  # noqa: BLE001 - out of memory, a compiler's and a driver's errors have no common class
            self._gpu, self._kept = False, None
            self._failed(error)
            return None

    def _laid_out(self, network, key: tuple) -> Windows:
        if self._kept is not None and self._kept[0] == key:
            self._kept[1].load(network)
        else:
            self._kept = None  # its memory is free before the next is laid out
            self._kept = key, lay_out(self.market, list(key[0]), network, self.config)
        return self._kept[1]


def _prepared(windows: Windows) -> bool:
    windows.prepare()
    windows.outputs.steps.cpu()  # what fails on the GPU is seen here
    return True


def _actions(windows: Windows):
    windows.launch()
    return actions_of(windows)


def _equity(windows: Windows):
    windows.launch()
    return equity_of(windows)
