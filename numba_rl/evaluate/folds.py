"""Walk-forward folds of a market: laid out, shown before anything runs, and cut so that training cannot see its test.

A fold's training bars are divided once more, by the first two shares of data.split: the policy is fitted on the first part,
and its checkpoint is chosen on the last. Indices count the market's bars (after the features' warm-up), half open.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.data.windows import MIN_BARS, Fold, Length, Range, account, parse_length, untested, walk_forward
from numba_rl.errors import ConfigError
from numba_rl.evaluate.blocks import Section, Table, lines
from numba_rl.evaluate.formatting import span_text, time_text
from numba_rl.evaluate.maps import folds_chart
from numba_rl.evaluate.report import render_page
from numba_rl.files import atomic_write

COLUMNS = 60  # characters of a fold's row in the terminal's picture
MARKS = {"train": "=", "validation": "v", "purge": "x", "embargo": "-", "test": "#"}


def window_length(config: Config, key: str) -> Length | None:
    """evaluate.`key` as a length; None where it is not set."""
    text = getattr(config.evaluate, key)
    return None if text is None else parse_length(text, f"evaluate.{key}")


def plan(market: Market, config: Config) -> tuple[Fold, ...]:
    """The folds that the settings evaluate.* ask for. ConfigError: a length is missing, or a fold is too short to train in."""
    train, test = window_length(config, "train"), window_length(config, "test")
    for key, length in (("train", train), ("test", test)):
        if length is None:
            raise ConfigError(f'evaluate.{key} is not set; give --{key}, a number of bars ("5000") or a time ("90d")')
    purge, embargo = (parse_length(getattr(config.evaluate, key), f"evaluate.{key}") for key in ("purge", "embargo"))
    folds = walk_forward(
        market.timestamp, market.interval_ns, train, test, window_length(config, "step"), purge, embargo, config.evaluate.anchored,
        market.source,
    )  # fmt: skip
    for number, fold in enumerate(folds):
        fit, _ = fitting_ranges(fold, config)
        if fit.bars < MIN_BARS:
            raise ConfigError(f"{market.source}: fold {number} has {fit.bars} bars to fit on, {MIN_BARS} needed; lengthen evaluate.train")
    return folds


def fitting_ranges(fold: Fold, config: Config) -> tuple[Range, Range]:
    """A fold's training bars as (fitted on, validated on); the second is empty where data.split has no validation share."""
    first, second, _ = config.data.split
    held = round(fold.train.bars * second / (first + second)) if first + second > 0 else 0
    if held < MIN_BARS:
        held = 0
    return Range(fold.train.start, fold.train.stop - held), Range(fold.train.stop - held, fold.train.stop)


def scaled_market(market: Market, fold: Fold, config: Config) -> Market:
    """The whole market as a fold's policy is to see it: scaled by the bars that the policy was fitted on."""
    fit, validation = fitting_ranges(fold, config)
    return replace(market.with_scaling(market.fit_scaling(fit)), train=fit, validation=validation, test=fold.test)


def training_market(market: Market, fold: Fold, config: Config) -> Market:
    """The market that a fold trains on. It ends where the training bars end: what comes later is not there to be seen.

    Its digests are those of the bars and features that are left.
    """
    stop = fold.train.stop
    seen = scaled_market(market, fold, config)
    bars = hashlib.sha256(np.ascontiguousarray(market.timestamp[:stop]).data)
    bars.update(market.prices[:stop].data)
    if market.volume is not None:
        bars.update(np.ascontiguousarray(market.volume[:stop]).data)
    features = hashlib.sha256("\n".join(market.names).encode())
    features.update(market.raw_features[:stop].data)
    return replace(
        seen,
        timestamp=market.timestamp[:stop],
        prices=market.prices[:stop],
        volume=None if market.volume is None else market.volume[:stop],
        features=np.ascontiguousarray(seen.features[:stop]),
        raw_features=market.raw_features[:stop],
        regime=market.regime[:stop],
        test=Range(stop, stop),
        bars_digest=bars.hexdigest(),
        features_digest=features.hexdigest(),
    )


