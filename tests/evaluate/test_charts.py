"""Pictures: peaks survive thinning, labels are round and apart, values land where the axis says."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_rl.evaluate import charts, maps, svg
from numba_rl.evaluate.charts import Line
from numba_rl.evaluate.formatting import chance, setting_text, show, span_text, time_text

DAY = 86_400_000_000_000


def parse(figure) -> ET.Element:
    return ET.fromstring(re.search(r"<svg.*</svg>", str(figure), re.DOTALL).group())


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30_000), st.integers(0, 2**32 - 1))
def test_thinning_keeps_both_ends_and_both_extremes(n, seed):
    values = np.random.default_rng(seed).normal(size=n).cumsum()
    index = svg.thin(values)
    assert len(index) <= 2 * svg.COLUMNS + 2 and (np.diff(index) > 0).all() and index[0] == 0 and index[-1] == n - 1
    assert values[index].min() == values.min() and values[index].max() == values.max()


@settings(max_examples=60, deadline=None)
@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.booleans())
def test_ticks_are_round_distinct_and_inside(low, span, zero):
    found = svg.scale([np.array([low, low + span])], 10, 290, zero=zero)
    assert 2 <= len(found.ticks) <= 16
    assert all(found.low - 1e-9 * abs(found.low) <= tick <= found.high + 1e-9 * abs(found.high) for tick in found.ticks)
    heights = found(np.array([low, low + span]))
    assert 290.001 >= heights[0] > heights[1] >= 9.999
    if span > 1e-5 * abs(low):
        labels = svg.tick_labels(found.ticks, "money")
        assert len(set(labels)) == len(labels)


def test_tick_labels():
    assert svg.tick_labels([0, 0.005, 0.01], "percent") == ["0.0%", "0.5%", "1.0%"]
    assert svg.tick_labels([995_000, 1_000_000], "money") == ["995,000", "1,000,000"]
    assert svg.tick_labels([0, 25e6, 50e6], "money") == ["0M", "25M", "50M"]
    assert svg.tick_labels([1.085, 1.0875], "ratio") == ["1.0850", "1.0875"]


@pytest.mark.parametrize(
    ("step", "count", "label"),
    [
        (60_000_000_000, 200, "01 Mar 10:30"),
        (60_000_000_000, 6000, "02 Mar 00:00"),
        (DAY, 60, "11 Mar"),
        (DAY, 1500, "Jan 2025"),
        (DAY, 9000, "2030"),
    ],
)
def test_time_labels_are_round_and_apart(step, count, label):
    stamps = int(np.datetime64("2024-03-01T09:13", "ns").astype(np.int64)) + step * np.arange(count)
    ticks = svg.time_axis(stamps).ticks
    places = [float(svg.across(at)) for at, _ in ticks]
    assert label in [text for _, text in ticks] and 3 <= len(ticks) <= 12 and np.diff(places).min() >= svg.LABEL_GAP


def test_closed_hours_take_no_room():
    friday, monday = (int(np.datetime64(day, "ns").astype(np.int64)) for day in ("2024-03-01", "2024-03-04"))
    stamps = np.concatenate([friday + 3_600_000_000_000 * np.arange(24), monday + 3_600_000_000_000 * np.arange(24)])
    axis = svg.time_axis(stamps)
    assert np.ptp(np.diff(axis.position)) < 1e-12
    assert (axis.position[24], "04 Mar 00:00") in axis.ticks


def test_curve_lies_where_its_values_are():
    values = np.array([0.0, 10.0, 5.0])
    root = parse(charts.time_chart("T", DAY * np.arange(3), [Line("L", values)], "money", height=290))
    drawn = [tuple(map(float, pair.split())) for pair in re.findall(r"[ML]([\d.]+ [\d.]+)", root.find("path").get("d"))]
    vertical = svg.scale([values], svg.TOP, 290 - svg.BOTTOM)
    assert [x for x, _ in drawn] == pytest.approx([svg.LEFT, (svg.LEFT + svg.WIDTH - svg.RIGHT) / 2, svg.WIDTH - svg.RIGHT], abs=0.06)
    assert [y for _, y in drawn] == pytest.approx(vertical(values), abs=0.06)
    assert drawn[1][1] < drawn[2][1] < drawn[0][1]


def test_curve_breaks_at_missing_values():
    drawn = svg.path(np.arange(5.0), np.array([1.0, 2, np.nan, 3, 4]))
    assert drawn == "M0 1L1 2M3 3L4 4"
    assert svg.path(np.arange(3.0), np.array([1.0, 2, 2]), step=True) == "M0 1H1V2H2V2"


def test_wide_ranges_turn_logarithmic_and_losses_do_not():
    growth = np.exp(np.linspace(0, 5, 50))
    assert "logarithmic" in charts.time_chart("T", DAY * np.arange(50), [Line("L", growth)], "money", log=None)
    assert "logarithmic" not in charts.time_chart("T", DAY * np.arange(50), [Line("L", growth - 10)], "money", log=None)
    assert "logarithmic" not in charts.time_chart("T", DAY * np.arange(5), [Line("L", growth[:5])], "money", log=None)


def test_histogram_counts_every_return():
    values = np.concatenate([np.random.default_rng(0).normal(0, 0.01, 5000), [9.0, -9.0]])
    figure = str(charts.histogram("H", values))
    shares = [float(rect.get("height")) for rect in parse(figure).iter("rect")]
    assert len(shares) == 60 and shares[0] > 0 and shares[-1] > 0
    total = sum(map(float, re.search(r'"agent",\[(.*?)\]', figure).group(1).split(",")))
    assert total == pytest.approx(1.0, abs=1e-4)


def test_bars_grow_from_zero():
    root = parse(charts.bars_chart("B", ["a", "b", "c"], [Line("x", np.array([1.0, -2.0, np.nan]))], "percent", signed=True))
    up, down = root.iter("rect")
    assert "gain" in up.get("class") and "loss" in down.get("class")
    assert float(down.get("height")) == pytest.approx(2 * float(up.get("height")), abs=0.2)
    assert float(up.get("y")) + float(up.get("height")) == pytest.approx(float(down.get("y")), abs=0.2)


def test_heat_map_leaves_missing_cells_empty():
    root = parse(maps.heat_map("M", ["r1", "r2"], ["c1, x", "c2, y"], np.array([[0.5, np.nan], [-0.25, 0.0]]), "percent", signed=True))
    cells = list(root.iter("rect"))
    assert [cell.get("class") for cell in cells] == ["cell gain", "cell loss", "cell gain"]
    assert float(cells[0].get("fill-opacity")) > float(cells[1].get("fill-opacity")) > float(cells[2].get("fill-opacity"))
    assert [cell.find("title").text for cell in cells] == ["r1, c1, x: 50.00%", "r2, c1, x: -25.00%", "r2, c2, y: 0.00%"]


def test_folds_are_drawn_to_scale():
    root = parse(maps.folds_chart("F", DAY * np.arange(1000), [("f", [("train", 0, 500), ("purge", 500, 510), ("test", 510, 1000)])]))
    widths = {rect.get("class"): float(rect.get("width")) for rect in root.iter("rect")}
    assert widths["fold train"] == pytest.approx(50 * widths["fold purge"], rel=0.01)
    assert sum(widths.values()) == pytest.approx(svg.WIDTH - svg.LEFT - svg.RIGHT, abs=0.3)


def test_fan_shows_every_path():
    paths = np.random.default_rng(0).normal(size=(7, 100)).cumsum(1)
    root = parse(charts.fan_chart("F", svg.time_axis(DAY * np.arange(100)), paths, "money", others=[Line("hold", paths[0], "hold")]))
    styles = [path.get("class") for path in root.iter("path")]
    assert styles == ["area agent", *["line thread agent"] * 7, "line agent", "line hold"]


def test_nothing_to_show_is_said():
    none = np.zeros(0)
    for figure in (
        charts.histogram("T", none),
        maps.heat_map("T", [], [], np.zeros((0, 0)), "percent"),
        maps.folds_chart("T", none, []),
        charts.bars_chart("T", [], [], "percent"),
        charts.fan_chart("T", svg.time_axis(none), np.zeros((0, 0)), "money"),
        charts.time_chart("T", none, [Line("L", none)], "money"),
    ):
        assert "n/a" in figure


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "money", "n/a"),
        (float("nan"), "percent", "n/a"),
        (float("inf"), "ratio", "n/a"),
        (0.12345, "percent", "12.35%"),
        (-0.5, "percent", "-50.00%"),
        (1e-6, "percent", "0.0001%"),
        (-0.0, "percent", "0.00%"),
        (12.5, "percent", "1,250.0%"),
        (1234567.8, "money", "1,234,568"),
        (4.7812e9, "money", "4,781,200,000"),
        (12.345, "money", "12.35"),
        (3.0, "bars", "3"),
        (3.25, "bars", "3.2"),
        (1234.5, "count", "1,234"),
        (2.5, "times", "2.50x"),
        (0.01234, "fine", "0.0123"),
        (1.0834, "price", "1.08340"),
        (38193.25, "price", "38,193.2"),
        (3e12, "money", "3.000e+12"),
    ],
)
def test_show(value, unit, text):
    assert show(value, unit) == text


def test_times_spans_chances_and_settings():
    stamp = int(np.datetime64("2024-02-29T13:58", "ns").astype(np.int64))
    assert (
        time_text(stamp) == "2024-02-29 13:58"
        and time_text(stamp - stamp % DAY) == "2024-02-29"
        and time_text(stamp + 10**9) == "2024-02-29 13:58:01"
    )
    assert [span_text(ns) for ns in (60e9, 90 * 60e9, DAY, 35.5 * DAY, 1461 * DAY, 5e6, float("nan"))] == [
        "1 min",
        "1.5 h",
        "1 day",
        "35.5 days",
        "4.0 years",
        "5 ms",
        "n/a",
    ]
    assert [chance(p) for p in (None, float("nan"), 0.0, 0.5, 1.0)] == ["n/a", "n/a", "under 0.1%", "50.0%", "over 99.9%"]
    assert [setting_text(v) for v in (None, True, 0.0003, 2_000_000, 1e6, (0.6, 0.2), "log")] == [
        "none",
        "yes",
        "0.0003",
        "2,000,000",
        "1,000,000",
        "0.6, 0.2",
        "log",
    ]
