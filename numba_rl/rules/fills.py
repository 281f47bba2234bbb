"""Orders: how an action at the close of bar t becomes a fill in bar t + 1, and what the step costs.

Market and IOC orders fill at the open of t + 1 (or at the close of t), worse by half the spread times the urgency's
multiplier, for the taker fee; an IOC order fills 0.5, 0.75 or all of the change by urgency. A limit order at the close of
t made better by 2, 1 or 0 spreads fills whole, for the maker fee and no spread, if bar t + 1 trades strictly through it,
at the limit or at the open where that is better. Without fill simulation every order fills whole at the reference price
for the fee of its table. Limit prices are rounded to the tick away from the market, units to the lot towards zero.
"""

from math import ceil, floor, isnan, nan
from typing import NamedTuple

from numba import njit

from numba_rl.rules.actions import AGGRESSIVE, IOC, LIMIT, order_type, target_exposure, urgency
from numba_rl.rules.portfolio import book, close_out, equity_at, fee_of, half_spread, mark, position_share, worse_price

SAME_EXPOSURE = 1e-9  # partial fills leave exposures a rounding error away from 0.5 or 0


class Outcome(NamedTuple):
    """What one step did. Money and prices float64, flags int64."""

    equity_before: float  # at the close of t, before the order
    equity_after: float  # at the close of t + 1, after costs (and after the forced exit of a ruined account)
    price: float  # of the fill, before the spread; the close of t where nothing was filled
    units: float  # filled by the order, signed
    fee: float
    spread_cost: float
    financing: float
    exit_units: float  # of the forced exit, signed; 0 otherwise
    exit_price: float  # before the spread
    exit_fee: float
    exit_spread_cost: float
    exposure_before: float
    exposure_after: float  # held from the fill on; before a forced exit at the close
    position_before: float
    position_after: float
    drawdown: float  # share of the equity peak lost, at the close of t + 1
    terminated: int
    filled_at: float  # price of the order's fill, spread included; `price` where nothing was filled


@njit(error_model="numpy")
def round_to_lot(units, lot):
    """`units` cut towards zero to whole lots (a billionth of a lot is forgiven, for 0.3 / 0.1)."""
    if lot <= 0.0:
        return units
    lots = floor(abs(units) / lot + 1e-9) * lot
    return lots if units > 0.0 else -lots


@njit(error_model="numpy")
def invested(portfolio, exposure, price, rules):
    """Money of an exposure at `price`, in "equity" sizing: a share of the equity there."""
    return exposure * rules.leverage * (1.0 - portfolio.reserve) * equity_at(portfolio, price, rules)


@njit(error_model="numpy")
def target_units(portfolio, exposure, price, rules):
    """Units of an exposure at `price`: a share of the equity there, or of max_position."""
    if rules.equity_sizing == 0:
        return round_to_lot(exposure * rules.max_position, rules.lot)
    return round_to_lot(invested(portfolio, exposure, price, rules) / (price * rules.multiplier), rules.lot)


@njit(error_model="numpy")
def would_buy(portfolio, exposure, price, rules):
    """Whether `target_units` are more than what is held; without their division, which takes as long as all else, where no lots are cut."""
    worth = price * rules.multiplier
    if rules.equity_sizing == 1 and rules.lot <= 0.0 and worth > 0.0:
        return invested(portfolio, exposure, price, rules) > portfolio.position * worth
    return target_units(portfolio, exposure, price, rules) > portfolio.position


@njit(error_model="numpy")
def wants_trade(portfolio, target, price, rules):
    """Whether units may change: another exposure than the one held, or (if set) a share drifted too far from it."""
    if abs(target - portfolio.exposure) > SAME_EXPOSURE:
        return True
    if rules.drift_tolerance <= 0.0:
        return False
    return abs(position_share(portfolio, price, rules) - target) > rules.drift_tolerance


@njit(error_model="numpy")
def limit_fill(close, open_next, high_next, low_next, buys, patience, spread, tick):
    """Fill price of a limit order in the next bar, or NaN. `patience`: spreads between the close and the limit."""
    offset = patience * spread * abs(close)
    if buys:
        limit = close - offset
        if tick > 0.0:
            limit = floor(limit / tick + 1e-9) * tick
        if low_next < limit:
            return min(limit, open_next)
    else:
        limit = close + offset
        if tick > 0.0:
            limit = ceil(limit / tick - 1e-9) * tick
        if high_next > limit:
            return max(limit, open_next)
    return nan


