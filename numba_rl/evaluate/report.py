"""The report: one HTML file that stands alone, without network, light or dark as the reader's system.

``write_report`` fills report.html (styled by report.css, hover by report.js) with sections from ``sections.py`` and
``trading.py``; what
comes from elsewhere (walk-forward, cost sensitivity) is handed over as ready ``Section`` objects. Everything is escaped.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import jinja2
import numpy as np
from markupsafe import Markup
from msgspec.structs import asdict

import numba_rl
from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.evaluate import sections, trading
from numba_rl.evaluate.backtest import Backtest
from numba_rl.evaluate.blocks import Figures, Section, Table, signed
from numba_rl.evaluate.formatting import NOT_AVAILABLE, chance, setting_text, show, span_text, time_text
from numba_rl.evaluate.metrics import METRICS, MIN_YEARS, compute_metrics, notional
from numba_rl.evaluate.sections import median_figures
from numba_rl.evaluate.statistics import Statistics
from numba_rl.files import atomic_write


@dataclass(frozen=True)
class DataSummary:
    """What was read, and how it was split. ``ranges``: name -> (first bar ns, last bar ns, bars)."""

    source: str
    bars: int
    first_ns: int
    last_ns: int
    interval_ns: int
    bars_per_year: float  # NaN: unknown
    notices: Sequence[str] = ()
    ranges: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    features: int = 0
    bars_digest: str = ""
    features_digest: str = ""


@dataclass(frozen=True)
class ReportData:
    """Everything that the report says.

    ``agent`` and the baselines were played over the same range. ``ranges``: metrics of the agent by range, in order
    (train, validation, test). ``sample`` names the agent's range in headings. ``first`` and ``extra``: further sections,
    shown before and after the agent's own. ``interrupted``: why training ended early.
    """

    title: str
    agent: Backtest
    statistics: Statistics
    hold: Backtest | None = None
    flat: Backtest | None = None
    random: Sequence[Backtest] = ()
    ranges: Mapping[str, Figures] = field(default_factory=dict)
    data: DataSummary | None = None
    config: Config | None = None
    warnings: Sequence[str] = ()
    interrupted: str | None = None
    sample: str = "test range"
    extra: Sequence[Section] = ()
    first: Sequence[Section] = ()


def summarize_market(market: Market) -> DataSummary:
    """The data summary of a market."""
    ranges = {name: getattr(market, name) for name in ("train", "validation", "test")}
    spans = {
        name: (int(market.timestamp[r.start]), int(market.timestamp[r.stop - 1]), r.stop - r.start)
        for name, r in ranges.items()
        if r.stop > r.start
    }
    return DataSummary(
        market.source,
        len(market.timestamp),
        int(market.timestamp[0]),
        int(market.timestamp[-1]),
        market.interval_ns,
        market.bars_per_year,
        market.notices,
        spans,
        len(market.names),
        market.bars_digest,
        market.features_digest,
    )


def write_report(path: str | Path, data: ReportData) -> None:
    """Write the report as one file, whole or not at all. Raises OSError where it cannot be written."""
    atomic_write(Path(path), render_report(data))


def render_report(data: ReportData) -> str:
    """The report as HTML text."""
    columns = _columns(data)
    own = columns["Agent"]
    actions = trading.actions_section(data.agent)
    body = [
        *data.first,
        sections.paths_section(data.agent, data.hold, data.random),
        sections.metrics_section(columns, _figures_note(data)),
        _statistics_section(data.statistics),
        *([sections.ranges_section(data.ranges, data.statistics.decay)] if data.ranges else []),
        sections.returns_section(data.agent, data.hold),
        trading.costs_section(data.agent, columns),
        *([actions] if actions else []),
        trading.trades_section(data.agent, data.config.market.fill_at if data.config else "next_open"),
        *data.extra,
        *([_data_section(data.data)] if data.data else []),
        *([_settings_section(data.config)] if data.config else []),
        _definitions_section(),
    ]
    return render_page(
        data.title,
        _subtitle(data),
        body,
        verdict=data.statistics.verdict,
        level=data.statistics.level,
        tiles=_tiles(data, own, columns),
        warnings=[*_warnings(data, own), *data.warnings],
        interrupted=data.interrupted,
    )


def render_page(
    title: str,
    subtitle: str,
    body: Sequence[Section],
    *,
    verdict: str = "",
    level: str = "none",
    tiles: Sequence[tuple[str, str | Markup, str]] = (),
    warnings: Sequence[str] = (),
    interrupted: str | None = None,
) -> str:
    """A page of sections that stands alone, as HTML text."""
    folder = resources.files("numba_rl.evaluate")
    parts = {name: (folder / f"report.{name}").read_text(encoding="utf-8") for name in ("html", "css", "js")}
    page = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined).from_string(
        parts["html"]
    )
    return page.render(
        title=title,
        subtitle=subtitle,
        verdict=verdict,
        level=level,
        tiles=tiles,
        warnings=warnings,
        interrupted=interrupted,
        sections=body,
        css=Markup(parts["css"]),
        js=Markup(parts["js"]),
        is_table=lambda block: isinstance(block, Table),
        version=numba_rl.__version__,
    )


def _columns(data: ReportData) -> dict[str, Figures]:
    columns: dict[str, Figures] = {"Agent": compute_metrics(data.agent)}
    if data.hold is not None:
        columns["Buy-and-hold"] = compute_metrics(data.hold)
    if data.flat is not None:
        columns["Flat"] = compute_metrics(data.flat)
    if data.random:
        columns["Random" if len(data.random) == 1 else f"Random, median of {len(data.random)}"] = median_figures(data.random)
    return columns


def _subtitle(data: ReportData) -> str:
    stamps = data.agent.timestamp
    parts = [
        f"{data.sample}: {time_text(stamps[0])} to {time_text(stamps[-1])} UTC",
        f"{len(stamps) - 1:,} bars of {span_text(data.agent.interval_ns)}",
    ]
    return " · ".join([*([data.data.source] if data.data else []), *parts])


def _tiles(data: ReportData, own: Figures, columns: Mapping[str, Figures]) -> list[tuple[str, str | Markup, str]]:
    interval = data.statistics.interval
    unit = "ratio" if interval.annualised else "fine"
    span = (
        "no interval"
        if interval.low is None
        else f"{interval.confidence:.0%} interval {show(interval.low, unit)} to {show(interval.high, unit)}"
    )
    hold = columns.get("Buy-and-hold", {})
    traded = float(notional(data.agent).sum())
    rate = own["costs"] / traded * 1e4 if traded and own["costs"] is not None else None
    sharpe = show(interval.estimate, unit)
    return [
        ("Net return", signed(own["total_return"], "percent"), f"gross {show(own['gross_return'], 'percent')}"),
        ("Buy-and-hold", signed(hold.get("total_return"), "percent"), f"Sharpe ratio {show(hold.get('sharpe'), 'ratio')} a year"),
        ("Sharpe ratio " + ("a year" if interval.annualised else "per bar"), sharpe, span),
        ("Maximum drawdown", show(own["max_drawdown"], "percent"), f"longest: {show(own['drawdown_bars'], 'bars')} bars"),
        ("Costs", show(own["costs"], "money"), f"{show(rate, 'ratio')} bp of the money traded"),
        ("Closed trades", show(own["trades"], "count"), f"hit rate {show(own['hit_rate'], 'percent')}"),
        ("Average exposure", show(own["absolute_exposure"], "percent"), f"signed {show(own['average_exposure'], 'percent')}"),
        ("Turnover a year", show(own["turnover_per_year"], "times"), f"{show(own['turnover'], 'times')} in this range"),
    ]


def _warnings(data: ReportData, own: Figures) -> list[str]:
    out = []
    if data.agent.terminated:
        out.append(
            f"The account was ruined at {time_text(data.agent.timestamp[-1])} UTC with an equity of {show(own['final_equity'], 'money')}; it ends there."
        )
    if data.config is not None:
        market = data.config.market
        if not market.fill_simulation:
            out.append("Fill simulation is off, which is optimistic: limit orders never miss, and nothing pays the spread.")
        if market.fill_at == "close":
            out.append("Orders fill at the close that the decision was made on, which is optimistic: that price is gone once it is known.")
        if max(market.taker_bps, market.maker_bps, market.spread_bps, market.min_fee) <= 0:
            out.append("Trading costs nothing under these settings; real markets charge fees and spread.")
    if not math.isfinite(data.agent.bars_per_year):
        out.append("Bars per year are unknown (set data.bars_per_year): yearly figures are n/a.")
    elif len(data.agent.timestamp) - 1 < MIN_YEARS * data.agent.bars_per_year:
        out.append(
            "The range is shorter than a month: returns are not compounded to a year, and a Sharpe ratio from so few days says little."
        )
    if own["trades"] == 0 and not np.any(data.agent.exposure):
        out.append("The agent never held a position.")
    return out


def _figures_note(data: ReportData) -> str:
    per_year = data.agent.bars_per_year
    text = "Bars per year are unknown: yearly figures are n/a."
    if math.isfinite(per_year):
        text = f"Yearly figures use {per_year:,.0f} bars a year: ratios and volatility per bar times {math.sqrt(per_year):,.2f}, its square root."
    if data.random:
        finals = np.array([other.equity[-1] for other in data.random])
        beaten = int(np.count_nonzero(data.agent.equity[-1] > finals))
        text += f" The agent ended above {beaten} of {len(finals)} random agents that trade as much."
    return text


def _statistics_section(found: Statistics) -> Section:
    interval = found.interval
    per, unit = ("a year", "ratio") if interval.annualised else ("per bar", "fine")
    span = NOT_AVAILABLE if interval.low is None else f"{show(interval.low, unit)} to {show(interval.high, unit)}"
    how = (
        f"circular blocks of {interval.block} bars, {interval.resamples:,} resamples, seed {interval.seed}"
        if interval.block
        else "too few profits and losses"
    )
    best = f"the best of as many without skill would show {show(found.deflated.threshold, 'fine')} per bar"
    rows = [
        [f"Sharpe ratio {per}", show(interval.estimate, unit), f"of {interval.bars:,} bars"],
        [f"{interval.confidence:.0%} interval", span, how],
        [
            "Probability that the true ratio is above zero",
            chance(found.probabilistic),
            "probabilistic Sharpe ratio (Bailey and Lopez de Prado 2012)",
        ],
        [
            "Deflated for the trials tried",
            chance(found.deflated.probability),
            f"trials: {found.deflated.trials:,}; {best} (Bailey and Lopez de Prado 2014)",
        ],
    ]
    if found.hold is not None:
        rows += [
            ["Probability that buy-and-hold had the better Sharpe ratio", chance(found.hold.sharpe), "paired resamples of the same bars"],
            ["Probability that buy-and-hold earned more", chance(found.hold.total_return), "paired resamples of the same bars"],
        ]
    return Section("How much may be luck", [Table(["", "Value", "How"], rows, text=True)])


def _data_section(data: DataSummary) -> Section:
    known = math.isfinite(data.bars_per_year)
    rows = [
        ["Source", data.source],
        ["Bars", f"{data.bars:,} (after the features' warm-up)"],
        ["First and last bar, UTC", f"{time_text(data.first_ns)} to {time_text(data.last_ns)}, {span_text(data.last_ns - data.first_ns)}"],
        ["Interval", span_text(data.interval_ns)],
        ["Bars per year", f"{data.bars_per_year:,.0f}" if known else f"{NOT_AVAILABLE}, set data.bars_per_year"],
        ["Yearly ratio / ratio per bar", f"{math.sqrt(data.bars_per_year):,.2f}" if known else NOT_AVAILABLE],
        *([["Features", f"{data.features:,}"]] if data.features else []),
        *([["SHA-256 of the bars", Markup("<code>{}</code>").format(data.bars_digest)]] if data.bars_digest else []),
        *([["SHA-256 of the features", Markup("<code>{}</code>").format(data.features_digest)]] if data.features_digest else []),
    ]
    blocks = [Table((), rows, text=True)]
    if data.ranges:
        spans = [[name.capitalize(), time_text(first), time_text(last), f"{bars:,}"] for name, (first, last, bars) in data.ranges.items()]
        blocks.append(Table(["Range", "First bar (UTC)", "Last bar (UTC)", "Bars"], spans, "Ranges"))
    if data.notices:
        blocks.append(Table((), [[notice] for notice in data.notices], "What the reader repaired or noticed", text=True))
    return Section("Data", blocks)


def _settings_section(config: Config) -> Section:
    default, blocks = Config(), []
    for name, value in asdict(config).items():
        if isinstance(value, str):
            blocks.append(_settings_table(name, {name: value}, {name: getattr(default, name)}))
        else:
            blocks.append(_settings_table(name, asdict(value), asdict(getattr(default, name))))
    return Section("Settings", blocks, "Settings that differ from their default are marked, with the default beside them.", folded=True)


def _settings_table(name: str, values: Mapping[str, object], defaults: Mapping[str, object]) -> Table:
    rows = []
    for key, value in values.items():
        text: str | Markup = setting_text(value)
        if value != defaults[key]:
            text = Markup('<mark>{}</mark> <span class="was">default {}</span>').format(text, setting_text(defaults[key]))
        rows.append([key, text])
    return Table((), rows, name, text=True)


def _definitions_section() -> Section:
    rows = [[metric.label, metric.formula.replace("``", "")] for metric in METRICS]
    return Section("What the figures mean", [Table((), rows, text=True)], folded=True)
