"""Routing of exposure-only agents to the 45 actions, from the volatility regime and the size of the change.

Market and aggressive to reduce risk in high volatility, limit and patient for small changes in low volatility, IOC and
normal otherwise. It reads features of the bar alone (index 41, unscaled), so that an action depends on nothing from
another time.
"""

from numba import njit

from numba_rl.rules.actions import AGGRESSIVE, FLAT, IOC, LIMIT, MARKET, NORMAL, PATIENT, compose

HIGH_VOLATILITY = 1.5  # of feature 41, recent over usual volatility
LOW_VOLATILITY = 1.0
SMALL_CHANGE = 0.5  # of exposure


@njit(error_model="numpy")
def route(exposure, held, volatility):
    """The action 0..44 for exposure index 0..4 when `held` (-1..1) is the exposure now and `volatility` is feature 41."""
    target = (exposure - FLAT) * 0.5
    if volatility > HIGH_VOLATILITY and abs(target) < abs(held):
        return compose(exposure, MARKET, AGGRESSIVE)
    if volatility < LOW_VOLATILITY and abs(target - held) <= SMALL_CHANGE:
        return compose(exposure, LIMIT, PATIENT)
    return compose(exposure, IOC, NORMAL)
