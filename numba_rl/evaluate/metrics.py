"""Performance figures of equity paths, for one backtest or for thousands of windows at once.

Every figure is a function of ``Paths`` (arrays [W, n] of W windows) and returns float64 [W] with NaN where the figure
has no value; ``compute_metrics`` turns those into ``None``, shown as "n/a". ``METRICS`` lists them with label, unit and
formula. Units: returns, drawdowns and shares are fractions (0.01 is 1%), money is in the account's currency.

Annualised figures use ``bars_per_year`` of the data and are n/a where it is unknown. Cost: about two dozen passes over
the arrays.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from numba_rl.evaluate.paths import ABSOLUTE_NOISE, Paths, TradeTotals, drawdowns, ratio, sharpe, sortino
from numba_rl.evaluate.trades import bars_held

__all__ = [
    "METRICS",
    "Metric",
    "Paths",
    "TradeTotals",
    "compute_metrics",
    "drawdowns",
    "exit_notional",
    "log_return",
    "metrics_table",
    "notional",
    "rank_of_equity",
    "rank_value",
    "sharpe",
    "sortino",
    "trade_totals",
]

MIN_YEARS = 1 / 12  # yearly returns are not compounded from shorter spans: half a good day is not a year
CHUNK = 2_000_000  # elements worked on at a time


def rank_value(value: float | None) -> float:
    """Key for choosing the best run, checkpoint or fold by a figure: n/a ranks below every number.

    So does the Sharpe ratio of a policy that never trades, or that loses the same in every bar: neither is a strategy.
    """
    return -math.inf if value is None or math.isnan(value) else float(value)


def log_return(equity: np.ndarray) -> float:
    """ln(last / first) of an account's equity float64 [n + 1]; -inf after ruin, and where either is no number."""
    ratio = equity[-1] / equity[0]
    return float(np.log(ratio)) if 0.0 < ratio < math.inf else -math.inf


def rank_of_equity(equity: np.ndarray, by: str) -> float:
    """Figure to be maximised of an account's equity float64 [n + 1]: at the decision bar, then at each mark. -inf: none.

    by: "log_return", or "sharpe" for the Sharpe ratio per bar. The first is what rewards add up to; it takes an account that stays
    flat for better than one that loses. The second forgets how much was at stake.
    """
    if by == "log_return":
        return log_return(equity)
    return rank_value(_single(metrics_table(np.asarray(equity)[None], math.nan))["sharpe_per_bar"])


def total_return(p: Paths) -> np.ndarray:
    """Last over first equity, less 1; -1 is everything, less than -1 a debt."""
    return p.last(p.equity) / p.equity[:, 0] - 1.0


def gross_return(p: Paths) -> np.ndarray:
    """Total return of the same trades with all costs given back."""
    return p.missing() if p.gross_equity is None else p.last(p.gross_equity) / p.gross_equity[:, 0] - 1.0


def annual_return(p: Paths) -> np.ndarray:
    """Compound yearly return; n/a for spans under a month, -1 after ruin."""
    years = p.played / p.bars_per_year
    growth = p.last(p.equity) / p.equity[:, 0]
    compound = np.where(growth > 0, np.maximum(growth, 0.0) ** (1.0 / years) - 1.0, np.where(growth <= 0, -1.0, np.nan))
    return np.where(years >= MIN_YEARS * (1 - 1e-12), compound, np.nan)


def volatility(p: Paths) -> np.ndarray:
    """Sample standard deviation of the bar returns x sqrt(bars per year)."""
    return p.moments.std * math.sqrt(p.bars_per_year)


def sharpe_ratio(p: Paths) -> np.ndarray:
    """``sharpe`` of the bar returns, annualised."""
    return ratio(p.moments.mean, p.moments.std, p.moments.largest, p.bars_per_year)


def sharpe_per_bar(p: Paths) -> np.ndarray:
    """``sharpe`` of the bar returns, not annualised."""
    return ratio(p.moments.mean, p.moments.std, p.moments.largest, 1.0)


def sortino_ratio(p: Paths) -> np.ndarray:
    """``sortino`` of the bar returns, annualised."""
    return ratio(p.moments.mean, p.moments.downside, p.moments.largest, p.bars_per_year)


def calmar(p: Paths) -> np.ndarray:
    """Annual return over maximum drawdown; n/a without a drawdown (Young 1991)."""
    return annual_return(p) / np.where(p.max_drawdown > ABSOLUTE_NOISE, p.max_drawdown, np.nan)


def drawdown_bars(p: Paths) -> np.ndarray:
    """Longest run of bars below an earlier peak, whether regained or not."""
    points = np.arange(p.equity.shape[1])
    at_peak = p.clipped >= np.maximum.accumulate(p.clipped, -1)
    last_peak = np.maximum.accumulate(np.where(at_peak, points, 0), -1)
    below = np.where(points <= p.played[:, None], points - last_peak, 0)
    return np.where(np.isnan(p.max_drawdown), np.nan, below.max(-1))


