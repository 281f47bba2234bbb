"""Ranges of bars: the split into train, validation and test, and walk-forward folds. All are half open, indices into the bars.

A length is a number of bars ("5000") or a time ("90d"). Times run on the calendar, by the bars' stamps: a fold of 30 days holds
whatever bars these days have, so sessions and gaps shift nothing.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from numba_rl.data.bars import too_few
from numba_rl.errors import ConfigError, DataError

_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DAY_NS = 86_400 * 1_000_000_000
MIN_BARS = 2  # of a range: one step, from the close of one bar to the close of the next


class Range(NamedTuple):
    """Bars start .. stop - 1."""

    start: int
    stop: int

    @property
    def bars(self) -> int:
        return self.stop - self.start


class Fold(NamedTuple):
    """One walk-forward window: four ranges that follow each other without a hole. Only `train` and `test` are used."""

    train: Range
    purged: Range  # dropped from the end of the training bars
    embargo: Range  # a further gap before the test
    test: Range


class Length(NamedTuple):
    """A number of bars or a time; exactly one is set."""

    text: str
    bars: int | None
    ns: int | None

    @property
    def is_zero(self) -> bool:
        return not self.bars and not self.ns


def parse_length(text: str, key: str = "length") -> Length:
    """Length from "5000" (bars), "90d", "6h", "30m" or "30min" (minutes), "45s", "2w". ConfigError, which names `key`: anything else."""
    match = re.fullmatch(r"\s*(\d+)(?:(\.\d+)?\s*(s|m|min|h|d|w))?\s*", text)
    if match is None:
        raise ConfigError(f'{key} = "{text}" is not a length: give bars ("5000") or a time ("90d", "6h", "30min", "2w")')
    whole, part, unit = match.groups()
    if unit is None:
        return Length(whole, int(whole), None)
    return Length(text.strip(), None, round(float(whole + (part or "")) * _SECONDS[unit] * 1_000_000_000))


NOTHING = parse_length("0")


def split(n_bars: int, shares: tuple[float, float, float], warmup: int = 0, source: str = "data") -> tuple[Range, Range, Range]:
    """Train, validation and test ranges in time order over `n_bars` bars of a file, as indices after its `warmup` bars were dropped.

    The shares are of all bars of the file and the warm-up comes out of the first range, so that the validation and test bars do not
    depend on the feature set. Every bar is in exactly one range or in the warm-up; a share of 0 gives an empty range.
    ConfigError: the shares are not a split. DataError: a range whose share is not 0 would hold fewer than MIN_BARS bars.
    """
    needed = bars_needed(shares, warmup)
    if n_bars < needed:
        raise too_few(source, n_bars, needed, describe_need(shares, warmup))
    return _split(n_bars, shares, warmup)


def bars_needed(shares: tuple[float, float, float], warmup: int) -> int:
    """Fewest bars of a file that `split` accepts. ConfigError: the shares are not a split."""
    if abs(sum(shares) - 1.0) > 1e-6 or min(shares) < 0:
        raise ConfigError(f"data.split = {list(shares)} must be three shares >= 0 that add up to 1 (train, validation, test)")
    used = [share for share in shares if share > 0]
    n = int(max((warmup + MIN_BARS) / used[0], MIN_BARS / min(used))) + 2  # enough, and so is every larger number
    while all(r.bars >= MIN_BARS for r, share in zip(_split(n - 1, shares, warmup), shares, strict=True) if share > 0):
        n -= 1
    return n


def describe_need(shares: tuple[float, float, float], warmup: int) -> str:
    """What the bars of `bars_needed` are for, for an error's text."""
    parts = [f"{name} {share:g}" for name, share in zip(("train", "validation", "test"), shares, strict=True) if share > 0]
    return f"{warmup} to warm up the features, and then {MIN_BARS} in each part of data.split: {', '.join(parts)}"


def _split(n_bars: int, shares: tuple[float, float, float], warmup: int) -> tuple[Range, Range, Range]:
    edges = [0, int(n_bars * shares[0] + 1e-6), int(n_bars * (shares[0] + shares[1]) + 1e-6), n_bars]
    if shares[2] == 0:  # the rounding down leaves no bar over
        edges[2] = n_bars
    if shares[1] == shares[2] == 0:
        edges[1] = n_bars
    edges = [max(edge - warmup, 0) for edge in edges]
    return Range(*edges[0:2]), Range(*edges[1:3]), Range(*edges[2:4])


class _Edge(NamedTuple):
    """Where a range starts or ends: the first bar at or after an instant. The index may lie outside the file."""

    index: int
    instant: int  # ns


class _Clock:
    """Moves edges by lengths. Times add up as instants, so that a schedule of days does not drift with the gaps it meets."""

    def __init__(self, timestamps: np.ndarray, interval_ns: int):
        self.timestamps, self.end = timestamps, int(timestamps[-1]) + interval_ns

    def at(self, index: int) -> _Edge:
        inside = min(max(index, 0), len(self.timestamps))
        return _Edge(index, self.end if inside == len(self.timestamps) else int(self.timestamps[inside]))

    def move(self, edge: _Edge, length: Length, direction: int) -> _Edge:
        if length.is_zero:
            return edge
        if length.ns is None:
            return self.at(edge.index + direction * length.bars)
        instant = edge.instant + direction * length.ns
        return _Edge(int(np.searchsorted(self.timestamps, instant)), instant)


