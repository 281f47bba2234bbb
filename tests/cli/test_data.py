"""`rltrain data inspect`: what a file is read as, and the one line of a file that is refused."""

from pathlib import Path

import pytest

CASES = Path(__file__).parents[1] / "cases"


def inspect(rltrain, name, *options):
    done = rltrain("data", "inspect", CASES / name, *options)
    return done, {line[:18].strip(): line[18:].strip() for line in done.stdout.splitlines() if line.startswith("  ")}


def test_what_was_read_and_repaired(rltrain):
    done, said = inspect(rltrain, "E-15/gap_and_drift.csv")
    assert done.returncode == 0 and done.stderr == ""
    assert said["bars"] == "10"
    assert said["interval"] == "60 s (1 min)"
    assert said["span"].startswith("2026-02-02 10:00 to 2026-02-02 10:14 UTC")
    assert said["gaps"].startswith("1 gap, 5 bars missing")
    assert said["off-grid stamps"] == "2, 2026-02-02 10:11:14, 2026-02-02 10:12:14"
    assert said["bars per year"].startswith("unknown (not inferred: 1 session")
    assert said["prices"] == "19.9 to 21.1, closes 20.05 to 20.95"
    assert "2026-02-02 10:03" in done.stdout.partition("Largest gaps")[2]
    assert "2 off-grid stamps (lines 8, 9)" in done.stdout.partition("Repaired")[2]


def test_possible_split(rltrain):
    done, _ = inspect(rltrain, "E-11/split.csv")
    assert "-74.8775%" in done.stdout.partition("Possible splits")[2]


def test_options_are_settings(rltrain):
    done, said = inspect(
        rltrain, "E-01/two_tickers.csv", "--symbol", "zzqy", "--interval", "1d", "--bars-per-year", "252", "--max-missing", "0.1"
    )
    assert done.returncode == 0
    assert said["symbol"] == "ZZQY"
    assert said["bars per year"] == "252 (set by data.bars_per_year)"
    done, said = inspect(rltrain, "E-10/through_zero.csv", "--price-mode", "arithmetic")
    assert said["prices"] == "-8.2 to 12.9, closes 9.6 to 6.1"
    _, said = inspect(rltrain, "E-01/old_style_adj.csv", "--adjusted")
    assert said["prices"].endswith("closes 30.772 to 30.723")
    done, said = inspect(rltrain, "E-09/european.csv", "--month-first", "--decimal-comma")
    assert said["span"].startswith("2026-02-02 to 2026-04-02")
    done, said = inspect(rltrain, "E-06/ascending.csv", "--timezone", "Asia/Tokyo")  # these stamps carry theirs
    assert said["span"].startswith("2026-02-02 10:00")


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("E-07/conflict_dup.csv", (), "line 4 (row 3)"),
        ("E-09/european.csv", ("--decimal-point",), "data.decimal_comma"),
        ("E-09/us_thousands.csv", ("--day-first",), "data.day_first"),
        ("E-14/zero_bytes.csv", (), "0 bars found"),
        ("E-14/none.csv", (), "no such file"),
        ("E-06/ascending.csv", ("--max-missing", "3"), "--max-missing"),
        ("E-06/ascending.csv", ("--interval", "soon"), "--interval"),
    ],
)
def test_refused_in_one_line(rltrain, name, options, says):
    done = rltrain("data", "inspect", CASES / name, *options)
    assert done.returncode == 2 and done.stdout == ""
    assert says in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_help_has_an_example(rltrain):
    done = rltrain("data", "inspect", "--help")
    assert done.returncode == 0 and "Example: rltrain data inspect" in done.stdout
