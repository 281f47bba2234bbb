"""Round trips from fills: a trade opens when a position opens and ends when it is flat or flips."""

from typing import NamedTuple

import numpy as np


class Trades(NamedTuple):
    """Arrays of equal length, a row a round trip; money float64.

    entry_index, exit_index: step of the first and the last fill; side +1 long, -1 short; units: largest size held;
    entry_price, exit_price: averages over the fills, before the spread; gross: profit at those prices; costs: fees and
    spread of its fills (a fill that flips is shared by size) and financing while it was open; net = gross - costs;
    is_open: still held at the end, marked at the last close.
    """

    entry_index: np.ndarray
    exit_index: np.ndarray
    side: np.ndarray
    units: np.ndarray
    entry_price: np.ndarray
    exit_price: np.ndarray
    gross: np.ndarray
    costs: np.ndarray
    net: np.ndarray
    is_open: np.ndarray


def fill_times(trades: Trades, timestamp: np.ndarray, fill_at: str, exits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Stamps int64 ns of the bars of each trade's first and last fill.

    timestamp: of the points, int64 [n + 1]; fill_at as market.fill_at; exits [n]: not 0 in the steps that ended in a forced exit,
    which is made on the bar of the step's mark whatever fill_at says.
    """
    shift = 1 if fill_at == "next_open" else 0  # points from a step to the bar that fills its order
    first = trades.entry_index + shift
    last = trades.exit_index + np.where(ended_by_exit(trades, exits), 1, shift)
    return timestamp[np.minimum(first, len(timestamp) - 1)], timestamp[np.minimum(last, len(timestamp) - 1)]


def bars_held(trades: Trades, exits: np.ndarray) -> np.ndarray:
    """Bars that each trade lasted, int64: from fill to fill, or to the mark at which a forced exit ended it. exits: as above."""
    return trades.exit_index + ended_by_exit(trades, exits) - trades.entry_index


def ended_by_exit(trades: Trades, exits: np.ndarray) -> np.ndarray:
    """Which trades a forced exit ended, bool: of a step's trades the last one."""
    last = np.append(np.diff(trades.exit_index) != 0, True)[: len(trades.exit_index)]
    return last & ~trades.is_open & (exits[trades.exit_index] != 0)


def round_trips(index, units, price, cost, financing, last_close, multiplier) -> Trades:
    """Trades from fills in time order.

    index int [E], units signed float64 [E], price before the spread [E], cost (fee and spread) [E]; financing float64
    [n], by step; last_close marks what is still open.
    """
    rows = []
    paid = np.concatenate([[0.0], np.cumsum(financing)])
    position = 0.0
    trade = None
    for step, size, at, charge in zip(index, units, price, cost, strict=True):
        if size == 0.0:
            continue
        closing = 0.0
        if position != 0.0 and (size > 0) != (position > 0):
            closing = min(abs(size), abs(position)) * np.sign(size)
        if closing != 0.0:
            trade["out"] += abs(closing)
            trade["out_value"] += abs(closing) * at
            trade["costs"] += charge * closing / size
            position += closing
            if abs(position) <= 1e-12 * trade["units"]:
                position = 0.0
                rows.append(_row(trade, step, False, paid, multiplier))
                trade = None
        opening = size - closing
        if opening != 0.0:
            if trade is None:
                trade = {"entry": step, "side": np.sign(opening), "units": 0.0, "in": 0.0, "in_value": 0.0, "out": 0.0, "out_value": 0.0}
                trade["costs"] = 0.0
            trade["in"] += abs(opening)
            trade["in_value"] += abs(opening) * at
            trade["costs"] += charge * opening / size
            position += opening
            trade["units"] = max(trade["units"], abs(position))
    if trade is not None:
        trade["out"] += abs(position)
        trade["out_value"] += abs(position) * last_close
        rows.append(_row(trade, len(financing) - 1, True, paid, multiplier))
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(Trades._fields)
    kinds = (np.int64, np.int64, np.int8, *([np.float64] * 6), np.bool_)
    return Trades(*(np.array(column, dtype=kind) for column, kind in zip(columns, kinds, strict=True)))


def _row(trade, step, is_open, paid, multiplier):
    gross = trade["side"] * (trade["out_value"] - trade["in_value"]) * multiplier
    costs = trade["costs"] + paid[step + 1] - paid[trade["entry"]]
    entry_price = trade["in_value"] / trade["in"]
    exit_price = trade["out_value"] / trade["out"]
    return (trade["entry"], step, trade["side"], trade["units"], entry_price, exit_price, gross, costs, gross - costs, is_open)
