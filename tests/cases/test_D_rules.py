"""D-05, D-06, D-08, D-12, D-14: costs, look-ahead, the end of a run and ruin, by the rules and by the backtest's windows."""

import csv
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from rules.driver import bars, costless, play_rules, rules

from numba_rl.rules.actions import compose
from numba_rl.rules.fills import advance
from numba_rl.rules.portfolio import close_out, equity_at, open_portfolio

HERE = Path(__file__).parent
LONG, SHORT, FLAT = (compose(exposure, 0, 1) for exposure in (4, 0, 2))


def column(case, file, name):
    with (HERE / case / file).open() as lines:
        return [float(row[name]) for row in csv.DictReader(lines)]


def units(size, **market):
    """Rules that buy and sell `size` units at the close of the decision, with the costs given and no others."""
    return rules(**costless(sizing="units", max_position=size, fill_at="close", **market))


@pytest.mark.parametrize(
    ("bps", "fees", "final"), [(10.0, [1.0, 1.1], 10097.90), (0.0, [0.0, 0.0], 10100.00), (-2.0, [-0.2, -0.22], 10100.42)]
)
def test_d_06_each_side_pays_on_its_own_notional(bps, fees, final):
    entry, leave = column("D-06", "trades.csv", "price")
    prices = bars([entry] * 5 + [27.0] * 3 + [leave] * 2)
    actions = [LONG] * 8 + [FLAT]
    p = play_rules(actions, prices, units(40.0, initial_capital=10_000.0, taker_bps=bps))
    traded = np.flatnonzero(p.units)
    assert p.units[traded].tolist() == [40.0, -40.0] and p.price[traded].tolist() == [entry, leave]
    assert p.fee[traded] == pytest.approx(fees, abs=1e-12) and p.fee.sum() == pytest.approx(sum(fees))
    assert p.account_cash[-1] == pytest.approx(final, abs=1e-6) and p.equity_after[-1] == pytest.approx(final, abs=1e-6)


JUMP = np.array([column("D-08", "jump.csv", name) for name in ("open", "high", "low", "close")]).T


@pytest.mark.parametrize("fill_at", ["close", "next_open"])
def test_d_08_nothing_is_earned_from_what_was_seen_first(fill_at):
    close = JUMP[:, 3]
    seen = np.concatenate([[False], close[1:] > close[:-1]])  # what a decision at each bar knows
    actions = np.where(np.maximum.accumulate(seen), LONG, FLAT)[:-1]
    p = play_rules(actions, JUMP, rules(**costless(fill_at=fill_at)))
    assert p.steps == len(JUMP) - 1  # every bar is used, the last one once, as a mark
    assert p.equity_after[-1] == 1e6 and not p.reward.any() and np.count_nonzero(p.units) == 1


@pytest.mark.parametrize("fill_at", ["close", "next_open"])
def test_d_08_the_move_is_earned_once(fill_at):
    p = play_rules([LONG] * (len(JUMP) - 1), JUMP, rules(reward={"scale": 1.0}, **costless(fill_at=fill_at)))
    assert p.reward.sum() == pytest.approx(math.log(1.1), abs=1e-7) and np.flatnonzero(p.reward).tolist() == [599]
    assert p.equity_after[-1] == pytest.approx(1.1e6)


def test_d_12_open_at_the_end():
    closes = column("D-12", "tape.csv", "price")
    r = units(5.0, initial_capital=10_000.0, taker_bps=20.0)
    account = open_portfolio(closes[0], r)
    path = []
    for now, then in itertools.pairwise(closes):
        account, outcome = advance(account, LONG, now, now, max(now, then), min(now, then), then, r)
        path.append(outcome)
    assert equity_at(account, closes[0], r) == pytest.approx(9999.00)  # marked at bar 0, after the entry
    assert path[-1].equity_after == pytest.approx(10099.00) and sum(o.fee for o in path) == pytest.approx(1.00)  # training leaves it open
    closed, fee, _ = close_out(account, closes[-1], r)  # evaluation does not
    assert fee == pytest.approx(1.20) and closed.position == 0.0 and closed.exposure == 0.0
    assert closed.cash == pytest.approx(10097.80) and closed.costs == pytest.approx(2.20)


def test_d_14_a_ruined_short_does_not_recover():
    closes = column("D-14", "squeeze.csv", "price")
    p = play_rules([SHORT] * 4, bars(closes), units(10.0, initial_capital=1000.0))
    assert p.equity_after.tolist() == [700.0, 200.0, -600.0] and p.terminated.tolist() == [0, 0, 1]
    assert p.account_position[-1] == 0.0 and p.account_cash[-1] == -600.0  # liquidated there; the deficit is shown
    assert p.drawdown[-1] == pytest.approx(1.6) and np.isfinite(p.reward).all()


def test_d_05_equity_of_exactly_nothing_is_ruin():
    equity = column("D-05", "equity.csv", "equity")
    prices = bars(np.array(equity) / 10.0)  # 10 units, all of the capital
    p = play_rules([LONG] * 3, prices, units(10.0, initial_capital=1000.0))
    assert p.equity_after.tolist() == [400.0, 0.0] and p.terminated.tolist() == [0, 1]  # bar 3 is never played
    assert p.reward[-1] == pytest.approx(1000 * math.log(1e-3), rel=1e-5)
    assert p.feature_equity[-1] == 0.0 and np.isfinite(p.feature_share).all()


def test_d_05_a_debt_is_shown():
    p = play_rules([LONG] * 2, bars([100.0, 40.0, -5.0]), units(10.0, initial_capital=1000.0))
    assert p.equity_after.tolist() == [400.0, -50.0] and p.terminated[-1] == 1 and p.feature_equity[-1] == -0.05
    assert np.isfinite(p.reward).all() and np.isfinite(p.feature_share).all()
