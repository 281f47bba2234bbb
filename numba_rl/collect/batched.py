"""The batched collector: one forward pass a step for all episodes, the rules stepped by Numba.

It takes any network. On the CPU the rules run in parallel over the episodes; on a GPU a kernel steps them, a thread an
episode. Episodes carry over from launch to launch.
"""

from dataclasses import dataclass

import numpy as np
import torch

from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.data.windows import Range
from numba_rl.errors import UserError
from numba_rl.gpu import SIMULATED, blocks_for, stream, view
from numba_rl.kernels.slots import CLOCK_FIELDS
from numba_rl.kernels.step import Launch, steppers
from numba_rl.rules.barrier import BARRIER_FIELDS
from numba_rl.rules.diversity import WINDOW_FIELDS
from numba_rl.rules.parameters import rules_of
from numba_rl.rules.portfolio import PORTFOLIO_FIELDS
from numba_rl.rules.shaping import SHAPING_FIELDS

THREADS = 128
LAUNCH, LONG_LAUNCH, EPISODES = 64, 500, 128
PORTFOLIO_FEATURES = 3  # at the end of a state: equity / initial, share, spread


def launch_steps(config: Config, device: torch.device) -> int:
    """Steps of a launch. On a GPU PPO plays long ones; Q-learning does not: branching learned a third less by launches of 500, whose
    actions are chosen by a network that was left behind."""
    long = device.type == "cuda" and config.algorithm == "ppo"
    return config.episodes.launch or (LONG_LAUNCH if long else LAUNCH)


@dataclass
class Rollout:
    """One launch, time-major. The collector owns the memory and writes it anew at the next launch.

    states float32 [L + 1, N, F + 3], the last row being what the policy sees next; actions int32, log_probs float32,
    rewards float32, bars int32 [L, N]; ends int16 [L, N]: 0 the episode goes on, -1 terminated, k >= 1 truncated with its
    true next state in final_states[k - 1] float32 [K, N, F + 3]; finals int32 [N]: truncations of each slot; status
    int32 [N]: 0, or 1 + the first step at which the logits of the slot were no distribution.
    """

    states: torch.Tensor
    actions: torch.Tensor
    log_probs: torch.Tensor
    rewards: torch.Tensor
    bars: torch.Tensor
    ends: torch.Tensor
    final_states: torch.Tensor
    finals: torch.Tensor
    status: torch.Tensor

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
        return self.states[-1, :, -PORTFOLIO_FEATURES]


class BatchedCollector:
    """Plays N episodes for L steps a launch with a policy of any shape."""

    def __init__(self, market: Market, config: Config, *, device="cpu", base=None, range: Range | None = None, simulate=False):
        """market: scaled features and prices. base: compiled base reward of the user (rules.reward.user_base), or None.
        range: bars to play, default the training range. simulate: on the CPU, play by the kernels in the simulator, which is
        slow. Raises UserError where the range is too short to play a step."""
        self.device = torch.device(device)
        self._on_cpu = self.device.type == "cpu" and not simulate
        self.range = range or market.train
        if self.range.stop - self.range.start < 2:
            raise UserError(f"{market.source}: a range of {self.range.stop - self.range.start} bars cannot be played; 2 are needed")
        self.episodes = config.episodes.count or EPISODES
        self.steps = launch_steps(config, self.device)
        self.rules = rules_of(config, market.bars_per_year)
        self.seed = config.train.seed
        self.played = 0
        self._steppers = steppers(base)
        self._started = False
        slots, width = self.episodes, market.features.shape[1] + 3
        length = min(config.episodes.length, self.range.stop - 1 - self.range.start)
        finals = self.steps // length + 2

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
        self.rollout = Rollout(
            states=zeros(self.steps + 1, slots, width),
            actions=zeros(self.steps, slots, dtype=torch.int32),
            log_probs=zeros(self.steps, slots),
            rewards=zeros(self.steps, slots),
            bars=zeros(self.steps, slots, dtype=torch.int32),
            ends=zeros(self.steps, slots, dtype=torch.int16),
            final_states=zeros(finals, slots, width),
            finals=zeros(slots, dtype=torch.int32),
            status=zeros(slots, dtype=torch.int32),
        )
        self.t = zeros(1, dtype=torch.int32)
        state = self.slots
        self._slot_views = [self._view(state[name]) for name in ("portfolio", "barrier", "window", "shaping", "clock")]
        self._market_views = [self._view(self.prices), self._view(self.features)]
        r = self.rollout
        self._output_views = [
            self._view(array)
            for array in (r.states, r.final_states, r.finals, r.actions, r.log_probs, r.rewards, r.bars, r.ends, r.status)
        ]

    def _view(self, tensor):
        return tensor.numpy() if self._on_cpu else view(tensor)

    def _launch(self, greedy=False, given=False, temperature=1.0) -> Launch:
        return Launch(self.seed, self.range.start, self.range.stop, int(greedy), int(given), 1.0 / temperature)

    def start(self):
        """Begin an episode in every slot; called by the first launch."""
        arguments = (*self._slot_views, *self._market_views, self._output_views[0], 0, self._launch(), self.rules)
        if self._on_cpu:
            self._steppers.start(*arguments)
        else:
            self._steppers.start_kernel[self._grid()](*arguments)
        self._started = True

    def _grid(self):
        threads = min(THREADS, self.episodes)
        handle = 0 if SIMULATED else stream(torch.cuda.current_stream(self.device).cuda_stream)
        return blocks_for(self.episodes, threads), threads, handle

    @torch.no_grad()
    def collect(self, policy, *, actions=None, choose=None, temperature: float = 1.0) -> Rollout:
        """Play one launch. policy: states float32 [N, F + 3] -> logits float32 [N, 45].

        actions: int32 [L, N] to play instead of the policy's draws (log-probabilities are then 0). choose: called as
        choose(t, what the policy gave) to write row t of rollout.actions itself, instead of a draw; t is also in `self.t`
        on the device (int32 [1]).
        """
        rollout = self.rollout
        if not self._started:
            self.start()
        else:
            rollout.states[0].copy_(rollout.states[self.steps])
        rollout.finals.zero_()
        rollout.status.zero_()
        self.t.zero_()
        if actions is not None:
            rollout.actions.copy_(actions)
        launch = self._launch(given=actions is not None or choose is not None, temperature=temperature)
        for t in range(self.steps):
            if choose is not None:
                choose(t, policy(rollout.states[t]))
            logits = rollout.log_probs[t, :, None] if launch.given else policy(rollout.states[t]).float().contiguous()
            self._step(t, logits, launch)
        self.played += self.steps * self.episodes
        return rollout

    def _step(self, t, logits, launch):
        if self._on_cpu:
            self._steppers.step(
                t, logits.numpy(), *self._slot_views, *self._market_views, *self._output_views, launch, self.rules
            )
            return
        kernel = self._steppers.step_kernel[self._grid()]
        kernel(
            view(self.t), view(logits), *self._slot_views, *self._market_views, *self._output_views, launch, self.rules
        )
        self.t += 1

    def state_dict(self) -> dict:
        """What an exact resume needs: the slots, the next states, and the number of steps played."""
        return {
            **{name: tensor.detach().cpu().numpy().copy() for name, tensor in self.slots.items()},
            "next_states": self.rollout.states[self.steps].detach().cpu().numpy().copy(),
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
        self.rollout.states[self.steps].copy_(torch.as_tensor(np.asarray(state["next_states"])))
        self.played, started = (int(value) for value in np.asarray(state["played"]))
        self._started = bool(started)
