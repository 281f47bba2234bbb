"""The report's parts about how an agent did: tables and pictures made from its ``Backtest`` and those of the baselines.

Each function returns a ``Section``, which the page shows as a heading with tables and pictures beneath. All figures come
from the arguments; what has no value is "n/a".
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from markupsafe import Markup

from numba_rl.evaluate.backtest import Backtest
from numba_rl.evaluate.blocks import Figures, Section, Table, signed
from numba_rl.evaluate.charts import Band, Line, bars_chart, histogram, line_chart
from numba_rl.evaluate.formatting import show
from numba_rl.evaluate.maps import heat_map
from numba_rl.evaluate.metrics import METRICS, compute_metrics
from numba_rl.evaluate.paths import bar_returns, drawdowns
from numba_rl.evaluate.svg import time_axis

PERIODS = (("year", "Y"), ("month", "M"), ("week", "W"), ("day", "D"), ("hour", "h"))
MOST_BARS = 60  # periods drawn side by side
RANGE_KEYS = (
    "total_return",
    "annual_return",
    "volatility",
    "sharpe",
    "sortino",
    "max_drawdown",
    "average_exposure",
    "turnover_per_year",
    "trades",
    "hit_rate",
    "costs",
    "bars",
)


def median_figures(backtests: Sequence[Backtest]) -> dict[str, float | None]:
    """The median of each metric over several backtests, such as random agents; n/a where half of them have none."""
    every = [compute_metrics(backtest) for backtest in backtests]
    known = {metric.key: [figures[metric.key] for figures in every if figures[metric.key] is not None] for metric in METRICS}
    return {key: float(np.median(values)) if 2 * len(values) > len(every) else None for key, values in known.items()}


def metrics_section(columns: Mapping[str, Figures], note: str) -> Section:
    """All metrics, one column a player."""
    rows = [[metric.label, *(show(figures.get(metric.key), metric.unit) for figures in columns.values())] for metric in METRICS]
    return Section("Figures", [Table(["", *columns], rows, note=note)])


def ranges_section(ranges: Mapping[str, Figures], decay: float | None) -> Section:
    """The agent in sample and out of sample."""
    rows = [
        [metric.label, *(show(figures.get(metric.key), metric.unit) for figures in ranges.values())]
        for metric in METRICS
        if metric.key in RANGE_KEYS
    ]
    note = "The policy was fitted on the training range and chosen on validation; only the test range is out of sample."
    if decay is not None:
        note += f" From training to test the Sharpe ratio lost {show(decay, 'percent')}."
    return Section("In sample and out of sample", [Table(["", *(name.capitalize() for name in ranges)], rows, note=note)])


def paths_section(agent: Backtest, hold: Backtest | None, random: Sequence[Backtest]) -> Section:
    """Equity, drawdown, exposure, position and price over time."""
    axis = time_axis(agent.timestamp)
    points = len(agent.timestamp)
    lines = [Line("Net", agent.equity), Line("Gross (costs given back)", agent.gross_equity, "gross")]
    falls = [Line("Agent", -drawdowns(agent.equity), "loss", fill=True)]
    if hold is not None:
        lines.append(Line("Buy-and-hold", stretched(hold.equity, points), "hold"))
        falls.append(Line("Buy-and-hold", -drawdowns(stretched(hold.equity, points)), "hold"))
    band = None
    if random:
        low, middle, high = quantile_paths(random, points)
        lines.append(Line("Random, median", middle, "random"))
        band = Band(f"inner 80% of {len(random)} random agents", low, high)
    held, position = (np.append(values, values[-1:]) for values in (agent.exposure, agent.position))  # the last one holds to the end
    return Section(
        "Over time",
        [
            line_chart("Equity", axis, lines[::-1], "money", log=None, band=band),
            line_chart("Drawdown from the highest equity", axis, falls, "percent", zero=True, height=190),
            line_chart(
                "Exposure held",
                axis,
                [Line("Exposure", held, "gross", step=True, fill=True), Line("Average", smoothed(held), "agent")],
                "percent",
                zero=True,
                height=190,
            ),
            line_chart(
                "Position in units", axis, [Line("Position", position, "agent", step=True, fill=True)], "count", zero=True, height=170
            ),
            line_chart("Price at the close", axis, [Line("Close", agent.close, "hold")], "ratio", height=190),
        ],
    )


def quantile_paths(backtests: Sequence[Backtest], points: int) -> np.ndarray:
    """Deciles 1, 5 and 9 of the equities at each point, float64 [3, points]; exact at 1,500 points, straight between them."""
    at = np.unique(np.linspace(0, points - 1, min(points, 1500)).astype(np.int64))
    found = np.quantile(np.stack([stretched(backtest.equity, points)[at] for backtest in backtests]), [0.1, 0.5, 0.9], axis=0)
    return np.stack([np.interp(np.arange(points), at, row) for row in found])


def stretched(equity: np.ndarray, points: int) -> np.ndarray:
    """Equity of exactly ``points`` points: cut, or going on at its last value after a ruin."""
    return np.concatenate([equity[:points], np.full(max(points - len(equity), 0), equity[-1])])


def smoothed(values: np.ndarray, runs: int = 150) -> np.ndarray:
    """Moving average over about 1/``runs`` of the series, float64 like values [N]; NaN is left out."""
    width = max(1, len(values) // runs)
    known = np.isfinite(values)
    total = np.cumsum(np.concatenate([[0.0], np.where(known, values, 0.0)]))
    count = np.cumsum(np.concatenate([[0], known]))
    low = np.maximum(np.arange(len(values)) - width // 2, 0)
    high = np.minimum(low + width, len(values))
    return (total[high] - total[low]) / np.maximum(count[high] - count[low], 1)


def periods(timestamp: np.ndarray, code: str) -> list[tuple[str, int, int]]:
    """Calendar periods of marks int64 [n + 1] ns as (label, first, last): from point ``first`` to point ``last``; UTC. ``code`` as in NumPy."""
    marks = timestamp[1:].astype("datetime64[ns]").astype(f"datetime64[{code}]")
    if code == "W":  # NumPy's weeks begin on Thursday
        marks = (timestamp[1:].astype("datetime64[ns]").astype("datetime64[D]") - np.datetime64("1970-01-05")) // np.timedelta64(7, "D")
        marks = np.datetime64("1970-01-05") + marks * np.timedelta64(7, "D")
    edges = [0, *(np.flatnonzero(marks[1:] != marks[:-1]) + 1), len(marks)]
    labels = [str(marks[low]).replace("T", " ") + (":00" if code == "h" else "") for low in edges[:-1] if low < len(marks)]
    return [(label, int(low), int(high)) for label, (low, high) in zip(labels, pairwise(edges), strict=False)]


def returns_section(agent: Backtest, hold: Backtest | None) -> Section:
    """Distribution of bar returns, returns by period, and the table of months."""
    points = len(agent.timestamp)
    other = None if hold is None else stretched(hold.equity, points)
    own = bar_returns(agent.equity)
    theirs = None if other is None else bar_returns(other)
    idle = int(np.count_nonzero(own == 0))
    note = f"{idle:,} of {len(own):,} bars without profit or loss are left out." if idle else ""
    blocks: list[Table | Markup] = [
        histogram("Returns of the bars", own[own != 0], None if theirs is None else theirs[theirs != 0], note=note)
    ]
    name, code = next(((name, code) for name, code in reversed(PERIODS) if len(periods(agent.timestamp, code)) <= MOST_BARS), PERIODS[0])
    parts = periods(agent.timestamp, code)

    def grown(equity: np.ndarray) -> np.ndarray:
        return np.array([equity[high] / equity[low] - 1 if equity[low] > 0 else np.nan for _, low, high in parts])

    series = [Line("Agent", grown(agent.equity), "agent")]
    if other is not None:
        series.append(Line("Buy-and-hold", grown(other), "hold"))
    blocks.append(bars_chart(f"Net return by {name} (UTC)", [label for label, _, _ in parts], series, "percent", signed=len(series) == 1))
    months = periods(agent.timestamp, "M")
    if len(months) > 12:
        blocks.append(_calendar(agent, months))
    blocks.append(_month_table(agent, other, months))
    return Section("Returns", blocks)


def _calendar(agent: Backtest, months: list[tuple[str, int, int]]) -> Markup:
    years = sorted({label[:4] for label, _, _ in months})
    values = np.full((len(years), 12), np.nan)
    for label, low, high in months:
        if agent.equity[low] > 0:
            values[years.index(label[:4]), int(label[5:]) - 1] = agent.equity[high] / agent.equity[low] - 1
    names = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
    return heat_map("Net return by calendar month", years, names, values, "percent", signed=True)


def _month_table(agent: Backtest, other: np.ndarray | None, months: list[tuple[str, int, int]]) -> Table:
    ends = agent.trades.exit_index[~agent.trades.is_open]
    paid = np.concatenate([[0.0], np.cumsum(agent.fee + agent.spread_cost + agent.financing)])
    rows = []
    for label, low, high in months:
        own = agent.equity[high] / agent.equity[low] - 1 if agent.equity[low] > 0 else None
        theirs = None if other is None or other[low] <= 0 else other[high] / other[low] - 1
        difference = None if own is None or theirs is None else own - theirs
        closed = int(np.count_nonzero((ends >= low) & (ends < high)))
        rows.append(
            [
                label,
                signed(own, "percent"),
                signed(theirs, "percent"),
                signed(difference, "percent"),
                show(float(drawdowns(agent.equity[low : high + 1]).max()), "percent"),
                show(closed, "count"),
                show(paid[high] - paid[low], "money"),
            ]
        )
    head = ["Month (UTC)", "Net return", "Buy-and-hold", "Difference", "Maximum drawdown", "Trades closed", "Costs"]
    return Table(head, rows, "By month", scroll=len(rows) > 14)
