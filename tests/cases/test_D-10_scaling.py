"""D-10, the data's part: two files that differ only in their test rows give the same statistics, ranges and training data."""

from pathlib import Path

import numpy as np
import pytest

from numba_rl.config import Config, DataConfig
from numba_rl.data.market import load_market
from numba_rl.data.windows import Range, parse_length, walk_forward

CASE = Path(__file__).parent / "D-10"


@pytest.fixture(scope="module")
def markets():
    return [load_market(Config(data=DataConfig(path=str(CASE / f"data_{x}.csv"), split=(2 / 3, 1 / 6, 1 / 6)))) for x in "ab"]


def test_the_split_is_the_cases_in_rows_of_the_file(markets):
    for market in markets:
        assert market.train.stop + market.warmup == market.validation.start + market.warmup == 600
        assert market.validation.stop + market.warmup == market.test.start + market.warmup == 750
        assert market.test.stop + market.warmup == 900


def test_stored_statistics_are_identical_and_only_the_test_rows_differ(markets):
    a, b = markets
    assert a.scaling.to_dict() == b.scaling.to_dict()
    for name in ("features", "raw_features", "regime", "prices", "volume"):
        x, y = getattr(a, name), getattr(b, name)
        assert x[: a.test.start].tobytes() == y[: a.test.start].tobytes(), name
    assert (a.prices[a.test.start :] != b.prices[a.test.start :]).all()
    assert (a.features[a.test.start] != b.features[a.test.start]).any()


def test_statistics_are_the_training_rows_own(markets):
    for market in markets:
        np.testing.assert_allclose(
            market.scaling.mean, market.raw_features[: 600 - market.warmup].astype(np.float64).mean(axis=0), rtol=1e-9, atol=1e-12
        )


def test_a_folds_statistics_depend_on_its_training_rows_only(markets):
    a, b = markets
    lengths = [parse_length(text) for text in ("200", "50")]
    folds = walk_forward(a.timestamp, a.interval_ns, *lengths, purge=parse_length("3"))
    same = [a.fit_scaling(fold.train).to_dict() == b.fit_scaling(fold.train).to_dict() for fold in folds]
    assert same == [fold.train.stop <= 750 - a.warmup for fold in folds] and True in same and False in same
    first = folds[0].train
    poisoned = b.raw_features.copy()
    poisoned[first.stop :] = np.nan  # a fit that looked at a later row would be refused
    assert (
        type(a.scaling).fit(poisoned[first.start : first.stop], a.scaling.clip, a.names).to_dict() == a.fit_scaling(Range(*first)).to_dict()
    )