@njit(error_model="numpy")
def drawdown_of(portfolio, equity):
    """Share of the equity peak that is lost at `equity`; 0 where there never was a peak above 0."""
    if portfolio.peak > 0.0:
        return (portfolio.peak - equity) / portfolio.peak
    return 0.0


@njit(error_model="numpy")
def advance(portfolio, action, close, open_next, high_next, low_next, close_next, rules):
    """Play one step: the order of `action` decided at `close`, its fill in the next bar, the mark at `close_next`.

    Returns (portfolio, outcome). Equity at or below the floor, at the fill (next_open) or at the mark, ends the episode
    with a forced exit at cost; a deficit stays visible in the cash.
    """
    equity_before = equity_at(portfolio, close, rules)
    position_before = portfolio.position
    exposure_before = portfolio.exposure
    target = target_exposure(action)
    order = order_type(action)
    haste = urgency(action)
    reference = open_next if rules.next_open == 1 else close

    units = 0.0
    price = close
    fill_price = close
    fee = 0.0
    spread_cost = 0.0
    ruined = equity_at(portfolio, reference, rules) <= rules.equity_floor
    exit_price = reference
    buys = True
    if ruined:
        price = reference

    if not ruined and wants_trade(portfolio, target, close, rules):
        at_limit = order == LIMIT and rules.fill_simulation == 1
        price = reference
        if at_limit:
            buys = would_buy(portfolio, target, close, rules)
            price = limit_fill(close, open_next, high_next, low_next, buys, 2 - haste, portfolio.spread, rules.tick)
        if not isnan(price):  # NaN: a limit that was not reached
            wanted = target_units(portfolio, target, price, rules) - portfolio.position
            units = wanted
            filled = 1.0
            if at_limit and (wanted > 0.0) != buys:
                units = 0.0  # at the limit's own price the order would stand on the other side
            elif order == IOC and haste < AGGRESSIVE and rules.fill_simulation == 1:
                filled = 0.5 + 0.25 * haste
                units = round_to_lot(wanted * filled, rules.lot)
                if rules.lot > 0.0:
                    filled = units / wanted
            share = 0.0
            if not at_limit and rules.fill_simulation == 1:
                share = half_spread(portfolio.spread, haste)
            if units != 0.0:
                fill_price = worse_price(price, units, share)
                fee = fee_of(units, fill_price, rules.maker if order == LIMIT else rules.taker, rules)
                spread_cost = abs(units * (fill_price - price)) * rules.multiplier
                exposure = target
                if units != wanted:
                    exposure = exposure_before + filled * (target - exposure_before)
                portfolio = book(portfolio, units, fill_price, fee, spread_cost, exposure, rules)
            elif wanted == 0.0:
                portfolio = book(portfolio, 0.0, price, 0.0, 0.0, target, rules)
        if units == 0.0:
            price = close

    position_after = 0.0 if ruined else portfolio.position
    exposure_after = 0.0 if ruined else portfolio.exposure
    financing = 0.0
    if not ruined:
        if rules.financing > 0.0:
            notional = portfolio.position * reference * rules.multiplier
            borrowed = abs(notional)
            if notional >= 0.0:
                borrowed = max(0.0, notional - equity_at(portfolio, reference, rules))
            financing = rules.financing * borrowed
        portfolio = mark(portfolio, close_next, financing, rules)
        if equity_at(portfolio, close_next, rules) <= rules.equity_floor:
            ruined = True
            exit_price = close_next

    exit_units = 0.0
    exit_fee = 0.0
    exit_spread_cost = 0.0
    if ruined:
        exit_units = -portfolio.position
        portfolio, exit_fee, exit_spread_cost = close_out(portfolio, exit_price, rules)
        portfolio = mark(portfolio, close_next, 0.0, rules)

    equity_after = equity_at(portfolio, close_next, rules)
    outcome = Outcome(
        equity_before,
        equity_after,
        price,
        units,
        fee,
        spread_cost,
        financing,
        exit_units,
        exit_price,
        exit_fee,
        exit_spread_cost,
        exposure_before,
        exposure_after,
        position_before,
        position_after,
        drawdown_of(portfolio, equity_after),
        1 if ruined else 0,
        fill_price if units != 0.0 else price,
    )
    return portfolio, outcome
