"""The judgement of a file's rows: what is repaired and reported, and what is refused.

Repaired, each with a notice that counts it: rows without a price are dropped as missing bars (nothing is ever filled
from other rows), rows out of order are sorted, exact duplicates dropped, a missing volume is 0, and an open or close
outside [low, high] by no more than rounding (1e-6 relative) widens the range.

Refused with a DataError that names the row and the fix: infinite values, a negative volume, a high below its low, an open
or close outside the range, two different rows for one stamp, prices at or below zero in log mode, and more missing bars
than data.max_missing. That share means nothing in a file of under 20 rows, where one missing bar exceeds it: there up
to three are dropped (none with max_missing = 0).
"""

import numpy as np

from numba_rl.config import DataConfig
from numba_rl.data.raw import PRICES, RawTable, count, stamp_text

ROUNDING = 1e-6  # relative; float32 prices are off by 6e-8
FEW_ROWS = 20
FEW_MISSING = 3


def validate(table: RawTable, config: DataConfig) -> None:
    """Repair ``table`` in place (adding to its notices) so that its rows are bars in strictly increasing order.

    Afterwards prices and volume are finite, low <= open, close <= high, and the table may have no rows left.
    """
    _refuse_infinite(table)
    _adjust(table, config)
    _drop_missing(table, config)
    _repair_volume(table)
    _check_ranges(table)
    if config.price_mode == "log":
        _refuse_nonpositive(table)
    _sort(table)
    _drop_duplicates(table)


def _number(value: float) -> str:
    return f"{value:.10g}"


def _refuse_infinite(table: RawTable) -> None:
    for name, column in [*table.prices.items(), ("adjusted close", table.adjusted), ("volume", table.volume)]:
        bad = np.flatnonzero(np.isinf(column)) if column is not None else ()
        if len(bad):
            raise table.source.error(
                int(table.rows[bad[0]]),
                f"{name} is {column[bad[0]]} ({count(len(bad), 'such value')}): correct it, or leave the cell empty",
            )


def _adjust(table: RawTable, config: DataConfig) -> None:
    """Scale open, high, low and close by adjusted close / close; a row that cannot be scaled lacks its prices."""
    if not config.adjusted:
        if table.adjusted is not None:
            differ = int((np.abs(table.adjusted - table.prices["close"]) > ROUNDING * np.abs(table.prices["close"])).sum())
            if differ:
                table.notices.append(
                    f"adjusted close differs in {count(differ, 'row')} and is not used (data.adjusted = true scales by it)"
                )
        return
    if table.adjusted is None:
        raise table.source.error(None, "has no adjusted close column: set data.adjusted = false, or add one named 'Adj Close'")
    close = table.prices["close"]
    zero = np.flatnonzero((close == 0) | (table.adjusted == 0))
    if len(zero):
        raise table.source.error(int(table.rows[zero[0]]), "a close of 0 cannot be adjusted: correct it, or set data.adjusted = false")
    factor = table.adjusted / close
    table.prices = {name: column * factor for name, column in table.prices.items()}
    table.prices["close"] = table.adjusted.copy()
    table.notices.append(f"open, high, low and close scaled by adjusted close / close in {count(int((factor != 1).sum()), 'row')}")


def _drop_missing(table: RawTable, config: DataConfig) -> None:
    missing = np.isnan(np.stack([table.prices[name] for name in PRICES])).any(axis=0)
    number, rows = int(missing.sum()), len(table)
    if number == 0:
        return
    lost = table.rows[missing]
    allowed = FEW_MISSING if rows < FEW_ROWS and config.max_missing > 0 else config.max_missing * rows
    if number > allowed and config.max_missing < 1:
        raise table.source.error(
            int(lost[0]),
            f"a price is missing, as in {count(number, 'row')} of {rows:,} ({number / rows:.1%}, allowed are {config.max_missing:.1%}): "
            "raise data.max_missing to drop them as missing bars",
        )
    table.keep(~missing)
    table.notices.append(f"{count(number, 'row')} without a price dropped as missing bar{'s' * (number > 1)} ({table.source.listed(lost)})")


