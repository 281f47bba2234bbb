"""Test windows side by side: what the agent made in each, beside buy-and-hold and doing nothing, as a table and as pictures."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.data.windows import Range, windows_within
from numba_rl.errors import ConfigError, one_line
from numba_rl.evaluate.backtest import Backtest, decision_range, play_actions
from numba_rl.evaluate.blocks import Figures, Section, Table, lines, signed
from numba_rl.evaluate.charts import Line, bars_chart
from numba_rl.evaluate.folds import window_length
from numba_rl.evaluate.formatting import show, time_text
from numba_rl.evaluate.metrics import METRICS, compute_metrics
from numba_rl.evaluate.player import Player
from numba_rl.rules.actions import EXPOSURES, MARKET, NORMAL, compose

# of METRICS: in windows.csv, and with their headings in the report
COLUMNS = (
    "total_return", "gross_return", "annual_return", "volatility", "sharpe", "sharpe_per_bar", "sortino", "calmar", "max_drawdown", "turnover",
    "trades", "hit_rate", "average_exposure", "absolute_exposure", "time_in_market", "fees", "spread_cost", "financing", "costs",
)  # fmt: skip
SHOWN = {
    "total_return": "Net return", "sharpe": "Sharpe", "sortino": "Sortino", "max_drawdown": "Drawdown", "turnover": "Turnover",
    "trades": "Trades", "absolute_exposure": "Exposure", "costs": "Costs",
}  # fmt: skip
WHOLE = ("trades",)  # numbers without a fraction in windows.csv

_log = logging.getLogger("numba_rl")
UNITS = {metric.key: metric.unit for metric in METRICS}


@dataclass(frozen=True)
class Window:
    """One test window. ``about``: further columns of windows.csv that come first (fold, seed, training dates)."""

    span: Range
    agent: Backtest
    hold: Backtest
    about: Mapping[str, Any] = field(default_factory=dict)
    trained: tuple[str, str] | tuple[()] = ()  # first and last bar (UTC) of its training, the validation included

    @property
    def dates(self) -> tuple[str, str]:
        """First and last bar (UTC) that was marked; a ruined account ends early."""
        return time_text(self.agent.timestamp[1]), time_text(self.agent.timestamp[-1])

    @property
    def figures(self) -> Figures:
        """The agent's metrics."""
        return compute_metrics(self.agent)


def hold_windows(market: Market, spans: Sequence[Range], config: Config) -> list[Backtest]:
    """Buy-and-hold in each window, bought at its start and closed at its end, all windows at once."""
    longest = max(span.stop - 1 - decision_range(span).start for span in spans)
    actions = np.full((longest, len(spans)), compose(EXPOSURES - 1, MARKET, NORMAL), np.int32)
    return play_actions(market, list(spans), actions, config, names=["buy and hold"] * len(spans))


def windows_of_policy(policy, market: Market, config: Config, warn: Callable[[str], None] = _log.warning) -> list[Window]:
    """One policy over windows of evaluate.test bars, evaluate.step apart, through the test range; an account of its own in each.

    The market is scaled as the policy's was. They are played on a GPU where evaluate.player can; of one that fails `warn` is told in a line.
    ConfigError: evaluate.test is not set.
    """
    length = window_length(config, "test")
    if length is None:
        raise ConfigError('evaluate.test is not set; give --test, a number of bars ("5000") or a time ("30d")')
    spans = windows_within(market.timestamp, market.interval_ns, market.test, length, window_length(config, "step"))

    def failed(error: Exception) -> None:
        warn(f"the GPU could not play {len(spans)} windows ({one_line(error)}); they are played on the CPU path")

    played = Player(market, config, failed).play(policy, list(spans))
    holds = hold_windows(market, spans, config)
    return [Window(*row, {"window": k}) for k, row in enumerate(zip(spans, played, holds, strict=True))]