def walk_forward(
    timestamps: np.ndarray,
    interval_ns: int,
    train: Length,
    test: Length,
    step: Length | None = None,
    purge: Length = NOTHING,
    embargo: Length = NOTHING,
    anchored: bool = False,
    source: str = "data",
) -> tuple[Fold, ...]:
    """Folds in time order over bars with the stamps int64 [T] (ns, increasing).

    The first test starts `train` after the first bar, each next one `step` (default: `test`) after the one before. A fold trains on
    the `train` before its test (anchored: on all bars before it), less the last `embargo` and, before that, the last `purge`; both
    shorten the training side only. The bars left at the end make a shorter last test. A test that would add no bar to those
    before it (a calendar length that falls into a gap) gives no fold. ConfigError: a length of 0 or nothing left to train on. DataError: not one whole train + test.
    """
    step = step or test
    for key, length in (("train", train), ("test", test), ("step", step)):
        if length.is_zero:
            raise ConfigError(f'evaluate.{key} = "{length.text}" must be longer than 0')
    if len(timestamps) == 0:
        raise DataError(f"{source}: 0 bars found, nothing to walk over; give a longer file")
    clock = _Clock(timestamps, interval_ns)
    first = clock.move(clock.at(0), train, +1)
    _require_one_fold(clock, clock.move(first, test, +1), train, test, source)
    folds = []
    for start, test_range in _tests(clock, first, len(timestamps), test, step):
        embargo_start = clock.move(start, embargo, -1)
        purge_start = clock.move(embargo_start, purge, -1)
        lo = 0 if anchored else max(clock.move(start, train, -1).index, 0)
        edges = [lo, *(max(edge, lo) for edge in (purge_start.index, embargo_start.index, test_range.start))]
        train_range, purged, gap = (Range(*edges[i : i + 2]) for i in range(3))
        if train_range.bars < MIN_BARS:
            raise ConfigError(
                f"{source}: fold {len(folds)} (test from bar {test_range.start}) has {train_range.bars} training bars, {MIN_BARS} needed; "
                "lengthen evaluate.train, or shorten evaluate.purge and evaluate.embargo"
            )
        folds.append(Fold(train_range, purged, gap, test_range))
    return tuple(folds)


def windows_within(timestamps: np.ndarray, interval_ns: int, within: Range, test: Length, step: Length | None = None) -> tuple[Range, ...]:
    """Test ranges alone, laid through `within` as `walk_forward` lays them: for one policy judged over many windows."""
    step = step or test
    if test.is_zero or step.is_zero:
        raise ConfigError(f'evaluate.test = "{test.text}" and evaluate.step = "{step.text}" must be longer than 0')
    clock = _Clock(timestamps, interval_ns)
    return tuple(found for _, found in _tests(clock, clock.at(within.start), within.stop, test, step))


def _tests(clock: _Clock, start: _Edge, limit: int, test: Length, step: Length) -> Iterator[tuple[_Edge, Range]]:
    """Each test's start and bars, up to the first that reaches `limit`. A test that adds no bar to those before it is left out."""
    reached = start.index
    while reached < limit and start.index < limit:
        found = Range(start.index, min(clock.move(start, test, +1).index, limit))
        if found.bars > 0 and found.stop > reached:
            reached = found.stop
            yield start, found
        start = clock.move(start, step, +1)


def _require_one_fold(clock: _Clock, stop: _Edge, train: Length, test: Length, source: str) -> None:
    found = len(clock.timestamps)
    if stop.index <= found and stop.instant <= clock.end:
        return
    wanted = f"evaluate.train {train.text} + evaluate.test {test.text}"
    if train.ns is None and test.ns is None:
        raise DataError(f"{source}: {found} bars found, {train.bars + test.bars} needed ({wanted}); give a longer file or shorter windows")
    days = (clock.end - int(clock.timestamps[0])) / _DAY_NS
    needed = (stop.instant - int(clock.timestamps[0])) / _DAY_NS
    raise DataError(
        f"{source}: {found} bars over {days:.4g} days found, {needed:.4g} days needed ({wanted}); give a longer file or shorter windows"
    )


def account(folds: tuple[Fold, ...], n_bars: int) -> list[dict[str, int]]:
    """One row a fold: bars before it, trained on, purged, in the embargo, tested, after it. Each row adds up to `n_bars`."""
    return [
        {
            "fold": i,
            "before": fold.train.start,
            "train": fold.train.bars,
            "purged": fold.purged.bars,
            "embargo": fold.embargo.bars,
            "test": fold.test.bars,
            "after": n_bars - fold.test.stop,
        }
        for i, fold in enumerate(folds)
    ]


def untested(ranges: tuple[Range, ...], n_bars: int) -> tuple[Range, ...]:
    """The stretches of bars that lie in none of the (test) ranges, in order: first training bars, holes of a long step, leftovers."""
    holes, reached = [], 0
    for r in sorted(ranges):
        if r.start > reached:
            holes.append(Range(reached, r.start))
        reached = max(reached, r.stop)
    if reached < n_bars:
        holes.append(Range(reached, n_bars))
    return tuple(holes)