def turnover(p: Paths) -> np.ndarray:
    """Money traded at each step over the equity before it, summed: how many times the account was traded."""
    if p.notional is None:
        return p.missing()
    return np.where(p.counted, p.notional / np.where(p.counted, p.equity[:, :-1], 1.0), 0.0).sum(-1)


def turnover_per_year(p: Paths) -> np.ndarray:
    """Turnover x bars per year / bars."""
    return turnover(p) * p.bars_per_year / p.played


def average_exposure(p: Paths) -> np.ndarray:
    """Mean of the exposure held, shorts negative."""
    return p.mean(p.exposure)


def absolute_exposure(p: Paths) -> np.ndarray:
    """Mean of |exposure held|."""
    return p.mean(None if p.exposure is None else np.abs(p.exposure))


def time_in_market(p: Paths) -> np.ndarray:
    """Share of the bars with a position."""
    return p.mean(None if p.exposure is None else p.exposure != 0)


def costs(p: Paths) -> np.ndarray:
    """Fees, spread and financing together."""
    return p.total(p.fee) + p.total(p.spread_cost) + p.total(p.financing)


def hit_rate(p: Paths) -> np.ndarray:
    """Closed trades with a net profit / closed trades."""
    return p.trade("wins") / p.trade("count")


def profit_factor(p: Paths) -> np.ndarray:
    """Net profits of winning trades / net losses of losing trades; n/a without a losing trade."""
    return p.trade("profit") / p.trade("loss")


def average_trade(p: Paths) -> np.ndarray:
    """Net profit a closed trade."""
    return (p.trade("profit") - p.trade("loss")) / p.trade("count")


def average_bars_held(p: Paths) -> np.ndarray:
    """Bars a closed trade was held."""
    return p.trade("bars") / p.trade("count")


def worst_bar(p: Paths) -> np.ndarray:
    """Lowest return of a bar."""
    return _extreme(p, np.min, np.inf)


def best_bar(p: Paths) -> np.ndarray:
    """Highest return of a bar."""
    return _extreme(p, np.max, -np.inf)


def _extreme(p: Paths, reduce: Callable, other: float) -> np.ndarray:
    return reduce(np.where(p.counted, p.returns, other), axis=-1, initial=other)


def max_drawdown(p: Paths) -> np.ndarray:
    """Largest share lost from a peak of equity, the first bar included."""
    return p.max_drawdown


def trade_count(p: Paths) -> np.ndarray:
    """Closed round trips."""
    return p.trade("count")


def fees(p: Paths) -> np.ndarray:
    """Exchange and broker fees; rebates are negative."""
    return p.total(p.fee)


def spread_cost(p: Paths) -> np.ndarray:
    """Money lost to fills worse than the reference price."""
    return p.total(p.spread_cost)


def financing(p: Paths) -> np.ndarray:
    """Borrowing of the short or levered part."""
    return p.total(p.financing)


def final_equity(p: Paths) -> np.ndarray:
    """Account at the end, all costs paid."""
    return p.last(p.equity)


def final_gross_equity(p: Paths) -> np.ndarray:
    """Account at the end of the same trades with all costs given back."""
    return p.missing() if p.gross_equity is None else p.last(p.gross_equity)


def bars(p: Paths) -> np.ndarray:
    """Steps played."""
    return p.played.astype(np.float64)


@dataclass(frozen=True)
class Metric:
    """One figure: its key in results, how people read it, and how it is computed."""

    key: str
    label: str
    unit: str  # percent, ratio, fine, money, count, bars, times
    compute: Callable[[Paths], np.ndarray]

    @property
    def formula(self) -> str:
        """What it is, in one line."""
        return (self.compute.__doc__ or "").split("\n")[0].strip()


METRICS: tuple[Metric, ...] = (
    Metric("total_return", "Net return", "percent", total_return),
    Metric("gross_return", "Gross return", "percent", gross_return),
    Metric("annual_return", "Net return a year", "percent", annual_return),
    Metric("volatility", "Volatility a year", "percent", volatility),
    Metric("sharpe", "Sharpe ratio a year", "ratio", sharpe_ratio),
    Metric("sharpe_per_bar", "Sharpe ratio per bar", "fine", sharpe_per_bar),
    Metric("sortino", "Sortino ratio a year", "ratio", sortino_ratio),
    Metric("calmar", "Calmar ratio", "ratio", calmar),
    Metric("max_drawdown", "Maximum drawdown", "percent", max_drawdown),
    Metric("drawdown_bars", "Longest drawdown, bars", "bars", drawdown_bars),
    Metric("best_bar", "Best bar", "percent", best_bar),
    Metric("worst_bar", "Worst bar", "percent", worst_bar),
    Metric("average_exposure", "Average exposure", "percent", average_exposure),
    Metric("absolute_exposure", "Average exposure, unsigned", "percent", absolute_exposure),
    Metric("time_in_market", "Time in the market", "percent", time_in_market),
    Metric("turnover", "Turnover", "times", turnover),
    Metric("turnover_per_year", "Turnover a year", "times", turnover_per_year),
    Metric("trades", "Closed trades", "count", trade_count),
    Metric("hit_rate", "Hit rate", "percent", hit_rate),
    Metric("profit_factor", "Profit factor", "ratio", profit_factor),
    Metric("average_trade", "Average trade, net", "money", average_trade),
    Metric("average_bars_held", "Average time held, bars", "bars", average_bars_held),
    Metric("fees", "Fees", "money", fees),
    Metric("spread_cost", "Spread", "money", spread_cost),
    Metric("financing", "Financing", "money", financing),
    Metric("costs", "Costs", "money", costs),
    Metric("final_equity", "Equity at the end, net", "money", final_equity),
    Metric("final_gross_equity", "Equity at the end, gross", "money", final_gross_equity),
    Metric("bars", "Bars", "count", bars),
)


