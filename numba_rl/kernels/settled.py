"""Settings that a kernel may take as given: flags, and switches that are off.

A kernel that reads every setting from its arguments carries the code of all of them. Compiled for a pattern (which flags are
set, which rates are 0), it keeps only what runs: half of the instructions of a step. The values of what is on stay arguments,
so that one kernel serves all settings of a pattern. The rules themselves are the same functions.
"""

from numba_rl.gpu import device, rebound
from numba_rl.rules.parameters import Rules

FLAGS = ("next_open", "fill_simulation", "equity_sizing", "sign_log", "barrier_multiply", "shaping", "shaping_frozen")
NEUTRAL = {
    "min_fee": 0.0,
    "financing": 0.0,
    "multiplier": 1.0,
    "tick": 0.0,
    "lot": 0.0,
    "leverage": 1.0,
    "drift_tolerance": 0.0,
    "barrier": 0.0,
    "diversity": 0.0,
    "risk": 0.0,
}


def pattern_of(rules: Rules) -> tuple[int, ...]:
    """The flags of `rules`, then 1 for each rate that is not neutral."""
    flags = tuple(int(getattr(rules, name)) for name in FLAGS)
    return flags + tuple(int(getattr(rules, name) != neutral) for name, neutral in NEUTRAL.items())


def settled_for(pattern):
    """A device function for one pattern: rules -> the rules with the pattern's constants in place of their fields."""
    next_open, fill_simulation, equity_sizing, sign_log, barrier_multiply, shaping, shaping_frozen = pattern[: len(FLAGS)]
    min_fee, financing, multiplier, tick, lot, leverage, drift_tolerance, barrier, diversity, risk = pattern[len(FLAGS) :]

    def settled(rules):
        return Rules(
            next_open,
            fill_simulation,
            rules.taker,
            rules.maker,
            rules.spread,
            rules.min_fee if min_fee else 0.0,
            rules.financing if financing else 0.0,
            rules.multiplier if multiplier else 1.0,
            rules.tick if tick else 0.0,
            rules.lot if lot else 0.0,
            equity_sizing,
            rules.leverage if leverage else 1.0,
            rules.reserve,
            rules.max_position,
            rules.initial_capital,
            rules.equity_floor,
            rules.drift_tolerance if drift_tolerance else 0.0,
            sign_log,
            rules.scale,
            rules.barrier if barrier else 0.0,
            barrier_multiply,
            rules.barrier_profit,
            rules.barrier_loss,
            rules.barrier_bars,
            rules.diversity if diversity else 0.0,
            rules.risk if risk else 0.0,
            shaping,
            rules.shaping_rate,
            shaping_frozen,
            rules.episode_length,
        )

    return device(settled)


def specialised(function, names, *tags):
    """A copy of a kernel function with `names` bound, called after `tags`: the disk cache tells kernels apart by name."""
    kernel = rebound(function, names)
    parts = [part for tag in tags for part in (tag if isinstance(tag, tuple) else (tag,))]
    tail = "_".join(f"{part:g}".replace(".", "p").replace("-", "m") for part in parts)
    kernel.__name__ = kernel.__qualname__ = f"{function.__name__}_{tail}"
    return kernel
