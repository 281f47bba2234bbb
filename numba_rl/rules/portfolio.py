"""The self-financing ledger of one episode: equity = cash + position x price x multiplier, at all times.

A trade moves cash by -(units x fill price x multiplier) - fee and nothing else; a price move changes the equity only
through position x price. Money is float64.
"""

from math import floor
from typing import NamedTuple

from numba import njit

from numba_rl.rules.actions import NORMAL


class Portfolio(NamedTuple):
    """State of one account, all float64. The first eight are the design's, the last two stand beside them."""

    cash: float
    position: float  # units, signed
    entry: float  # average entry price, 0 when flat
    initial: float  # initial capital
    spread: float  # share of the price
    last: float  # price of the last mark
    reserve: float  # share of the equity that is never invested
    costs: float  # fees, spread and financing paid so far
    exposure: float  # exposure held: the target as far as it was filled
    peak: float  # highest equity marked so far


PORTFOLIO_FIELDS = len(Portfolio._fields)


@njit(error_model="numpy")
def open_portfolio(price, rules):
    """A flat account with the initial capital, marked at `price`."""
    return Portfolio(
        rules.initial_capital, 0.0, 0.0, rules.initial_capital, rules.spread, price, rules.reserve, 0.0, 0.0, rules.initial_capital
    )


@njit(error_model="numpy")
def equity_at(portfolio, price, rules):
    """Worth of the account with the position marked at `price`."""
    return portfolio.cash + portfolio.position * price * rules.multiplier


@njit(error_model="numpy")
def fee_of(units, price, rate, rules):
    """Fee of one fill: `rate` on its own notional, at least the minimum fee where one is set. Negative rates are rebates."""
    fee = rate * abs(units * price) * rules.multiplier
    if rules.min_fee > 0.0 and fee < rules.min_fee:
        fee = rules.min_fee
    return fee


@njit(error_model="numpy")
def worse_price(price, units, share):
    """`price` made worse by a share of its size for the side of `units` (buys pay more, sells get less)."""
    if units > 0.0:
        return price + share * abs(price)
    return price - share * abs(price)


@njit(error_model="numpy")
def position_after(position, units, lot):
    """The position after a fill; with a lot size exactly a whole number of lots, so that no rounding error stays open."""
    after = position + units
    if lot > 0.0:
        after = floor(after / lot + 0.5) * lot
    return after


@njit(error_model="numpy")
def average_entry(position, entry, after, price):
    """Average entry price when a fill at `price` takes `position` to `after`: adding averages, reducing keeps, a flip starts anew."""
    if after == 0.0:
        return 0.0
    if position == 0.0 or (position > 0.0) != (after > 0.0):
        return price
    if abs(after) > abs(position):
        return (entry * position + price * (after - position)) / after
    return entry


@njit(error_model="numpy")
def book(portfolio, units, fill_price, fee, spread_cost, exposure, rules):
    """The account after a fill of `units` at `fill_price` (which already holds the spread)."""
    after = position_after(portfolio.position, units, rules.lot)
    return Portfolio(
        portfolio.cash - units * fill_price * rules.multiplier - fee,
        after,
        average_entry(portfolio.position, portfolio.entry, after, fill_price),
        portfolio.initial,
        portfolio.spread,
        portfolio.last,
        portfolio.reserve,
        portfolio.costs + fee + spread_cost,
        exposure,
        portfolio.peak,
    )


@njit(error_model="numpy")
def mark(portfolio, price, financing, rules):
    """The account marked at `price` after paying `financing`, with its equity peak brought up to date."""
    cash = portfolio.cash - financing
    equity = cash + portfolio.position * price * rules.multiplier
    return Portfolio(
        cash,
        portfolio.position,
        portfolio.entry,
        portfolio.initial,
        portfolio.spread,
        price,
        portfolio.reserve,
        portfolio.costs + financing,
        portfolio.exposure,
        max(portfolio.peak, equity),
    )


@njit(error_model="numpy")
def close_out(portfolio, price, rules):
    """Exit everything by a market order of normal urgency at `price`: (portfolio, fee, spread cost)."""
    units = -portfolio.position
    if units == 0.0:
        return portfolio, 0.0, 0.0
    share = half_spread(portfolio.spread, NORMAL) if rules.fill_simulation == 1 else 0.0
    fill_price = worse_price(price, units, share)
    fee = fee_of(units, fill_price, rules.taker, rules)
    spread_cost = abs(units * (fill_price - price)) * rules.multiplier
    return book(portfolio, units, fill_price, fee, spread_cost, 0.0, rules), fee, spread_cost


@njit(error_model="numpy")
def half_spread(spread, urgency):
    """Share of the price that a market order loses: half the spread times 0.5, 1 or 1.5 by urgency."""
    return 0.25 * spread * (urgency + 1)


@njit(error_model="numpy")
def position_share(portfolio, price, rules):
    """Position as a share of the maximum one: notional over what may be invested, or units over max_position."""
    if rules.equity_sizing == 0:
        return portfolio.position / rules.max_position
    investable = rules.leverage * (1.0 - portfolio.reserve) * equity_at(portfolio, price, rules)
    if investable <= 0.0:
        return 0.0
    return portfolio.position * price * rules.multiplier / investable


@njit(error_model="numpy")
def portfolio_features(portfolio, rules):
    """The three portfolio features of the state: equity / initial, position share, spread."""
    price = portfolio.last
    return equity_at(portfolio, price, rules) / portfolio.initial, position_share(portfolio, price, rules), portfolio.spread


@njit(error_model="numpy")
def begin_episode(portfolio, equity):
    """The account as it is, with the state's equity counted from here on as from an episode's start.

    A policy has seen equity / initial capital over the length of an episode only; played on for longer it would meet values that
    it never learned from. Money, costs and the peak go on.
    """
    return Portfolio(
        portfolio.cash,
        portfolio.position,
        portfolio.entry,
        equity,
        portfolio.spread,
        portfolio.last,
        portfolio.reserve,
        portfolio.costs,
        portfolio.exposure,
        portfolio.peak,
    )
