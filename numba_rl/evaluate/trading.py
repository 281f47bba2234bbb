"""The report's parts about what an agent did: its costs, its actions, its trades."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from markupsafe import Markup

from numba_rl.evaluate.backtest import Backtest
from numba_rl.evaluate.blocks import Figures, Section, Table, signed
from numba_rl.evaluate.charts import Line, line_chart
from numba_rl.evaluate.formatting import show, time_text
from numba_rl.evaluate.maps import heat_map
from numba_rl.evaluate.metrics import exit_notional, notional
from numba_rl.evaluate.svg import time_axis
from numba_rl.evaluate.trades import bars_held, fill_times
from numba_rl.rules.actions import EXPOSURE_NAMES, ORDER_NAMES, URGENCY_NAMES
from numba_rl.rules.fills import SAME_EXPOSURE

DAY_NS = 86_400_000_000_000


def costs_section(agent: Backtest, columns: Mapping[str, Figures]) -> Section:
    """Fees, spread and financing: by player, over time, and by order type and urgency."""
    initial = float(agent.equity[0])
    rows = []
    for label, key in (("Fees", "fees"), ("Spread", "spread_cost"), ("Financing", "financing"), ("Together", "costs")):
        rows.append([label, *(show(figures.get(key), "money") for figures in columns.values())])
    shares = [None if figures.get("costs") is None else figures["costs"] / initial for figures in columns.values()]
    rows.append(["Together, of the initial capital", *(show(share, "percent") for share in shares)])
    rows.append(["Turnover", *(show(figures.get("turnover"), "times") for figures in columns.values())])
    blocks: list[Table | Markup] = [Table(["", *columns], rows)]
    totals = [np.concatenate([[0.0], np.cumsum(part)]) for part in (agent.fee, agent.spread_cost, agent.financing)]
    lines = [
        Line(name, values, style)
        for name, values, style in zip(("Fees", "Spread", "Financing"), totals, ("agent", "hold", "random"), strict=True)
    ]
    blocks.append(line_chart("Costs paid so far", time_axis(agent.timestamp), lines, "money", zero=True, height=190))
    if len(agent.action) and (agent.action >= 0).any():
        blocks.append(_order_costs(agent))
    return Section("Costs", blocks)


def _order_costs(agent: Backtest) -> Table:
    """Orders, fills and costs by order type and urgency; the exit at the end is a row of its own."""
    before = np.concatenate([[0.0], agent.exposure[:-1]])
    sent = (np.abs(agent.target - before) > SAME_EXPOSURE) | (agent.traded != 0)
    filled = agent.traded != 0
    group = np.where(agent.action >= 0, agent.action % 9, -1)
    money, fee, spread = notional(agent), agent.fee, agent.spread_cost
    rows = []
    exits = exit_notional(agent) > 0
    group[exits] = 9  # costs there hold those of the exit and cannot be told apart
    for k in range(10):
        these = group == k
        orders = int(np.count_nonzero(sent & these))
        traded, fees, lost = (float(part[these].sum()) for part in (money, fee, spread))
        if not orders and not traded:
            continue
        last = "Last bars of windows" if np.count_nonzero(exits) > 1 else "Last bar"
        name = f"{last}, with the exit at the end" if k == 9 else f"{ORDER_NAMES[k // 3]}, {URGENCY_NAMES[k % 3]}"
        share = None if k == 9 or not orders else float(np.count_nonzero(filled & these)) / orders
        rate = (fees + lost) / traded * 1e4 if traded else None
        rows.append(
            [
                name[0].upper() + name[1:],
                show(orders, "count"),
                show(share, "percent"),
                show(traded, "money"),
                show(fees, "money"),
                show(lost, "money"),
                show(rate, "ratio"),
            ]
        )
    note = (
        "An order is a bar on which the exposure asked for was not the one held. Filled counts partial fills; cost in basis points of the money "
        "traded."
    )
    return Table(["Order", "Sent", "Filled", "Money traded", "Fees", "Spread", "Cost, bp"], rows, "By order type and urgency", note)


def actions_section(agent: Backtest) -> Section | None:
    """How often each of the 45 actions was chosen, and the exposure asked for over time; None for a player without actions."""
    chosen = agent.action >= 0
    if not chosen.any():
        return None
    counts = np.bincount(agent.action[chosen], minlength=45).reshape(5, 9) / chosen.sum()
    rows = [name.capitalize() for name in EXPOSURE_NAMES]
    orders = [f"{order}, {urgency}" for order in ORDER_NAMES for urgency in URGENCY_NAMES]
    usage = np.where(counts > 0, counts, np.nan)
    runs = min(90, int(chosen.sum()))
    edges = np.linspace(0, len(agent.action), runs + 1).astype(np.int64)
    shares = np.stack(
        [
            np.bincount(part[part >= 0] // 9, minlength=5) / max(np.count_nonzero(part >= 0), 1)
            for part in (agent.action[low:high] for low, high in pairwise(edges))
        ],
        1,
    )
    stamps = agent.timestamp[edges[:-1]]
    first = 5 if stamps[-1] - stamps[0] < 30 * DAY_NS else 0  # the clock matters in short ranges, the year in long ones
    times = [time_text(stamp)[first : first + 11].strip() for stamp in stamps]
    return Section(
        "Actions",
        [
            heat_map(
                "Share of the decisions, by exposure, order type and urgency",
                rows[::-1],
                orders,
                usage[::-1],
                "percent",
                note="An order is sent only where the exposure asked for is not the one held; else its type and urgency have no effect.",
            ),
            heat_map(
                "Exposure asked for over time, share of the decisions",
                rows[::-1],
                times,
                np.where(shares > 0, shares, np.nan)[::-1],
                "percent",
                text=False,
            ),
        ],
    )


def trades_section(agent: Backtest, fill_at: str) -> Section:
    """Round trips: a summary by side, and the best and worst. ``fill_at`` as market.fill_at."""
    trades = agent.trades
    closed = ~trades.is_open
    held = bars_held(trades, exit_notional(agent))
    columns = {"All": closed, "Long": closed & (trades.side > 0), "Short": closed & (trades.side < 0)}

    def each(label: str, unit: str, value) -> list[str]:
        return [label, *(show(value(which) if which.any() else None, unit) for which in columns.values())]

    rows = [
        ["Closed trades", *(show(int(which.sum()), "count") for which in columns.values())],
        each("Hit rate", "percent", lambda w: float((trades.net[w] > 0).mean())),
        each("Net profit", "money", lambda w: float(trades.net[w].sum())),
        each("Gross profit", "money", lambda w: float(trades.gross[w].sum())),
        each("Costs", "money", lambda w: float(trades.costs[w].sum())),
        each("Average trade, net", "money", lambda w: float(trades.net[w].mean())),
        each("Best trade, net", "money", lambda w: float(trades.net[w].max())),
        each("Worst trade, net", "money", lambda w: float(trades.net[w].min())),
        each("Average bars held", "bars", lambda w: float(held[w].mean())),
        each("Longest held", "bars", lambda w: float(held[w].max())),
    ]
    still = int(trades.is_open.sum())
    note = f"{still} still open at the end, marked at the last close and not counted here." if still else ""
    blocks: list[Table | Markup] = [Table(["", *columns], rows, note=note)]
    order = np.argsort(-trades.net, kind="stable")
    few = 5 if len(order) >= 10 else max(len(order) // 2, min(len(order), 1))
    entered, left = fill_times(trades, agent.timestamp, fill_at, exit_notional(agent))
    extremes = [
        [
            "Long" if trades.side[k] > 0 else "Short",
            time_text(entered[k]),
            time_text(left[k]),
            show(float(held[k]), "bars"),
            show(trades.units[k], "ratio"),
            show(trades.entry_price[k], "price"),
            show(trades.exit_price[k], "price"),
            show(trades.gross[k], "money"),
            show(trades.costs[k], "money"),
            signed(float(trades.net[k]), "money"),
        ]
        for k in [*order[:few], *order[len(order) - few :]]
    ]
    if extremes:
        head = ["Side", "From (UTC)", "To (UTC)", "Bars", "Units", "Price in", "Price out", "Gross", "Costs", "Net"]
        blocks.append(Table(head, list({tuple(map(str, row)): row for row in extremes}.values()), "Best and worst trades"))
    return Section("Trades", blocks)