def windows_table(windows: Sequence[Window]) -> pl.DataFrame:
    """A row a window: dates, metrics of the agent (empty: n/a), and its return against buy-and-hold and flat."""
    rows = []
    for window in windows:
        figures, hold = window.figures, compute_metrics(window.hold)
        first, last = window.dates
        row = {**window.about, "test_start": first, "test_end": last, "test_bars": window.span.bars}
        row |= {key: int(figures[key]) if key in WHOLE else figures[key] for key in COLUMNS}
        row |= {
            "hold_return": hold["total_return"],
            "hold_sharpe": hold["sharpe"],
            "hold_max_drawdown": hold["max_drawdown"],
            "flat_return": 0.0,
        }
        row |= {"excess_over_hold": _excess(figures, hold), "excess_over_flat": figures["total_return"]}
        row |= {"ruined": window.agent.terminated, "closed_at_end": window.agent.closed_at_end}
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


def _excess(figures: Figures, hold: Figures) -> float | None:
    return None if figures["total_return"] is None or hold["total_return"] is None else figures["total_return"] - hold["total_return"]


def windows_section(windows: Sequence[Window], names: Mapping[str, str], title: str = "Test windows", text: str = "") -> Section:
    """Returns of the windows as bars, and their table. ``names``: the columns of ``about`` to show, key -> heading."""
    own_figures, hold_figures = _figures(windows)
    returns = [np.array([_number(f["total_return"]) for f in figures]) for figures in (own_figures, hold_figures)]
    labels = [window.dates[0][:10] for window in windows]
    if len(set(labels)) < len(labels):
        labels = [window.dates[0] for window in windows]
    yearly = math.isfinite(windows[0].agent.bars_per_year)
    shown = SHOWN if yearly else {"sharpe_per_bar" if key == "sharpe" else key: name for key, name in SHOWN.items() if key != "sortino"}
    picture = bars_chart("Net return by window", labels, [Line("Agent", returns[0]), Line("Buy-and-hold", returns[1], "hold")], "percent")
    fitted = any(window.trained for window in windows)
    rows = []
    for window, own, hold in zip(windows, own_figures, hold_figures, strict=True):
        row = [*(_cell(window.about[name]) for name in names), *([lines(*window.trained)] if fitted else []), lines(*window.dates)]
        for key in shown:
            row.append(signed(own[key], UNITS[key]) if key == "total_return" else show(own[key], UNITS[key]))
        rows.append([*row, show(hold["total_return"], "percent"), signed(_excess(own, hold), "percent")])
    head = [*names.values(), *(["Trained on (UTC)"] if fitted else []), "Tested on (UTC)", *shown.values(), "Hold", "Excess"]
    ratios = "Sharpe and Sortino ratios a year" if yearly else "Sharpe ratio per bar"
    note = f"{beaten(*returns)} {ratios}; exposure unsigned; hold: return of buy-and-hold; excess over it."
    return Section(title, [picture, Table(head, rows, note=note, scroll=len(rows) > 14)], text)


def windows_line(windows: Sequence[Window]) -> str:
    """How the windows went, in one line."""
    returns = [np.array([_number(f["total_return"]) for f in each]) for each in _figures(windows)]
    return f"windows: {beaten(*returns)} Median net return {show(float(np.median(returns[0])), 'percent')}."


def _figures(windows: Sequence[Window]) -> tuple[list[Figures], list[Figures]]:
    """Metrics of the agent and of buy-and-hold, by window."""
    return [window.figures for window in windows], [compute_metrics(window.hold) for window in windows]


def beaten(own: np.ndarray, hold: np.ndarray) -> str:
    """In how many windows the agent did better than nothing and than buy-and-hold, by net returns float64 [W]."""
    return (
        f"{int(np.count_nonzero(own > 0))} of {len(own)} windows made money after costs (more than doing nothing), "
        f"{int(np.count_nonzero(own > hold))} more than buy-and-hold."
    )


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def _cell(value: Any) -> str:
    return show(value, "ratio") if isinstance(value, float) or value is None else str(value)
