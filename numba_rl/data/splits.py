"""Jumps between two bars that look like a stock split. They are reported, never repaired: a crash looks the same."""

from typing import NamedTuple

import numpy as np

RATIOS = (1.5, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25, 30, 40, 50, 100)
TOLERANCE = 0.04  # relative distance from a whole ratio
UNUSUAL = 8.0  # times the usual size of a move
STAYS_BARS = 5  # on either side
STAYS_WITHIN = 0.15  # relative distance of their median close


class Jump(NamedTuple):
    """A possible split between a bar and the one before it."""

    timestamp_ns: int  # of the first bar at the new level
    index: int
    before: float  # close before
    after: float  # first close at the new level
    ratio: str  # "4:1"; "1:10" for a reverse split

    @property
    def change(self) -> float:
        """Return of the one bar, close to close."""
        return self.after / self.before - 1.0


def find_splits(timestamp: np.ndarray, open_: np.ndarray, close: np.ndarray) -> tuple[Jump, ...]:
    """Possible splits in float64 [T] opens and closes (stamps int64 [T] ns).

    One is found where the open differs from the close before by a whole ratio, within 4%, the five closes on either
    side stay at their level, and the move is over 8 times the usual one (median absolute log return / 0.6745).
    """
    if len(close) < 3 or min(open_.min(), close.min()) <= 0.0:
        return ()
    overnight = np.log(open_[1:] / close[:-1])
    usual = np.median(np.abs(np.diff(np.log(close)))) / 0.6745
    found = []
    for at in np.flatnonzero(np.abs(overnight) > max(UNUSUAL * usual, np.log(1.4))):
        size = float(np.exp(abs(overnight[at])))
        nearest = min(RATIOS, key=lambda ratio: abs(size / ratio - 1))
        old, new = np.median(close[max(at + 1 - STAYS_BARS, 0) : at + 1]), np.median(close[at + 1 : at + 1 + STAYS_BARS])
        if abs(size / nearest - 1) > TOLERANCE or max(abs(old / close[at] - 1), abs(new / open_[at + 1] - 1)) > STAYS_WITHIN:
            continue
        parts = "3:2" if nearest == 1.5 else f"{nearest}:1"
        if overnight[at] > 0:
            parts = ":".join(reversed(parts.split(":")))
        found.append(Jump(int(timestamp[at + 1]), int(at + 1), float(close[at]), float(close[at + 1]), parts))
    return tuple(found)
