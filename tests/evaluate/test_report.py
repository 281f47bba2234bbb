"""The report: stands alone, escapes everything, shows its inputs' numbers, and n/a where there are none."""

import itertools
import json
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from markupsafe import Markup

from numba_rl.config import Config, DataConfig, MarketConfig
from numba_rl.evaluate.backtest import Backtest
from numba_rl.evaluate.blocks import Section, Table
from numba_rl.evaluate.formatting import show
from numba_rl.evaluate.metrics import compute_metrics
from numba_rl.evaluate.report import DataSummary, ReportData, render_report, write_report
from numba_rl.evaluate.sections import median_figures, periods, quantile_paths, returns_section, smoothed
from numba_rl.evaluate.statistics import judge
from numba_rl.evaluate.trades import round_trips
from numba_rl.evaluate.trading import costs_section

START = int(np.datetime64("2024-01-25T13:58", "ns").astype(np.int64))
MINUTE = 60_000_000_000
HOSTILE = """<script>alert("x")</script>' & <b>"""


def play(steps=3000, seed=0, *, drift=0.0, interval=MINUTE, name="agent", idle=False, **fields) -> Backtest:
    """An account that trades at random by market orders at the close, with fees and spread."""
    rng = np.random.default_rng(seed)
    close = 100.0 * np.exp(np.cumsum(rng.normal(drift, 1e-3, steps + 1)))
    asked = np.repeat(rng.integers(0, 5, steps // 20 + 1), 20)[:steps]
    exposure = np.zeros(steps) if idle else (asked - 2) / 2
    position = exposure * 1000.0
    traded = np.diff(position, prepend=0.0)
    fee, spread = np.abs(traded * close[:-1]) * 2e-4, np.abs(traded * close[:-1]) * 5e-5
    financing = np.where(position < 0, 0.5, 0.0)
    gross = 1e6 + np.concatenate([[0.0], np.cumsum(position * np.diff(close))])
    equity = gross - np.concatenate([[0.0], np.cumsum(fee + spread + financing)])
    trades = round_trips(np.arange(steps), traded, close[:-1], fee + spread, financing, close[-1], 1.0)
    base = Backtest(
        START + interval * np.arange(steps + 1),
        close,
        equity,
        gross,
        (asked * 9 + rng.integers(0, 9, steps)).astype(np.int32),
        exposure,
        exposure,
        position,
        close[:-1].copy(),
        traded,
        fee,
        spread,
        financing,
        np.zeros(steps, np.float32),
        False,
        False,
        525_600.0,
        interval,
        name,
        1.0,
        trades,
    )
    return replace(base, **fields)


def report(agent, **fields) -> ReportData:
    hold = fields.get("hold")
    return ReportData("PPO on test", agent, judge(agent, hold), **fields)


@pytest.fixture(scope="module")
def full() -> str:
    agent, hold = play(), play(seed=1)
    figures = compute_metrics(agent)
    data = DataSummary(
        "bars.csv",
        9000,
        START - 6000 * MINUTE,
        START + 3000 * MINUTE,
        MINUTE,
        525_600.0,
        ("3 rows sorted",),
        {"train": (START - 6000 * MINUTE, START, 6000)},
        51,
        "ab" * 32,
        "cd" * 32,
    )
    return render_report(
        report(
            agent,
            hold=hold,
            flat=play(idle=True),
            random=[play(seed=k) for k in range(5)],
            ranges={"train": figures, "test": figures},
            data=data,
            config=Config(data=DataConfig(path="bars.csv")),
            extra=[Section("Windows", [Table(["", "Return"], [["1", "2.00%"]])])],
        )
    )


def pictures(page: str) -> list[ET.Element]:
    return [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def words(page: str) -> str:
    """The page's visible text."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", re.sub(r"<(style|script).*?</\1>", " ", page, flags=re.DOTALL)))


class Balanced(HTMLParser):
    """Fails at a tag that closes another than the last one opened."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in {"meta", "br", "link", "img"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, tag


def test_stands_alone_and_is_well_formed(full):
    assert not re.search(r"""(src|href)\s*=\s*["']?(?!#)|@import|url\(|fetch\(|<link""", full.replace('href="#', 'data-inner="'))
    assert set(re.findall(r"https?://[^\s\"']+", full)) <= {"http://www.w3.org/2000/svg"}
    parser = Balanced()
    parser.feed(full)
    assert not parser.open
    assert len(pictures(full)) == 10  # each parsed as XML; 5 over time, 2 of returns, 1 of costs, 2 of actions
    assert len(full) < 1_500_000


def test_has_every_part(full):
    headings = re.findall(r"<h2>(.*?)</h2>", full)
    assert headings == [
        "Over time",
        "Figures",
        "How much may be luck",
        "In sample and out of sample",
        "Returns",
        "Costs",
        "Actions",
        "Trades",
        "Windows",
        "Data",
        "Settings",
        "What the figures mean",
    ]
    text = words(full)
    assert (
        "No evidence of skill after costs" in text
        and "525,600 bars a year" in text
        and "3 rows sorted" in text
        and "Random, median of 5" in text
    )
    assert text.index("No evidence") < text.index("Over time")


def test_figures_are_those_of_the_inputs(full):
    agent, hold = play(), play(seed=1)
    text = words(full)
    for played in (agent, hold):
        figures = compute_metrics(played)
        for key, unit in (
            ("total_return", "percent"),
            ("costs", "money"),
            ("max_drawdown", "percent"),
            ("sharpe", "ratio"),
            ("turnover", "times"),
        ):
            assert show(figures[key], unit) in text, key
    assert f"{len(agent.trades.net) - int(agent.trades.is_open.sum())}" in text


def test_the_cost_of_what_was_traded_is_that_of_an_account_that_grew():
    agent = play(financing=np.zeros(3000))
    grown = replace(agent, equity=agent.equity * np.linspace(1.0, 20.0, 3001))
    for account in (agent, grown):
        assert "2.50 bp of the money traded" in words(render_report(report(account)))  # fees 2 bp and spread 0.5 bp, as played


def test_everything_is_escaped():
    agent = play(name=HOSTILE)
    data = DataSummary(HOSTILE, 10, START, START + MINUTE, MINUTE, 525_600.0, (HOSTILE,), {HOSTILE: (START, START, 1)}, 51, HOSTILE)
    page = render_report(
        ReportData(
            HOSTILE,
            agent,
            replace(judge(agent), verdict=HOSTILE),
            ranges={HOSTILE: compute_metrics(agent)},
            data=data,
            warnings=(HOSTILE,),
            interrupted=HOSTILE,
            sample=HOSTILE,
            config=Config(data=DataConfig(path=HOSTILE)),
            extra=[Section(HOSTILE, [Table([HOSTILE], [[HOSTILE]], HOSTILE, HOSTILE)], HOSTILE)],
        )
    )
    assert "alert(" in page and "<script>alert" not in page and not re.search(r"<b>(?!Interrupted|[A-Z])", page)
    parser = Balanced()
    parser.feed(page)
    assert not parser.open


def test_data_for_the_pointer_is_valid_and_finite(full):
    payloads = [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', full)]
    assert len(payloads) == 8
    for plot in payloads:
        assert len(plot["x"]) == len(plot["t"]) and plot["x"] == sorted(plot["x"])
        for _, _, values in plot["s"]:
            assert len(values) == len(plot["x"]) and all(value is None or math.isfinite(value) for value in values)
    agent = play()
    equity = next(values for name, _, values in payloads[0]["s"] if name == "Net")
    assert equity[0] == agent.equity[0] and equity[-1] == pytest.approx(agent.equity[-1], rel=1e-5)


@pytest.mark.parametrize(
    "agent",
    [
        play(1),
        play(2, idle=True),
        play(500, idle=True),
        play(300, bars_per_year=math.nan),
        play(50, action=np.full(50, -1, np.int32)),
        replace(play(30), equity=np.linspace(1e6, -5e4, 31), terminated=True),
        play(40, closed_at_end=True),
        play(3000, interval=86_400_000_000_000),
        replace(play(300), close=np.linspace(5, -5, 301)),
    ],
    ids=["one step", "two idle steps", "idle", "unknown year", "no actions", "ruined", "closed", "years of days", "negative prices"],
)
def test_odd_accounts_are_shown_without_nan_or_infinity(agent):
    with np.errstate(all="raise"):
        page = render_report(report(agent, hold=agent, random=[agent, agent]))
    assert not re.search(r"\b(nan|inf|infinity|None)\b", words(page), re.IGNORECASE)
    for picture in pictures(page):
        assert "nan" not in ET.tostring(picture, "unicode").lower().replace("financing", "")


def test_ruin_and_optimism_are_said_first():
    ruined = replace(play(30), equity=np.linspace(1e6, -5e4, 31), terminated=True)
    config = Config(market=MarketConfig(fill_simulation=False, fill_at="close", taker_bps=0, maker_bps=0, spread_bps=0))
    text = words(render_report(report(ruined, config=config, interrupted="Stopped by Ctrl-C after 12 epochs")))
    head = text[: text.index("Net return")]
    for said in (
        "was ruined",
        "limit orders never miss",
        "fill at the close",
        "costs nothing",
        "Interrupted. Stopped by Ctrl-C",
        "shorter than a month",
    ):
        assert said in head, said
    assert "never held a position" in words(render_report(report(play(300, idle=True))))
    assert "Bars per year are unknown" in words(render_report(report(play(300, bars_per_year=math.nan))))


def test_changed_settings_are_marked():
    page = render_report(report(play(100), config=Config(market=MarketConfig(taker_bps=7.5))))
    assert page.count("<mark>") == 1 and '<mark>7.5</mark> <span class="was">default 4</span>' in page


def test_periods_cover_every_step_once():
    stamps = np.datetime64("2023-12-30T22:00", "ns").astype(np.int64) + 3_600_000_000_000 * np.arange(24 * 45)
    for code in ("Y", "M", "W", "D", "h"):
        parts = periods(stamps, code)
        assert parts[0][1] == 0 and parts[-1][2] == len(stamps) - 1 and all(a[2] == b[1] for a, b in itertools.pairwise(parts))
    assert [label for label, _, _ in periods(stamps, "Y")] == ["2023", "2024"]
    assert [label for label, _, _ in periods(stamps, "M")] == ["2023-12", "2024-01", "2024-02"]
    assert periods(stamps, "W")[1][0] == "2024-01-01"  # a Monday
    low, high = periods(stamps, "M")[1][1:]
    assert str(stamps[low + 1].astype("datetime64[ns]"))[:16] == "2024-01-01T00:00" and high - low == 31 * 24


def test_months_compound_to_the_whole():
    agent = play(2000, interval=86_400_000_000_000)
    table = next(block for block in returns_section(agent, None).blocks if isinstance(block, Table))
    growth = math.prod(1 + float(Markup(row[1]).striptags().rstrip("%")) / 100 for row in table.rows)
    assert growth == pytest.approx(agent.equity[-1] / agent.equity[0], abs=5e-3)
    assert [row[2] for row in table.rows] == ["n/a"] * len(table.rows)
    assert sum(int(row[5]) for row in table.rows) == np.count_nonzero(~agent.trades.is_open)


@pytest.mark.parametrize("ending", [{}, {"closed_at_end": True}])
def test_costs_by_order_add_up(ending):
    agent = play(800, seed=3, **ending)
    assert agent.position[-1] != 0
    section = costs_section(agent, {"Agent": compute_metrics(agent)})
    rows = [block for block in section.blocks if isinstance(block, Table)][-1].rows
    assert any("exit at the end" in row[0] for row in rows) == bool(ending)
    for column, total in ((4, agent.fee.sum()), (5, agent.spread_cost.sum())):
        assert sum(float(row[column].replace(",", "")) for row in rows) == pytest.approx(total, rel=1e-3)
    assert all(row[2] == "100.00%" for row in rows if "exit" not in row[0])


def test_median_of_random_agents():
    paths = [play(200, seed=k) for k in range(5)]
    expected = np.median([compute_metrics(path)["total_return"] for path in paths])
    assert median_figures(paths)["total_return"] == pytest.approx(expected)
    assert median_figures([play(200, idle=True), play(200, idle=True), play(200)])["sharpe"] is None


def test_band_of_random_agents_needs_few_points_only():
    paths = [play(9000, seed=k) for k in range(6)]
    low, middle, high = quantile_paths(paths, 9001)
    exact = np.quantile([path.equity for path in paths], [0.1, 0.5, 0.9], axis=0)
    for got, expected in zip((low, middle, high), exact, strict=True):
        assert got.shape == (9001,) and got[0] == expected[0] and got[-1] == expected[-1]
        assert np.abs(got - expected).max() < 0.05 * np.ptp(exact)  # of a fixed random market
    short = replace(paths[0], equity=np.array([1e6, 5e5, -1.0]))
    np.testing.assert_allclose(quantile_paths([short], 5)[1], [1e6, 5e5, -1.0, -1.0, -1.0])


def test_moving_average_of_a_constant_and_of_gaps():
    np.testing.assert_allclose(smoothed(np.full(3000, 0.5)), 0.5)
    np.testing.assert_allclose(smoothed(np.where(np.arange(3000) % 2, 0.5, np.nan))[10:-10], 0.5)


def test_file_is_written_whole(tmp_path, monkeypatch):
    target = tmp_path / "report.html"
    data = report(play(100))
    write_report(target, data)
    assert target.read_text() == render_report(data)
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    before = target.read_bytes()
    with pytest.raises(OSError):
        write_report(target, replace(data, title="other"))
    assert target.read_bytes() == before and [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
