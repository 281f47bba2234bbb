"""Splits and walk-forward folds: every bar accounted for, in bars and in calendar time, over gaps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_rl.data.windows import MIN_BARS, Range, account, bars_needed, parse_length, split, untested, walk_forward, windows_within
from numba_rl.errors import ConfigError, DataError

HOUR = 3_600_000_000_000
DAY = 24 * HOUR
SHARES = (0.6, 0.2, 0.2)


def L(text):
    return parse_length(text)


def stamps(n, step=HOUR):
    return np.datetime64("2026-01-05", "ns").astype(np.int64) + np.arange(n, dtype=np.int64) * step


def weekdays(weeks):
    """Hourly bars, Monday 00:00 to Friday 23:00."""
    return np.concatenate([stamps(120) + week * 7 * DAY for week in range(weeks)])


# --- lengths


@pytest.mark.parametrize(
    ("text", "bars", "ns"),
    [
        ("5000", 5000, None),
        ("0", 0, None),
        ("90d", None, 90 * DAY),
        ("6h", None, 6 * HOUR),
        ("30m", None, HOUR // 2),
        ("30min", None, HOUR // 2),
        ("1.5d", None, 36 * HOUR),
        ("2w", None, 14 * DAY),
        (" 45 s ", None, 45_000_000_000),
    ],
)
def test_lengths(text, bars, ns):
    length = parse_length(text)
    assert (length.bars, length.ns) == (bars, ns)
    assert length.is_zero == (text == "0")


@pytest.mark.parametrize("text", ["", "d", "-5", "90x", "1.5", "90 days", "1e3", "5000 bars"])
def test_what_is_no_length_names_the_key(text):
    with pytest.raises(ConfigError, match="evaluate.train = .* is not a length"):
        parse_length(text, "evaluate.train")


# --- split


def test_split_takes_the_warm_up_from_the_first_range():
    assert split(900, (2 / 3, 1 / 6, 1 / 6)) == (Range(0, 600), Range(600, 750), Range(750, 900))
    assert split(900, (2 / 3, 1 / 6, 1 / 6), warmup=256) == (Range(0, 344), Range(344, 494), Range(494, 644))


@given(
    st.integers(20, 5000),
    st.integers(0, 300),
    st.sampled_from([SHARES, (0.7, 0.15, 0.15), (1, 0, 0), (0.8, 0, 0.2), (0.5, 0.5, 0), (0, 0, 1)]),
)
@settings(max_examples=300, deadline=None)
def test_every_bar_is_in_one_range_or_the_warm_up(n, warmup, shares):
    needed = bars_needed(shares, warmup)
    if n < needed:
        with pytest.raises(DataError, match=rf"file.csv: {n:,} bars found, {needed:,} needed .*{warmup} to warm up"):
            split(n, shares, warmup, "file.csv")
        n = needed  # exactly the needed number works
    train, validation, test = split(n, shares, warmup)
    assert train.start == 0 and train.stop == validation.start and validation.stop == test.start and test.stop == n - warmup
    for r, share in zip((train, validation, test), shares, strict=True):
        assert r.bars >= MIN_BARS if share else r.bars == 0


@pytest.mark.parametrize("shares", [(0.6, 0.2, 0.1), (0.0, 0.0, 0.0), (1.2, -0.2, 0.0)])
def test_shares_that_are_no_split(shares):
    with pytest.raises(ConfigError, match="data.split = .* add up to 1"):
        split(1000, shares)


# --- walk-forward


def test_purge_then_embargo_shorten_the_training_side_only():
    folds = walk_forward(stamps(100), HOUR, L("40"), L("20"), purge=L("3"), embargo=L("2"))
    first = folds[0]
    assert first == (Range(0, 35), Range(35, 38), Range(38, 40), Range(40, 60))
    assert [f.test for f in folds] == [Range(40, 60), Range(60, 80), Range(80, 100)]
    assert [f.train for f in folds] == [Range(0, 35), Range(20, 55), Range(40, 75)]


def test_anchored_folds_train_from_the_first_bar():
    folds = walk_forward(stamps(100), HOUR, L("40"), L("20"), purge=L("3"), anchored=True)
    assert [f.train for f in folds] == [Range(0, 37), Range(0, 57), Range(0, 77)]


def test_time_lengths_equal_bars_where_there_is_no_gap():
    in_bars = walk_forward(stamps(24 * 100), HOUR, L("720"), L("240"), L("120"), L("24"), L("6"))
    in_time = walk_forward(stamps(24 * 100), HOUR, L("30d"), L("10d"), L("5d"), L("1d"), L("6h"))
    assert in_bars == in_time and len(in_bars) > 10


def test_time_lengths_follow_the_calendar_over_weekends():
    times = weekdays(12)
    folds = walk_forward(times, HOUR, L("4w"), L("2w"), purge=L("1d"))
    assert [f.test.bars for f in folds] == [240, 240, 240, 240]
    assert all(times[f.test.start] % DAY == 0 for f in folds)
    # one calendar day before Monday 00:00 is Sunday: no bar is lost, and the schedule does not drift
    assert [f.purged.bars for f in folds] == [0, 0, 0, 0]
    assert [f.purged.bars for f in walk_forward(times, HOUR, L("4w"), L("2w"), purge=L("3d"))] == [24, 24, 24, 24]


def test_daily_tests_skip_the_weekend():
    folds = walk_forward(weekdays(3), HOUR, L("7d"), L("1d"))
    assert len(folds) == 10 and all(f.test.bars == 24 for f in folds)
    assert all(f.train.bars == 120 for f in folds)


def test_lengths_of_both_kinds_mix():
    folds = walk_forward(stamps(24 * 20), HOUR, L("5d"), L("50"), step=L("2d"), purge=L("3"), embargo=L("2h"))
    assert folds[0] == (Range(0, 115), Range(115, 118), Range(118, 120), Range(120, 170))
    assert [f.test.start for f in folds] == [120 + 48 * i for i in range(len(folds))]


def test_a_short_step_overlaps_and_stops_once_all_bars_are_tested():
    folds = walk_forward(stamps(100), HOUR, L("40"), L("20"), step=L("8"))
    assert [f.test.start for f in folds] == [40, 48, 56, 64, 72, 80]
    assert folds[-1].test == Range(80, 100)


def test_a_long_step_leaves_holes_that_are_named():
    folds = walk_forward(stamps(107), HOUR, L("40"), L("20"), step=L("30"))
    assert untested(tuple(f.test for f in folds), 107) == (Range(0, 40), Range(60, 70), Range(90, 100))


@given(
    n=st.integers(30, 400),
    train=st.integers(10, 60),
    test=st.integers(1, 30),
    step=st.integers(1, 40),
    purge=st.integers(0, 4),
    embargo=st.integers(0, 4),
    anchored=st.booleans(),
    gap_every=st.integers(2, 50),
    in_time=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_folds_account_for_every_bar(n, train, test, step, purge, embargo, anchored, gap_every, in_time):
    times = stamps(n)
    if in_time:  # a night of 5 hours after every `gap_every` bars
        times = times + np.arange(n) // gap_every * 5 * HOUR
    unit = "h" if in_time else ""
    lengths = [parse_length(f"{k}{unit}") for k in (train, test, step, purge, embargo)]
    try:
        folds = walk_forward(times, HOUR, *lengths, anchored)
    except (DataError, ConfigError):
        assert in_time or n < train + test
        return
    last_stop = 0
    for row, fold in zip(account(folds, n), folds, strict=True):
        assert sum(row.values()) - row["fold"] == n and min(row.values()) >= 0
        assert fold.train.stop == fold.purged.start and fold.purged.stop == fold.embargo.start and fold.embargo.stop == fold.test.start
        assert fold.train.bars >= 2 and fold.test.bars >= 1 and fold.test.stop > last_stop
        assert fold.train.start == 0 or not anchored
        last_stop = fold.test.stop
        if in_time:
            assert times[fold.train.stop - 1] < times[fold.test.start] - (purge + embargo - 1) * HOUR or purge + embargo == 0
        else:
            assert (fold.purged.bars, fold.embargo.bars) == (purge, embargo)
    tested = np.zeros(n, bool)
    for fold in folds:
        tested[fold.test.start : fold.test.stop] = True
    holes = np.ones(n, bool)
    for r in untested(tuple(f.test for f in folds), n):
        holes[r.start : r.stop] = False
    assert (tested == holes).all()
    if step <= test and not in_time:
        assert tested[train:].all()


def test_too_short_in_time_names_both_durations():
    with pytest.raises(DataError, match="f.csv: 1200 bars over 50 days found, 60 days needed"):
        walk_forward(stamps(1200), HOUR, L("40d"), L("20d"), source="f.csv")


def test_exactly_one_fold_fits_in_time():
    assert len(walk_forward(stamps(1440), HOUR, L("40d"), L("20d"))) == 1
    with pytest.raises(DataError):
        walk_forward(stamps(1439), HOUR, L("40d"), L("20d"))


def test_purge_longer_than_the_training_bars_is_an_error():
    with pytest.raises(ConfigError, match="fold 0 .* has 0 training bars"):
        walk_forward(stamps(100), HOUR, L("40"), L("20"), purge=L("50"))


@pytest.mark.parametrize("key", ["train", "test", "step"])
def test_lengths_of_zero_are_refused(key):
    lengths = {"train": L("40"), "test": L("20"), "step": L("20")} | {key: L("0")}
    with pytest.raises(ConfigError, match=f"evaluate.{key} "):
        walk_forward(stamps(100), HOUR, **lengths)


def test_windows_within_a_range():
    assert windows_within(stamps(200), HOUR, Range(100, 150), L("20")) == (Range(100, 120), Range(120, 140), Range(140, 150))
    assert windows_within(stamps(200), HOUR, Range(100, 148), L("1d")) == (Range(100, 124), Range(124, 148))