def own_ranges(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """Test ranges cut where the next one begins, so that each bar is counted once in a stitched account."""
    following = [r.start for r in ranges[1:]] + [ranges[-1].stop]
    return tuple(Range(r.start, min(r.stop, limit)) for r, limit in zip(ranges, following, strict=True))


# ------------------------------------------------------------------------------------------------------- showing


def dates(market: Market, span: Range) -> str:
    """First and last bar (UTC) of a range."""
    return f"{time_text(market.timestamp[span.start])} to {time_text(market.timestamp[span.stop - 1])}" if span.bars else "none"


def parts(fold: Fold, config: Config) -> list[tuple[str, int, int]]:
    """The pieces of a fold that hold bars, as (kind, start, stop)."""
    fit, validation = fitting_ranges(fold, config)
    named = (("train", fit), ("validation", validation), ("purge", fold.purged), ("embargo", fold.embargo), ("test", fold.test))
    return [(kind, span.start, span.stop) for kind, span in named if span.bars]


def folds_table(market: Market, folds: Sequence[Fold], config: Config) -> Table:
    """A row a fold: how many bars of the market are what (each row adds up to all of them), and the dates."""
    rows = []
    for fold, row in zip(folds, account(tuple(folds), len(market)), strict=True):
        fit, validation = fitting_ranges(fold, config)
        counts = (row["before"], fit.bars, validation.bars, row["purged"], row["embargo"], row["test"], row["after"])
        rows.append([str(row["fold"]), *(f"{count:,}" for count in counts), dates(market, fold.train), dates(market, fold.test)])
    head = ["Fold", "Before", "Train", "Validate", "Purged", "Embargo", "Test", "After", "Trained on (UTC)", "Tested on (UTC)"]
    return Table(head, rows, note=f"Bars; each row adds up to the {len(market):,} bars after the features' warm-up.", scroll=len(rows) > 20)


def untested_lines(market: Market, ranges: Sequence[Range]) -> list[str]:
    """The stretches of bars that no test covers, in words."""
    holes = untested(tuple(ranges), len(market))
    return [f"{hole.bars:,} bars, {dates(market, hole)} (bars {hole.start:,} to {hole.stop - 1:,})" for hole in holes]


def folds_text(market: Market, folds: Sequence[Fold], config: Config) -> str:
    """Table and picture of the folds for a terminal."""
    table = folds_table(market, folds, config)
    widths = [max(len(str(row[k])) for row in [table.head, *table.rows]) for k in range(len(table.head))]
    text = ["  ".join(str(cell).rjust(width) for cell, width in zip(row, widths, strict=True)) for row in [table.head, *table.rows]]
    text += ["", "  ".join(f"{mark} {kind}" for kind, mark in MARKS.items())]
    edges = np.linspace(0, len(market), COLUMNS + 1).astype(np.int64)
    for number, fold in enumerate(folds):
        row = ["."] * COLUMNS
        for kind, start, stop in parts(fold, config):
            for column in range(COLUMNS):
                if min(edges[column + 1], stop) > max(edges[column], start):
                    row[column] = MARKS[kind]
        text.append(f"{number:>{widths[0]}}  {''.join(row)}")
    text += ["", *(f"not tested: {line}" for line in untested_lines(market, [fold.test for fold in folds]))]
    return "\n".join(text)


def folds_section(market: Market, folds: Sequence[Fold], config: Config) -> Section:
    """Picture and table of the folds, and the bars that none of them tests."""
    picture = folds_chart(
        "Folds over the bars of the market",
        market.timestamp,
        [(str(number), parts(fold, config)) for number, fold in enumerate(folds)],
        note="Each row is one training with the test that follows it; the checkpoint is chosen on the validation bars.",
    )
    holes = [[line] for line in untested_lines(market, [fold.test for fold in folds])] or [["none"]]
    table = folds_table(market, folds, config)
    rows = [[*row[:-2], *(lines(*str(span).split(" to ")) for span in row[-2:])] for row in table.rows]  # dates side by side are too wide
    return Section("Folds", [picture, replace(table, rows=rows), Table((), holes, "Bars not tested", text=True)])


def write_folds(path: str | Path, market: Market, folds: Sequence[Fold], config: Config) -> None:
    """The folds as an HTML page that stands alone."""
    title = f"Walk-forward folds: {Path(market.source).name}"
    subtitle = f"{len(folds)} folds over {len(market):,} bars of {span_text(market.interval_ns)}, {dates(market, Range(0, len(market)))} UTC"
    atomic_write(Path(path), render_page(title, subtitle, [folds_section(market, folds, config)]))