def _repair_volume(table: RawTable) -> None:
    if table.volume is None:
        table.notices.append("no volume column: volume features are neutral")
        return
    bad = np.flatnonzero(table.volume < 0)
    if len(bad):
        raise table.source.error(
            int(table.rows[bad[0]]),
            f"volume {_number(table.volume[bad[0]])} is negative ({count(len(bad), 'row')}): correct it, or leave it empty",
        )
    missing = np.isnan(table.volume)
    if missing.all() and len(table):
        table.volume = None
        table.notices.append("the volume column is empty: volume features are neutral")
    elif missing.any():
        table.notices.append(f"{count(int(missing.sum()), 'missing volume')} taken as 0 ({table.source.listed(table.rows[missing])})")
        table.volume = np.where(missing, 0.0, table.volume)


def _check_ranges(table: RawTable) -> None:
    open_, high, low, close = (table.prices[name] for name in PRICES)
    slack = ROUNDING * np.maximum.reduce([np.abs(open_), np.abs(high), np.abs(low), np.abs(close)])
    fix = "correct the row or delete it (are the columns named rightly?)"
    bad = np.flatnonzero(high < low - slack)
    if len(bad):
        i = bad[0]
        raise table.source.error(
            int(table.rows[i]), f"high {_number(high[i])} is below low {_number(low[i])} ({count(len(bad), 'such row')}): {fix}"
        )
    for name, price in (("open", open_), ("close", close)):
        bad = np.flatnonzero((price < low - slack) | (price > high + slack))
        if len(bad):
            i = bad[0]
            raise table.source.error(
                int(table.rows[i]),
                f"{name} {_number(price[i])} is outside low {_number(low[i])} .. high {_number(high[i])} "
                f"({count(len(bad), 'such row')}): {fix}",
            )
    top, bottom = np.maximum.reduce([open_, high, close, low]), np.minimum.reduce([open_, low, close, high])
    widened = int(((top != high) | (bottom != low)).sum())
    if widened:
        table.prices["high"], table.prices["low"] = top, bottom
        table.notices.append(f"high or low of {count(widened, 'row')} widened to hold open and close (rounding)")


def _refuse_nonpositive(table: RawTable) -> None:
    prices = np.stack([table.prices[name] for name in PRICES])
    bad = np.flatnonzero((prices <= 0).any(axis=0))
    if len(bad) == 0:
        return
    first = int(bad[np.argmin(table.rows[bad])])
    name = min((n for n in PRICES if table.prices[n][first] <= 0), key=lambda n: (table.prices[n][first], PRICES.index(n)))
    raise table.source.error(
        int(table.rows[first]),
        f"{name} {_number(table.prices[name][first])} on {stamp_text(table.timestamp[first])} is not above zero "
        f"({count(len(bad), 'row')} of {len(table):,} with a price <= 0): log returns need positive prices; "
        'data.price_mode = "arithmetic" allows them',
    )


def _sort(table: RawTable) -> None:
    steps = np.diff(table.timestamp)
    behind = int((steps < 0).sum())
    if behind == 0:
        return
    newest_first = bool((steps <= 0).all())
    table.keep(np.argsort(table.timestamp, kind="stable"))
    how = "the file was newest first" if newest_first else f"{count(behind, 'step')} back in time"
    table.notices.append(f"{count(len(table), 'row')} sorted by time ({how})")


def _drop_duplicates(table: RawTable) -> None:
    same = np.flatnonzero(np.diff(table.timestamp) == 0)
    if len(same) == 0:
        return
    columns = [*table.prices.values(), *([] if table.volume is None else [table.volume])]
    equal = np.all([column[same] == column[same + 1] for column in columns], axis=0)
    if not equal.all():
        i = int(same[np.flatnonzero(~equal)[0]])
        first, second = sorted((int(table.rows[i]), int(table.rows[i + 1])))
        raise table.source.error(
            second,
            f"differs from {table.source.at(first)}, which has the same stamp {stamp_text(table.timestamp[i])} UTC "
            f"({count(int((~equal).sum()), 'such conflict')}): delete the wrong one",
        )
    lost = np.sort(table.rows[same + 1])
    keep = np.ones(len(table), bool)
    keep[same + 1] = False
    table.keep(keep)
    table.notices.append(f"{count(len(lost), 'duplicate row')} removed ({table.source.listed(lost)})")
