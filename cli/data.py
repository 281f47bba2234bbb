"""`rltrain data`: look at a market file before training on it."""

import math
from typing import TYPE_CHECKING, Any

import rich_click as click

from rltrain import options
from rltrain.app import LazyGroup
from rltrain.options import DURATION, setting, settings_options

if TYPE_CHECKING:
    from rich.table import Table

    from numba_rl.data.bars import Bars

MOST = 5  # gaps, splits and the like shown of each
PLAIN_WIDTH = 160  # columns where the output is no terminal
COMMANDS = {"synth": ("rltrain.synth:synth", "Make a synthetic market with a known answer.")}

_READING, _TIME, _SETTINGS = "Reading", "Time", "Settings"


@click.group(cls=LazyGroup, table=COMMANDS)
def data() -> None:
    """Look at a market file, or make a synthetic one.

    Example: rltrain data inspect bars.csv.gz
    """


@data.command()
@click.argument("market", metavar="FILE", type=click.Path())
@setting("--symbol", "data.symbol", "Instrument to read of a file that holds several.", panel=_READING)
@setting("--adjusted/--unadjusted", "data.adjusted", "Scale prices by adjusted close / close.", default=None, panel=_READING)
@setting("--decimal-comma/--decimal-point", "data.decimal_comma", "How 2.871,50 or 2,871.50 is read.", default=None, panel=_READING)
@setting("--max-missing", "data.max_missing", "Share of rows that may lack a price.", metavar="SHARE", panel=_READING)
@setting("--price-mode", "data.price_mode", "arithmetic allows prices at or below zero.", panel=_READING)
@setting("--timezone", "data.timezone", "Zone of stamps that carry none.", metavar="ZONE", panel=_TIME)
@setting("--day-first/--month-first", "data.day_first", "How 02/03/2026 is read.", default=None, panel=_TIME)
@setting("--interval", "data.interval_seconds", "Length of a bar: 60s, 5m, 1h, 1d.", type=DURATION, panel=_TIME)
@setting("--bars-per-year", "data.bars_per_year", "Instead of what the stamps tell.", metavar="NUMBER", panel=_TIME)
@settings_options(panel=_SETTINGS)
@click.pass_context
def inspect(ctx: click.Context, market: str, file: str | None, preset: str | None, sets: tuple[str, ...], **values: Any) -> None:
    """Say what FILE is read as: bars, interval, span, sessions, gaps, bars per year, what was repaired.

    FILE is CSV, Parquet, Feather/Arrow or Databento DBN, plain, .gz or .zst, known by its content. A file that cannot be
    trusted is refused with the row and the fix, and exit code 2.

    Example: rltrain data inspect bars.csv --timezone America/New_York --month-first
    """
    given = options.flags(values, ctx.command)
    given["market.sizing"] = ("rltrain data inspect", "units")  # nothing is traded here, so prices <= 0 need no other sizing
    config = options.resolve(file, preset, sets, given)

    from numba_rl.data.bars import read_bars

    _show(read_bars(market, config.data), market)


def _show(bars: "Bars", file: str) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PLAIN_WIDTH)
    console.print(file, style="bold", markup=False)
    console.print(_summary(bars))
    for title, table in (("Largest gaps", _gaps(bars)), ("Possible splits (prices are left as they are)", _splits(bars))):
        if table is not None:
            console.print(f"\n{title}", style="bold")
            console.print(table)
    console.print("\nRepaired, and worth knowing", style="bold")
    for notice in bars.notices or ("nothing: the file is clean",):
        console.print(f"  {notice}", markup=False)


def _summary(bars: "Bars") -> "Table":
    from rich.table import Table
    from rich.text import Text

    from numba_rl.data.calendar import DAY, MINUTE, SECOND
    from numba_rl.data.raw import count, stamp_text

    calendar = bars.calendar
    seconds = bars.interval_ns / SECOND
    first, last = int(bars.timestamp[0]), int(bars.timestamp[-1])
    year = "unknown" if math.isnan(bars.bars_per_year) else f"{bars.bars_per_year:,.10g}"
    missing = sum(gap.missing for gap in bars.gaps)
    off = calendar.off_grid
    rows = [
        *bars.read_as,
        ("bars", f"{len(bars):,}"),
        ("span", f"{stamp_text(first)} to {stamp_text(last)} UTC ({(last - first + bars.interval_ns) / DAY:,.1f} days)"),
        ("interval", f"{seconds:,g} s{_clock(bars.interval_ns // MINUTE)}" if bars.interval_ns else "unknown: one bar tells none"),
        ("bars per year", f"{year} ({calendar.rule})"),
        (
            "sessions",
            f"{calendar.sessions:,} on {count(calendar.days_per_week, 'weekday')}, bars in each {calendar.bars_per_session:,g} (median)",
        ),
        ("closures", f"{calendar.breaks:,} between sessions"),
        ("gaps", f"{count(len(bars.gaps), 'gap')}, {count(missing, 'bar')} missing ({missing / (missing + len(bars)):.2%} of open hours)"),
        ("off-grid stamps", f"{len(off):,}" + "".join(f", {stamp_text(bars.timestamp[i])}" for i in off[:MOST])),
        ("prices", f"{bars.low.min():.10g} to {bars.high.max():.10g}, closes {bars.close[0]:.10g} to {bars.close[-1]:.10g}"),
        ("volume", _volume(bars)),
        ("hash", bars.digest()[:16]),
    ]
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(f"  {name}", Text(value))
    return table


def _clock(minutes: int) -> str:
    """`` (1 h)``, for intervals of whole minutes."""
    for size, unit in ((1440, "d"), (60, "h"), (1, "min")):
        if minutes >= size and minutes % size == 0:
            return f" ({minutes // size} {unit})"
    return ""


def _volume(bars: "Bars") -> str:
    import numpy as np

    if bars.volume is None:
        return "none"
    idle = int((bars.volume == 0).sum())
    return f"{bars.volume.sum():,.10g} in all, {np.median(bars.volume):,.10g} a bar (median), {idle:,} bars without"


def _gaps(bars: "Bars") -> "Table | None":
    from numba_rl.data.raw import stamp_text

    largest = sorted(bars.gaps, key=lambda gap: -gap.missing)[:MOST]
    rows = [(stamp_text(gap.start_ns), stamp_text(gap.stop_ns), f"{gap.missing:,}") for gap in largest]
    return _table(("last bar before (UTC)", "first bar after", "bars missing"), rows)


def _splits(bars: "Bars") -> "Table | None":
    from numba_rl.data.raw import stamp_text

    rows = [
        (stamp_text(jump.timestamp_ns), jump.ratio, f"{jump.before:.10g}", f"{jump.after:.10g}", f"{jump.change:+.4%}")
        for jump in bars.jumps[:MOST]
    ]
    return _table(("bar (UTC)", "ratio", "close before", "close", "return"), rows)


def _table(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> "Table | None":
    from rich.table import Table

    if not rows:
        return None
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for title in titles:
        table.add_column(title)
    for row in rows:
        table.add_row(*row)
    return table
