"""The fused collectors: one kernel launch plays all episodes for all steps of a launch, network included.

`FusedCollector` is for actors with two hidden layers that fit a kernel (see kernels.rollout), on a GPU; collect.fused_q has the
one for Q-networks; the batched collector takes the rest. What is stored is compact: of each state the bar and the three
portfolio features. Nothing is allocated and nothing waits for the host in `launch`, so it can be captured in a CUDA graph;
make the first launch outside, since it compiles.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from numba_rl.collect.batched import EPISODES, PORTFOLIO_FEATURES, THREADS, launch_steps
from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.data.windows import Range
from numba_rl.errors import ConfigError, UserError
from numba_rl.gpu import SIMULATED, blocks_for, stream, view
from numba_rl.kernels import rollout as kernels
from numba_rl.kernels.slots import CLOCK_FIELDS
from numba_rl.kernels.step import Launch, steppers
from numba_rl.rules.actions import ACTIONS
from numba_rl.rules.barrier import BARRIER_FIELDS
from numba_rl.rules.diversity import WINDOW_FIELDS
from numba_rl.rules.parameters import rules_of
from numba_rl.rules.portfolio import PORTFOLIO_FIELDS
from numba_rl.rules.shaping import SHAPING_FIELDS


@dataclass
class CompactRollout:
    """One launch, time-major. The collector owns the memory and writes it anew at the next launch.

    features float32 [T, F]: the market's table; rows int32 [L + 1, N] and account float32 [L + 1, N, 3]: bar and portfolio
    features of each state, the last row being what the policy sees next; final_rows int32 [K, N], final_account float32
    [K, N, 3]: the true next states of truncated steps. actions, rewards, ends, finals and status are those of
    collect.batched.Rollout; so are log_probs, or None where actions are chosen by their values.
    """

    features: torch.Tensor
    account: torch.Tensor
    rows: torch.Tensor
    final_account: torch.Tensor
    final_rows: torch.Tensor
    finals: torch.Tensor
    actions: torch.Tensor
    log_probs: torch.Tensor | None
    rewards: torch.Tensor
    ends: torch.Tensor
    status: torch.Tensor

    @property
    def bars(self) -> torch.Tensor:
        """int32 [L, N]: the bar of each decision."""
        return self.rows[:-1]

    @property
    def states(self) -> torch.Tensor:
        """float32 [L + 1, N, F + 3], built anew at each call."""
        return rebuilt(self.features, self.rows, self.account)

    @property
    def final_states(self) -> torch.Tensor:
        """float32 [K, N, F + 3], built anew at each call."""
        return rebuilt(self.features, self.final_rows, self.final_account)

    @property
    def terminated(self) -> torch.Tensor:
        """bool [L, N]: the episode ended in ruin; nothing is worth anything after it."""
        return self.ends < 0

    @property
    def truncated(self) -> torch.Tensor:
        """bool [L, N]: the episode was cut; its true next state still has a worth."""
        return self.ends > 0

    @property
    def equities(self) -> torch.Tensor:
        """float32 [N]: equity / initial capital at the end of the launch."""
        return self.account[-1, :, 0]


def rebuilt(features, rows, account, width=None, dtype=torch.float32) -> torch.Tensor:
    """States [..., width] of `dtype` from bars [...] and account [..., 3]; zeros behind F + 3 where width is larger."""
    market = features.shape[1]
    width = market + PORTFOLIO_FEATURES if width is None else width
    states = torch.empty(*rows.shape, width, dtype=dtype, device=features.device)
    states[..., :market] = features.index_select(0, rows.reshape(-1)).view(*rows.shape, market)
    states[..., market : market + PORTFOLIO_FEATURES] = account
    states[..., market + PORTFOLIO_FEATURES :] = 0
    return states


class CompactCollector:
    """Market, slots and outputs of a collector whose launch is one kernel; which one, its subclasses say."""

    def __init__(self, market: Market, config: Config, device, base, range: Range | None, *, log_probs: bool):
        """market, base and range as for the batched collector. Raises UserError where the range is too short to play a step."""
        self.device = torch.device(device)
        self.range = range or market.train
        if self.range.stop - self.range.start < 2:
            raise UserError(f"{market.source}: a range of {self.range.stop - self.range.start} bars cannot be played; 2 are needed")
        self.episodes = config.episodes.count or EPISODES
        self.steps = launch_steps(config, self.device)
        self.rules = rules_of(config, market.bars_per_year)
        self.seed = config.train.seed
        self.played = 0
        self._started = False
        self._start_kernel = steppers(base).start_kernel
        slots, steps = self.episodes, self.steps
        finals = steps // min(config.episodes.length, self.range.stop - 1 - self.range.start) + 2
        self.slots = {
            "portfolio": self._zeros(slots, PORTFOLIO_FIELDS, dtype=torch.float64),
            "barrier": self._zeros(slots, BARRIER_FIELDS, dtype=torch.float64),
            "window": self._zeros(slots, WINDOW_FIELDS, dtype=torch.int64),
            "shaping": self._zeros(slots, SHAPING_FIELDS, dtype=torch.float64),
            "clock": self._zeros(slots, CLOCK_FIELDS, dtype=torch.int64),
        }
        self.prices = torch.from_numpy(market.prices).to(self.device)
        self.features = torch.from_numpy(market.features).to(self.device)
        self.rollout = CompactRollout(
            features=self.features,
            account=self._zeros(steps + 1, slots, PORTFOLIO_FEATURES),
            rows=self._zeros(steps + 1, slots, dtype=torch.int32),
            final_account=self._zeros(finals, slots, PORTFOLIO_FEATURES),
            final_rows=self._zeros(finals, slots, dtype=torch.int32),
            finals=self._zeros(slots, dtype=torch.int32),
            actions=self._zeros(steps, slots, dtype=torch.int32),
            log_probs=self._zeros(steps, slots) if log_probs else None,
            rewards=self._zeros(steps, slots),
            ends=self._zeros(steps, slots, dtype=torch.int16),
            status=self._zeros(slots, dtype=torch.int32),
        )
        r = self.rollout
        self._slot_views = [view(tensor) for tensor in self.slots.values()]
        self._prices = view(self.prices)
        self._outputs = [
            view(tensor)
            for tensor in (
                r.account, r.rows, r.final_account, r.final_rows, r.finals, r.actions, r.log_probs, r.rewards, r.ends, r.status
            )
            if tensor is not None
        ]  # fmt: skip

    def _zeros(self, *shape, dtype=torch.float32):
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def _stream(self):
        return 0 if SIMULATED else stream(torch.cuda.current_stream(self.device).cuda_stream)

    def _launch(self, given=False) -> Launch:
        return Launch(self.seed, self.range.start, self.range.stop, 0, int(given), 1.0)

    def start(self):
        """Begin an episode in every slot; called by the first launch."""
        states = torch.zeros(1, self.episodes, self.features.shape[1] + PORTFOLIO_FEATURES, device=self.device)
        self._start_kernel[blocks_for(self.episodes, THREADS), THREADS if not SIMULATED else 4, self._stream()](
            *self._slot_views, self._prices, view(self.features), view(states), 0, self._launch(), self.rules
        )
        self._started = True

    @torch.no_grad()
    def _collect(self, actions, launch) -> CompactRollout:
        """Play one launch by launch(given)."""
        if not self._started:
            self.start()
        if actions is not None:
            self.rollout.actions.copy_(actions)
        launch(actions is not None)
        self.played += self.steps * self.episodes
        return self.rollout

    def state_dict(self) -> dict:
        """What an exact resume needs, of the same names and shapes as the batched collector's."""
        r = self.rollout
        following = rebuilt(self.features, r.rows[-1], r.account[-1])
        return {
            **{name: tensor.detach().cpu().numpy().copy() for name, tensor in self.slots.items()},
            "next_states": following.cpu().numpy(),
            "played": np.array([self.played, int(self._started)], dtype=np.int64),
        }

    def load_state_dict(self, state: dict):
        """Take up where `state_dict` left off, of this collector or a batched one; shapes must be those of this collector."""
        for name, tensor in self.slots.items():
            if tuple(state[name].shape) != tuple(tensor.shape):
                raise UserError(
                    f"the checkpoint's {name} slots have shape {tuple(state[name].shape)}, this run's {tuple(tensor.shape)}; "
                    "resume with the same episodes.count"
                )
            tensor.copy_(torch.as_tensor(np.asarray(state[name])))
        self.rollout.rows[-1].copy_(self.slots["clock"][:, 0])
        self.rollout.account[-1].copy_(torch.as_tensor(np.asarray(state["next_states"]))[:, -PORTFOLIO_FEATURES:])
        self.played, started = (int(value) for value in np.asarray(state["played"]))
        self._started = bool(started)