def ratio_key(bars_per_year: float) -> str:
    """The Sharpe ratio to show first: "sharpe", a year, where the bars per year are known, else "sharpe_per_bar"."""
    return "sharpe" if math.isfinite(bars_per_year) else "sharpe_per_bar"


def trade_totals(net: np.ndarray, bars: np.ndarray, window: np.ndarray | None = None, windows: int = 1) -> TradeTotals:
    """Adds up closed trades by window: net money float64 [K], bars held [K], window index int64 [K] (None: all in 0)."""
    net = np.asarray(net, np.float64)
    window = np.zeros(len(net), np.int64) if window is None else np.asarray(window, np.int64)

    def add(weights: np.ndarray) -> np.ndarray:
        return np.bincount(window, weights, windows)

    return TradeTotals(
        count=add(np.ones(len(net))),
        wins=add(net > 0),
        profit=add(np.maximum(net, 0)),
        loss=add(np.maximum(-net, 0)),
        bars=add(np.asarray(bars, np.float64)),
    )


def metrics_table(
    equity: np.ndarray,
    bars_per_year: float,
    *,
    steps: np.ndarray | None = None,
    trades: TradeTotals | None = None,
    **paths: np.ndarray | None,
) -> dict[str, np.ndarray]:
    """All ``METRICS`` of W windows at once: key -> float64 [W], finite or NaN (n/a).

    equity: float64 [W, n+1]; ``steps`` int64 [W] where windows ended early; ``paths``: the other arrays of ``Paths`` by
    name, each with W rows. Works through the windows in chunks, so that the working memory stays near 100 MB.
    """
    equity = np.asarray(equity, np.float64)
    windows, points = equity.shape
    rows = max(1, CHUNK // points)
    parts: list[dict[str, np.ndarray]] = []
    for low in range(0, max(windows, 1), rows):
        cut = slice(low, low + rows)
        chunk = Paths(
            equity[cut],
            float(bars_per_year),
            None if steps is None else np.asarray(steps)[cut],
            trades=None if trades is None else TradeTotals(*(np.asarray(values)[cut] for values in trades)),
            **{name: None if values is None else np.asarray(values)[cut] for name, values in paths.items()},
        )
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            parts.append({metric.key: metric.compute(chunk) for metric in METRICS})
    table = {metric.key: np.concatenate([part[metric.key] for part in parts]) for metric in METRICS}
    return {key: np.where(np.isfinite(values), values, np.nan) for key, values in table.items()}


def notional(backtest) -> np.ndarray:
    """Money traded at each step of a ``Backtest`` without sign, float64 [n]; an exit that was forced is part of its step."""
    return np.abs(np.asarray(backtest.traded) * np.asarray(backtest.price)) * backtest.multiplier + exit_notional(backtest)


def exit_notional(backtest) -> np.ndarray:
    """The part of ``notional`` that closed positions at the end of a window or after a ruin, float64 [n]."""
    known = getattr(backtest, "exit_notional", None)
    if known is not None:
        return known
    money = np.zeros(len(backtest.traded))
    if len(money) and (backtest.closed_at_end or backtest.terminated):
        held = (backtest.position[-2] if len(money) > 1 else 0.0) + backtest.traded[-1]
        money[-1] = abs(held * backtest.close[-1]) * backtest.multiplier
    return money


def compute_metrics(backtest) -> dict[str, float | None]:
    """All ``METRICS`` of one ``Backtest``: key -> number or None (n/a)."""
    closed = ~np.asarray(backtest.trades.is_open, bool)
    held = bars_held(backtest.trades, exit_notional(backtest))
    table = metrics_table(
        np.asarray(backtest.equity)[None],
        backtest.bars_per_year,
        trades=trade_totals(np.asarray(backtest.trades.net)[closed], held[closed]),
        gross_equity=np.asarray(backtest.gross_equity)[None],
        exposure=np.asarray(backtest.exposure)[None],
        notional=notional(backtest)[None],
        fee=np.asarray(backtest.fee)[None],
        spread_cost=np.asarray(backtest.spread_cost)[None],
        financing=np.asarray(backtest.financing)[None],
    )
    return _single(table)


def _single(table: dict[str, np.ndarray]) -> dict[str, float | None]:
    """A table of one window as numbers."""
    return {key: None if math.isnan(values[0]) else float(values[0]) for key, values in table.items()}
