"""The 45 actions: 5 exposures x 3 order types x 3 urgencies, action = exposure * 9 + order * 3 + urgency."""

from numba import njit
from numpy import int64

EXPOSURES, ORDERS, URGENCIES = 5, 3, 3
ACTIONS = EXPOSURES * ORDERS * URGENCIES
MARKET, LIMIT, IOC = 0, 1, 2
PATIENT, NORMAL, AGGRESSIVE = 0, 1, 2
FLAT = 2  # index of exposure 0

EXPOSURE_NAMES = ("short", "half short", "flat", "half long", "long")
ORDER_NAMES = ("market", "limit", "IOC")
URGENCY_NAMES = ("patient", "normal", "aggressive")


@njit(error_model="numpy")
def exposure_index(action):
    """Index 0..4 of the exposure that an action asks for."""
    return int64(action) // 9


@njit(error_model="numpy")
def target_exposure(action):
    """The exposure that an action asks for: -1, -0.5, 0, 0.5 or 1 of the maximum position."""
    return (exposure_index(action) - FLAT) * 0.5


@njit(error_model="numpy")
def order_type(action):
    """0 market, 1 limit, 2 immediate-or-cancel."""
    return int64(action) // 3 % 3


@njit(error_model="numpy")
def urgency(action):
    """0 patient, 1 normal, 2 aggressive."""
    return int64(action) % 3


@njit(error_model="numpy")
def compose(exposure, order, urgency):
    """The action index 0..44 of an exposure 0..4, an order type 0..2 and an urgency 0..2."""
    return int64(exposure) * 9 + int64(order) * 3 + int64(urgency)
