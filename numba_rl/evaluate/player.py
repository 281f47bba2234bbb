"""Playing policies over ranges of a market: on a GPU while there is one that works, else on the CPU path."""

from collections.abc import Callable

from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.data.windows import Range
from numba_rl.errors import UserError
from numba_rl.evaluate.backtest import AccountingError, Backtest, play_actions, play_policy
from numba_rl.evaluate.device import actions_on_gpu, can_play


class Player:
    """Plays policies over ranges of one market, all ranges at once and each on an account of its own.

    On a GPU the choices are those of the network in fp16 (kernels.backtest_policy), where it fits that kernel; the ledger is the float64
    one here either way. A GPU that fails is told once to `failed`, within the handler of its error, and is not asked again.
    """

    def __init__(self, market: Market, config: Config, failed: Callable[[Exception], None]):
        self.market, self.config = market, config
        self._failed = failed
        self._gpu = config.train.device != "cpu"  # whether it is worth asking

    def play(self, policy, spans: list[Range]) -> list[Backtest]:
        """Play `policy` (as `play_policy` takes it) over `spans`. Raises what `play_policy` raises."""
        played = self.play_on_gpu(policy, spans)
        return play_policy(self.market, spans, policy, self.config) if played is None else played

    def play_on_gpu(self, policy, spans: list[Range]) -> list[Backtest] | None:
        """The same on a GPU alone. None: there is none, it fails or has failed, or the kernel does not hold the policy's network."""
        network = getattr(policy, "network", None)
        if not self._gpu or network is None:
            return None
        try:
            if not can_play(network):
                return None
            actions = actions_on_gpu(self.market, spans, network, self.config)
            return play_actions(self.market, spans, actions, self.config, names=[f"window {w}" for w in range(len(spans))])
        except (UserError, AccountingError):
            raise
        except Exception as error:  # noqa: BLE001 - out of memory, a compiler's and a driver's errors have no common class
            self._gpu = False
            self._failed(error)
            return None
