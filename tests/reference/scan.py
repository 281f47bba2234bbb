"""Inclusive prefix sums in float64."""

import numpy as np


def scan(values):
    """values [n] -> float64 [n]."""
    return np.cumsum(np.asarray(values, np.float64))
