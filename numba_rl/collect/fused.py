"""The fused collector: one launch plays all episodes for all steps, network and rules together, on a GPU.

It keeps the bar and the three portfolio features of each step; the network's inputs are built where they are needed. A
launch allocates nothing and reads nothing back, so that it can be captured in a CUDA graph.
"""

from itertools import pairwise

import numpy as np
import torch

from numba_rl.collect.batched import EPISODES, LAUNCH_ON_GPU, THREADS
from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.data.windows import Range
from numba_rl.errors import UserError
from numba_rl.gpu import SIMULATED, blocks_for, stream, view
from numba_rl.kernels.rollout_block import block_kernel, block_of
from numba_rl.kernels.settled import pattern_of
from numba_rl.kernels.slots import CLOCK_FIELDS
from numba_rl.kernels.step import Launch, steppers
from numba_rl.rules.barrier import BARRIER_FIELDS
from numba_rl.rules.diversity import WINDOW_FIELDS
from numba_rl.rules.parameters import rules_of
from numba_rl.rules.portfolio import PORTFOLIO_FIELDS
from numba_rl.rules.shaping import SHAPING_FIELDS


def fits(config: Config, features: int) -> bool:
    """Whether the actor of these settings has a fused kernel."""
    return block_of(features, config.ppo.actor, slope=config.ppo.leaky_slope) is not None


class FusedCollector:
    """Plays N episodes for L steps a launch with an actor of fixed shape.

    bars int32 [L + 1 + K, N] and account float32 [L + 1 + K, N, 3]: of each step, of the state after the launch, and of the
    true next states of truncated steps (`ends` says which row); actions int32, log_probs and rewards float32, ends int16
    [L, N]; finals, status int32 [N]. The memory is written anew at the next launch.
    """

    def __init__(self, market: Market, config: Config, *, device="cuda", base=None, range: Range | None = None):
        """Arguments and errors as of BatchedCollector."""
        self.device = torch.device("cpu" if SIMULATED else device)
        self.range = range or market.train
        if self.range.stop - self.range.start < 2:
            raise UserError(f"{market.source}: a range of {self.range.stop - self.range.start} bars cannot be played; 2 are needed")
        self.episodes = config.episodes.count or EPISODES
        self.steps = config.episodes.launch or LAUNCH_ON_GPU
        self.rules = rules_of(config, market.bars_per_year)
        self.seed = config.train.seed
        self.played = 0
        self._started = False
        self._start_kernel = steppers(base).start_kernel
        features = market.features.shape[1]
        self.block = block_of(features, config.ppo.actor, slope=config.ppo.leaky_slope)
        if self.block is None:
            raise UserError(f"an actor {config.ppo.actor} on {features} features has no fused kernel; use train.collector = batched")
        self._kernel = block_kernel(self.block, pattern_of(self.rules), base)
        slots, steps = self.episodes, self.steps
        self.finals_rows = steps // min(config.episodes.length, self.range.stop - 1 - self.range.start) + 2

        def zeros(*shape, dtype=torch.float32):
            return torch.zeros(shape, dtype=dtype, device=self.device)

        self.slots = {
            "portfolio": zeros(slots, PORTFOLIO_FIELDS, dtype=torch.float64),
            "barrier": zeros(slots, BARRIER_FIELDS, dtype=torch.float64),
            "window": zeros(slots, WINDOW_FIELDS, dtype=torch.int64),
            "shaping": zeros(slots, SHAPING_FIELDS, dtype=torch.float64),
            "clock": zeros(slots, CLOCK_FIELDS, dtype=torch.int64),
        }
        self.prices = torch.from_numpy(market.prices).to(self.device)
        self.features = torch.from_numpy(market.features).to(self.device)
        self.bars = zeros(steps + 1 + self.finals_rows, slots, dtype=torch.int32)
        self.account = zeros(steps + 1 + self.finals_rows, slots, 3)
        self.actions = zeros(steps, slots, dtype=torch.int32)
        self.log_probs, self.rewards = zeros(steps, slots), zeros(steps, slots)
        self.ends = zeros(steps, slots, dtype=torch.int16)
        self.finals, self.status = zeros(slots, dtype=torch.int32), zeros(slots, dtype=torch.int32)
        sizes = (features + 3, *config.ppo.actor, 45)
        self.weights = [tensor for fan_in, out in pairwise(sizes) for tensor in (zeros(out, fan_in), zeros(out))]

    def _stream(self):
        return 0 if SIMULATED else stream(torch.cuda.current_stream(self.device).cuda_stream)

    def _slot_views(self):
        return [view(self.slots[name]) for name in ("portfolio", "barrier", "window", "shaping", "clock")]

    def _market_views(self):
        return view(self.prices), view(self.features)

    def start(self):
        """Begin an episode in every slot."""
        states = torch.zeros(1, self.episodes, self.features.shape[1] + 3, device=self.device)
        launch = Launch(self.seed, self.range.start, self.range.stop, 0, 0, 1.0)
        threads = 8 if SIMULATED else THREADS
        self._start_kernel[blocks_for(self.episodes, threads), threads, self._stream()](
            *self._slot_views(), *self._market_views(), view(states), 0, launch, self.rules
        )
        self._started = True

    @torch.no_grad()
    def launch(self, actor) -> None:
        """Enqueue one launch with the weights of `actor`, a sequence of three Linear layers, as they are on the device then."""
        for layer, weight, bias in zip(actor, self.weights[::2], self.weights[1::2], strict=True):
            weight.copy_(layer.weight)
            bias.copy_(layer.bias)
        self.status.zero_()
        cut = self.steps + 1
        launch = Launch(self.seed, self.range.start, self.range.stop, 0, 0, 1.0)
        self._kernel[self.episodes, self.block.threads, self._stream()](
            *map(view, self.weights), *self._slot_views(), *self._market_views(), view(self.account[:cut]), view(self.bars[:cut]),
            view(self.account[cut:]), view(self.bars[cut:]), view(self.finals), view(self.actions), view(self.log_probs),
            view(self.rewards), view(self.ends), view(self.status), launch, self.rules,
        )  # fmt: skip

    @property
    def terminated(self) -> torch.Tensor:
        """bool [L, N]: the episode ended in ruin."""
        return self.ends < 0

    def states(self) -> torch.Tensor:
        """The inputs of all rows, float32 [L + 1 + K, N, F + 3], built now."""
        return torch.cat([self.features[self.bars.long()], self.account], dim=-1)

    def state_dict(self) -> dict:
        """What an exact resume needs."""
        return {
            **{name: tensor.detach().cpu().numpy().copy() for name, tensor in self.slots.items()},
            "played": np.array([self.played, int(self._started)], dtype=np.int64),
        }

    def load_state_dict(self, state: dict):
        """Take up where `state_dict` left off; shapes must be those of this collector."""
        for name, tensor in self.slots.items():
            if tuple(state[name].shape) != tuple(tensor.shape):
                raise UserError(
                    f"the checkpoint's {name} slots have shape {tuple(state[name].shape)}, this run's {tuple(tensor.shape)}; "
                    "resume with the same episodes.count"
                )
            tensor.copy_(torch.as_tensor(np.asarray(state[name])))
        self.played, started = (int(value) for value in np.asarray(state["played"]))
        self._started = bool(started)
