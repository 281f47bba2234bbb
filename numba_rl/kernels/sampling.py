"""Stable softmax, inverse-CDF sampling and the log-probability of the drawn action, for one row of logits.

logits float32 [rows, actions]; u float32 in [0, 1]. The draw is the first action whose cumulative probability exceeds
u x total; an action of probability 0 is never drawn, whatever the rounding. The log-probability is x - max - log(sum), so
that it stays finite where the probability underflows. A row with a NaN or without any finite logit gives action -1.
"""

import math

from numpy import float32

from numba_rl.gpu import blocks_for, both, cuda, jit
from numba_rl.kernel_cache import cached


@both()
def draw(logits, row, actions, u, inverse_temperature):
    """(action, log-probability) for row `row`; action -1 where the row has no distribution."""
    top = logits[row, 0] * inverse_temperature
    for index in range(1, actions):
        top = max(top, logits[row, index] * inverse_temperature)
    total = float32(0.0)
    for index in range(actions):
        total += float32(math.exp(logits[row, index] * inverse_temperature - top))
    if not (total > float32(0.0) and total < float32(math.inf)):
        return -1, float32(math.nan)
    threshold = u * total
    cumulative = float32(0.0)
    action = -1
    for index in range(actions):
        mass = float32(math.exp(logits[row, index] * inverse_temperature - top))
        if mass > float32(0.0) and (action < 0 or cumulative <= threshold):
            action = index
        cumulative += mass
    return action, logits[row, action] * inverse_temperature - top - float32(math.log(total))


@both()
def greedy(logits, row, actions):
    """The action with the largest logit (the first of equals), or -1 where the row holds a NaN or no finite maximum."""
    best = 0
    for index in range(actions):
        if logits[row, index] != logits[row, index]:
            return -1
        if logits[row, index] > logits[row, best]:
            best = index
    if logits[row, best] - logits[row, best] != float32(0.0):
        return -1
    return best


draw_row = draw.device


@cached
@jit
def sample_kernel(logits, uniforms, inverse_temperature, actions, log_probs):
    row = cuda.grid(1)
    if row < logits.shape[0]:
        action, log_prob = draw_row(logits, row, logits.shape[1], uniforms[row], inverse_temperature)
        actions[row] = action
        log_probs[row] = log_prob


def launch_sample(logits, uniforms, temperature, actions, log_probs, stream=0, threads=128):
    """Draw one action a row. logits float32 [rows, actions], uniforms float32 [rows]; out: int32 and float32 [rows]."""
    sample_kernel[blocks_for(logits.shape[0], threads), threads, stream](
        logits, uniforms, float32(1.0 / temperature), actions, log_probs
    )
