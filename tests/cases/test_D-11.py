"""D-11: walk-forward folds, their purge, the bars left over, and the error for too few bars."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from numba_rl.data.windows import Range, account, parse_length, untested, walk_forward
from numba_rl.errors import DataError

CASE = Path(__file__).parent / "D-11"
HOUR = 3_600_000_000_000


@pytest.fixture
def case():
    return json.loads((CASE / "input.json").read_text())


def folds_of(case, bars):
    lengths = {key: parse_length(str(case[key])) for key in ("train", "test", "step", "purge")}
    return walk_forward(np.arange(bars, dtype=np.int64) * HOUR, HOUR, **lengths, source="bars.csv")


def test_folds_are_those_of_the_case_and_the_rest_is_a_shorter_last_one(case):
    folds = folds_of(case, case["bars"])
    assert [(f.train, f.test) for f in folds] == [
        (Range(0, 37), Range(40, 60)),
        (Range(20, 57), Range(60, 80)),
        (Range(40, 77), Range(80, 100)),
        (Range(60, 97), Range(100, 107)),
    ]


def test_every_bar_is_accounted_for(case):
    folds = folds_of(case, case["bars"])
    for row, fold in zip(account(folds, case["bars"]), folds, strict=True):
        assert row["before"] + row["train"] + row["purged"] + row["embargo"] + row["test"] + row["after"] == 107
        assert (row["train"], row["purged"], row["embargo"]) == (37, 3, 0)
        assert fold.train.stop <= fold.test.start - 3
    assert untested(tuple(f.test for f in folds), case["bars"]) == (Range(0, 40),)


def test_test_folds_neither_overlap_nor_leave_a_hole(case):
    tests = [f.test for f in folds_of(case, case["bars"])]
    assert [t.start for t in tests] == [40, 60, 80, 100]
    assert all(a.stop == b.start for a, b in pairwise(tests))


def test_too_few_bars_name_both_numbers(case):
    with pytest.raises(DataError, match=r"bars.csv: 50 bars found, 60 needed"):
        folds_of(case, 50)
    assert [f.test for f in folds_of(case, 60)] == [Range(40, 60)]
