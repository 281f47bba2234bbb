"""The same policy under cheaper and dearer trading: all costs times 0, 1, 2, 4, over the same bars.

Fees, spread, minimum fee and financing are multiplied together. The policy plays anew at each multiple: a dearer spread moves
its limit prices and is one of its inputs, so its decisions may differ as they would in such a market.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

from numba_rl import settings
from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.data.windows import Range
from numba_rl.errors import ConfigError
from numba_rl.evaluate.backtest import Backtest, play_policy
from numba_rl.evaluate.blocks import Section, Table, signed
from numba_rl.evaluate.charts import Line, curve_chart
from numba_rl.evaluate.formatting import show
from numba_rl.evaluate.metrics import METRICS, compute_metrics

COSTS = ("taker_bps", "maker_bps", "spread_bps", "min_fee", "financing_rate")
SHOWN = ("total_return", "gross_return", "sharpe", "max_drawdown", "trades", "costs")


def parse_multiples(text: str) -> tuple[float, ...]:
    """Multiples of the costs from "0,1,2,4", in rising order. ConfigError: one is no number of 0 or more."""
    found = set()
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = -1.0
        if not 0 <= value < np.inf:
            raise ConfigError(f'--costs {text}: "{part.strip()}" is no multiple; give numbers of 0 or more, as 0,1,2,4')
        found.add(value)
    return tuple(sorted(found))


def with_costs(config: Config, multiple: float) -> Config:
    """The settings with all COSTS times `multiple`."""
    return settings.replace(config, {f"market.{name}": getattr(config.market, name) * multiple for name in COSTS})


def play_at_costs(policy, market: Market, window: Range, config: Config, multiples: Sequence[float]) -> dict[float, Backtest]:
    """The policy over one range at each multiple of the settings' costs."""
    return {m: play_policy(market, [window], policy, with_costs(config, m), names=[f"costs x {m:g}"])[0] for m in multiples}


def costs_table(played: dict[float, Backtest]) -> pl.DataFrame:
    """A row a multiple (of all costs) with all metrics (empty: n/a)."""
    return pl.DataFrame([{"multiple": m, **compute_metrics(b)} for m, b in played.items()], infer_schema_length=None)


def break_even(multiples: Sequence[float], returns: Sequence[float]) -> float | None:
    """The first multiple at which the return falls to 0, straight between neighbours; None: at none of them or at all."""
    for k in range(1, len(multiples)):
        high, low = returns[k - 1], returns[k]
        if high > 0 >= low:
            return multiples[k - 1] + (multiples[k] - multiples[k - 1]) * high / (high - low)
    return None


def costs_line(played: dict[float, Backtest]) -> str:
    """The net returns in one line."""
    found = (f"{show(compute_metrics(backtest)['total_return'], 'percent')} at {m:g}x" for m, backtest in played.items())
    return f"net return by costs: {', '.join(found)}"


def costs_section(played: dict[float, Backtest]) -> Section:
    """Return and Sharpe ratio over the multiples, and where the profit ends."""
    multiples = np.array(list(played))
    figures = [compute_metrics(backtest) for backtest in played.values()]

    def line(name: str, key: str, style: str) -> Line:
        return Line(name, np.array([np.nan if f[key] is None else f[key] for f in figures]), style)

    rows = []
    for m, found in zip(multiples, figures, strict=True):
        cells = [
            signed(found[metric.key], metric.unit) if metric.key == "total_return" else show(found[metric.key], metric.unit)
            for metric in METRICS
            if metric.key in SHOWN
        ]
        rows.append([f"{m:g}x", *cells])
    net = line("Net return", "total_return", "agent")
    even = break_even(multiples.tolist(), net.values.tolist())
    text = "All costs times a number: fees, spread, minimum fee and financing."
    if even is not None:
        text += f" The profit ends at about {even:.2f} times the costs of the settings."
    blocks = [
        curve_chart("Return by costs", multiples, [net, line("Gross return", "gross_return", "gross")], "percent", zero=True, height=230),
        curve_chart("Sharpe ratio a year by costs", multiples, [line("Sharpe ratio", "sharpe", "agent")], "ratio", zero=True, height=200),
        Table(["Costs", *(metric.label for metric in METRICS if metric.key in SHOWN)], rows),
    ]
    return Section("Cost sensitivity", blocks, text)