class FusedCollector(CompactCollector):
    """Plays N episodes for L steps a launch, the actor's layers inside the kernel."""

    def __init__(self, market: Market, config: Config, *, device="cuda", base=None, range: Range | None = None, form="auto", plan=None):
        """market, base and range as for the batched collector; form: "auto", "block" or "warp"; plan: a kernels.rollout.Plan instead.

        Raises ConfigError where no kernel fits the actor, UserError where the range is too short to play a step.
        """
        super().__init__(market, config, device, base, range, log_probs=True)
        self.plan = plan or plan_for(config, market.features.shape[1], self.device, self.episodes, form)
        if self.plan is None:
            raise ConfigError(
                f"train.collector = fused has no {'' if form == 'auto' else form + ' '}kernel for ppo.actor = {list(config.ppo.actor)} and "
                f"{market.features.shape[1]} features on this device; use auto or batched"
            )
        self._kernel = kernels.Rollout(self.plan, self.rules, base)
        self._market, self._packed = view(self.features), None
        tiles = self.plan.tiles
        if tiles is not None:
            halves = self._zeros(len(self.features), tiles.width, dtype=torch.float16)
            halves[:, : tiles.features] = self.features
            self._words, self._biases = self._zeros(tiles.words, dtype=torch.int64), self._zeros(tiles.biases)
            self._table = halves.view(torch.int32)
            self._market = view(self._table.view(torch.uint32))
            self._packed = (view(self._words.view(torch.uint64)), view(self._biases))
        self._layers, self._layer_views = None, None

    def launch(self, policy, given=False):
        """The device's work of one launch, nothing else: this can be captured. `played` is the caller's to move on."""
        layers = list(policy.parameters()) if isinstance(policy, torch.nn.Module) else list(policy)
        addresses = [layer.data_ptr() for layer in layers]
        if self._layers != addresses:
            self._layers, self._layer_views = addresses, self._checked(layers)
        self.rollout.status.zero_()
        self._kernel.launch(
            self._layer_views, self._slot_views, self._prices, self._market, self._outputs, self._launch(given), self.rules,
            self._stream(), self._packed,
        )  # fmt: skip

    def _checked(self, layers):
        block, tiles = self.plan.block, self.plan.tiles
        hidden = (block.market.outputs, block.second.outputs) if block is not None else (tiles.hidden1, tiles.hidden2)
        sizes = (self.features.shape[1] + PORTFOLIO_FEATURES, *hidden, ACTIONS)
        check_shapes(layers, [shape for i, o in pairwise(sizes) for shape in ((o, i), (o,))])
        return [view(layer, np.float32) for layer in layers]

    def collect(self, policy: torch.nn.Module | Sequence[torch.Tensor], *, actions=None) -> CompactRollout:
        """Play one launch. policy: the actor, or its weights and biases in order (weights [out, in], float32).

        actions: int32 [L, N] to play instead of the policy's draws (log-probabilities are then 0).
        """
        return self._collect(actions, lambda given: self.launch(policy, given))


def check_shapes(layers: Sequence[torch.Tensor], wanted: list[tuple[int, ...]]) -> None:
    """ValueError where weights and biases are not those that a collector was built for."""
    found = [tuple(layer.shape) for layer in layers]
    if found != wanted:
        raise ValueError(f"the collector was built for layers of {wanted}, got {found}")


def card(device: torch.device) -> tuple[tuple[int, int], int] | None:
    """(compute capability, multiprocessors) of the device that kernels run on, or None where they cannot."""
    if SIMULATED:
        return (9, 0), 1
    if device.type != "cuda":
        return None
    return torch.cuda.get_device_capability(device), torch.cuda.get_device_properties(device).multi_processor_count


def plan_for(config: Config, features: int, device, episodes: int, form="auto"):
    """The kernel plan of an actor on a device, or None where the batched collector must play it."""
    found = card(torch.device(device))
    if found is None:
        return None
    capability, multiprocessors = found
    slope = config.ppo.leaky_slope
    return kernels.plan_rollout(
        features, config.ppo.actor, episodes, slope=slope, capability=capability, multiprocessors=multiprocessors, form=form
    )
