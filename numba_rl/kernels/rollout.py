"""Rollout: one launch plays N episodes for L steps, network, draw, game, reward, episode ends and outputs together.

Two forms of one game (`play`, or its two halves `advance` and `combine`, of numba_rl.rules):

- block (kernels.rollout_block): a block an episode, exact float32: its actions are those of the batched collector but for
  draws within 1e-5 of an edge of the cumulative distribution. For few episodes, and for cards without fp16 `mma` (7.5).
- warp (kernels.rollout_warp): 16 or 32 episodes a warp, the network on tensor cores: its log-probabilities carry an error of
  2e-4 in the mean. For many episodes.

Arguments of a launch (L steps, N slots, F market features, K episodes that a slot can finish in a launch):

layers      six float32 arrays w1, b1, w2, b2, w3, b3 of the actor, weights [out, in]
slots       portfolio, barrier, window, shaping, clock: see kernels.slots; read at the start, written at the end
prices      float64 [T, 4]; features: float32 [T, F] for the block form, uint32 [T, width / 2] for the warp form (kernels.mma)
outputs     account      float32 [L + 1, N, 3]  the network's portfolio features: equity / initial, share, spread
            bars         int32 [L + 1, N]       the bar of each state; row L of both is what the policy sees next
            final_account float32 [K, N, 3], final_bars int32 [K, N]: the true next state of truncated steps
            finals       int32 [N]              truncations of the launch
            actions int32, log_probs float32, rewards float32 [L, N]
            ends         int16 [L, N]           0 goes on, -1 terminated, k >= 1 truncated with its next state in row k - 1
            status       int32 [N]              1 + first step whose logits were no distribution (an order to be flat was played
                                                instead); else left alone, so zero it before
launch      kernels.step.Launch; `greedy` and the temperature are not read. rules: numba_rl.rules.parameters.Rules

A state's row is features[bars] and then account; it is built where it is needed. Draws are those of the batched collector:
purpose ACTION, slot, steps played by the slot. Results do not depend on threads, blocks or launch lengths.
"""

from typing import NamedTuple

from numba_rl.gpu import SIMULATED, blocks_for
from numba_rl.kernels.mma import Tiles, launch_pack, tiles_of
from numba_rl.kernels.rollout_block import Block, block_kernel, block_of
from numba_rl.kernels.rollout_warp import ROWS, warp_kernel
from numba_rl.kernels.settled import pattern_of

BLOCKS_EACH = 5  # episodes a multiprocessor up to which the block form is the faster one
WIDE_FROM = 96  # episodes a multiprocessor from which a warp plays 32 of them
TENSOR_CORES = (8, 0)  # compute capability of the warp form's instructions


class Plan(NamedTuple):
    """How a rollout is launched: its form and the form's choices."""

    block: Block | None
    tiles: Tiles | None
    groups: int = 1  # warp form: tiles of 16 episodes a warp, 1 or 2
    warps: int = 1  # warp form: warps of a block
    registers: int | None = None  # warp form: most registers a thread

    @property
    def form(self) -> str:
        """ "block" or "warp"."""
        return "block" if self.tiles is None else "warp"


def plan_rollout(features, hidden, episodes, *, slope=0.0, capability=(9, 0), multiprocessors=132, form="auto") -> Plan | None:
    """The form for an actor of `features` + 3 inputs, two `hidden` layers and 45 actions, or None where neither fits.

    form: "auto", or "block" or "warp" where that fits. The limits are those of `block_of` and `tiles_of`.
    """
    block = block_of(features, hidden, slope=slope, capability=capability)
    tiles = tiles_of(features, hidden, slope=slope) if capability >= TENSOR_CORES else None
    few = episodes <= BLOCKS_EACH * multiprocessors
    if block is not None and (form == "block" or (form == "auto" and (few or tiles is None))):
        return Plan(block, None)
    if tiles is None or form == "block":
        return None
    if episodes >= WIDE_FROM * multiprocessors:
        return Plan(None, tiles, groups=2, warps=4, registers=None if SIMULATED else 128)
    return Plan(None, tiles)


class Rollout:
    """A compiled rollout: `launch` plays one launch. Compiles at its first launch; make that one outside a captured graph."""

    def __init__(self, plan: Plan, rules, base=None):
        """base: compiled base reward of the user (rules.reward.user_base), or None for that of the settings."""
        self.plan = plan
        pattern = pattern_of(rules)
        if plan.block is not None:
            self.kernel = block_kernel(plan.block, pattern, base)
        else:
            self.kernel = warp_kernel(plan.tiles, pattern, base, plan.registers)

    def launch(self, layers, slots, prices, features, outputs, launch, rules, stream=0, packed=None):
        """One launch, arguments as above. packed (warp form): (words uint64, biases float32), filled here from the layers."""
        episodes = slots[0].shape[0]
        if self.plan.block is not None:
            self.kernel[episodes, self.plan.block.threads, stream](*layers, *slots, prices, features, *outputs, launch, rules)
            return
        launch_pack(self.plan.tiles, layers, *packed, stream)
        groups, warps = self.plan.groups, self.plan.warps
        blocks = blocks_for(episodes, ROWS * groups * warps)
        self.kernel[blocks, 2 * ROWS * warps, stream](*packed, features, *slots, prices, *outputs, launch, rules, groups)
