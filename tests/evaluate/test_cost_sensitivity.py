"""Costs times a number: every cost is multiplied, the settings' own costs are the multiple 1, and free trading is gross."""

import numpy as np
import pytest
import torch

from numba_rl import settings
from numba_rl.config import Config
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.errors import ConfigError
from numba_rl.evaluate.backtest import play_policy
from numba_rl.evaluate.cost_sensitivity import COSTS, break_even, costs_section, costs_table, parse_multiples, play_at_costs, with_costs

CONFIG = settings.replace(Config(), {"market.min_fee": 1.0, "market.financing_rate": 0.05, "data.bars_per_year": 525_600.0})


@pytest.fixture(scope="module")
def played():
    market = load_market(CONFIG, generate("random_walk", 1500, 2).bars)
    weights = torch.from_numpy(np.random.default_rng(1).normal(size=(len(market.names) + 3, 45)).astype(np.float32))
    results = play_at_costs(lambda states: states @ weights, market, market.test, CONFIG, (0.0, 1.0, 4.0))
    alone = play_policy(market, [market.test], lambda states: states @ weights, CONFIG)[0]
    return results, alone


def test_all_costs_are_multiplied_and_nothing_else():
    dear = with_costs(CONFIG, 3.0)
    assert [getattr(dear.market, name) for name in COSTS] == [3 * getattr(CONFIG.market, name) for name in COSTS]
    assert settings.replace(dear, {f"market.{name}": getattr(CONFIG.market, name) for name in COSTS}) == CONFIG


def test_multiples(played):
    results, alone = played
    np.testing.assert_array_equal(results[1.0].equity, alone.equity)
    free = results[0.0]
    assert free.fee.sum() == free.spread_cost.sum() == free.financing.sum() == 0
    np.testing.assert_array_equal(free.equity, free.gross_equity)
    assert results[4.0].equity[-1] < results[1.0].equity[-1] < free.equity[-1]
    table = costs_table(results)
    assert table["multiple"].to_list() == [0.0, 1.0, 4.0]
    assert table["costs"][1] == pytest.approx((alone.fee + alone.spread_cost + alone.financing).sum())
    section = costs_section(results)
    assert [row[0] for row in section.blocks[-1].rows] == ["0x", "1x", "4x"]


def test_where_the_profit_ends():
    assert break_even([0, 1, 2, 4], [0.3, 0.1, 0.05, -0.05]) == pytest.approx(3.0)
    assert break_even([0, 1], [0.2, 0.0]) == 1.0
    assert break_even([0, 1], [0.2, 0.1]) is None
    assert break_even([0, 1], [-0.2, -0.3]) is None


def test_parsing():
    assert parse_multiples("4, 0,1,1") == (0.0, 1.0, 4.0)
    for text in ("", "1,,2", "-1", "nan", "inf", "two"):
        with pytest.raises(ConfigError, match="--costs"):
            parse_multiples(text)
