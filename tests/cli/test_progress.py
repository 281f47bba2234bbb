"""The progress display, on a terminal and elsewhere."""

import io

from rich.console import Console

from rltrain import progress as module
from rltrain.progress import TrainingProgress, clock


def shown(updates, *, terminal, monkeypatch, steps=1000, time_limit=None):
    """What is printed for (seconds, figures) updates."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    text = io.StringIO()
    with TrainingProgress(steps, time_limit, Console(file=text, force_terminal=terminal, color_system=None, width=80)) as display:
        for seconds, figures in updates:
            now[0] = seconds
            display.update(figures)
    return text.getvalue()


def test_plain_lines_come_every_ten_seconds_and_keep_the_last_figures(monkeypatch):
    updates = [
        (1, {"step": 100, "steps_per_second": 50.0, "reward": 0.5, "validation_sharpe": 1.25}),
        (11, {"step": 500, "steps_per_second": 50.0, "approx_kl": 0.01, "entropy": float("nan")}),
        (12, {"step": 600, "steps_per_second": 50.0}),
        (13, {"step": 1010, "steps_per_second": 50.0}),
    ]
    _, first, last = shown(updates, terminal=False, monkeypatch=monkeypatch).splitlines()
    assert first == " 50%  500 steps, 50 steps/s, 0:10 left, reward +0.5000, KL 0.0100, validation Sharpe per bar +1.2500"
    assert last.startswith("100%  1,010 steps")


def test_the_time_limit_counts_where_it_comes_first(monkeypatch):
    updates = [(20, {"step": 500, "steps_per_second": 50.0, "seconds": 20.0})]
    line = shown(updates, terminal=False, monkeypatch=monkeypatch, time_limit=25.0)
    assert line.splitlines()[1] == " 80%  500 steps, 50 steps/s, 0:05 left"


def test_a_terminal_of_80_columns_shows_all_of_it(monkeypatch):
    figures = {"step": 500_000_000, "steps_per_second": 12_345_678.0, "seconds": 41.0}
    figures |= {"reward": -0.5, "approx_kl": 0.0123, "entropy": 3.81, "validation_sharpe": -0.0211}
    out = shown([(1, figures)], terminal=True, monkeypatch=monkeypatch, steps=1_000_000_000)
    assert " 50% ━━━━━━━━━━" in out
    assert "500,000,000 steps, 12,345,678 steps/s, 0:41 left" in out
    assert "reward -0.5000, KL 0.0123, entropy 3.81, validation Sharpe per bar -0.0211" in out


def test_clock():
    assert [clock(seconds) for seconds in (7, 750, 3725)] == ["0:07", "12:30", "1:02:05"]
