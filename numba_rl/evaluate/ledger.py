"""The market game once more in plain float64 Python, written from its rules: what `rltrain check-parity` and tests compare with.

Nothing is shared with numba_rl.rules but the settings: equity is counted as initial capital + realised + unrealised profit -
fees - financing (the rules keep cash), whole lots are integers, and the exposure held is an exact fraction, so that a mistake
of one side is not repeated by the other.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

TARGETS = (Fraction(-1), Fraction(-1, 2), Fraction(0), Fraction(1, 2), Fraction(1))
MARKET, LIMIT, IOC = range(3)
IOC_FRACTIONS = (Fraction(1, 2), Fraction(3, 4), Fraction(1))
SPREAD_FACTORS = (0.5, 1.0, 1.5)
LIMIT_SPREADS = (2, 1, 0)
BP = 1e-4


@dataclass
class Step:
    """What one step did; money in account currency."""

    equity_before: float
    equity_after: float
    units: float  # filled, signed
    price: float | None  # of the fill, before the spread; None: nothing was filled
    fee: float
    spread_cost: float
    financing: float
    exit_units: float
    exit_price: float | None
    exit_fee: float
    exit_spread_cost: float
    position: float  # after the fill
    exposure: float  # after the fill
    drawdown: float
    terminated: bool


class Ledger:
    """One account. market: a numba_rl.config.MarketConfig; financing: of the short or levered part, per bar."""

    def __init__(self, market, financing=0.0):
        self.market = market
        self.financing_rate = financing
        self.initial = market.initial_capital
        self.realised = 0.0  # profit of closed units, fees apart, spread included
        self.fees = 0.0
        self.financing = 0.0
        self.spread_paid = 0.0
        self.position = 0.0
        self.lots = 0  # with a lot size, the position is lots * lot
        self.entry = 0.0
        self.exposure = Fraction(0)
        self.peak = self.initial

    def equity(self, price):
        """Initial capital plus all profit, less what was paid."""
        unrealised = self.position * (price - self.entry) * self.market.multiplier
        return self.initial + self.realised + unrealised - self.fees - self.financing

    def share(self, price):
        """The position as a share of the largest one."""
        if self.market.sizing == "units":
            return self.position / self.market.max_position
        return self.position * price * self.market.multiplier / (self.market.leverage * (1 - self.market.reserve) * self.equity(price))

    def wanted(self, target, price):
        """(units, lots) between the position and that of `target`; lots is None without a lot size."""
        m = self.market
        if m.sizing == "units":
            goal = float(target) * m.max_position
        else:
            goal = float(target) * m.leverage * (1 - m.reserve) * self.equity(price) / (price * m.multiplier)
        if m.lot == 0:
            return goal - self.position, None
        lots = int(math.copysign(math.floor(abs(goal) / m.lot + 1e-9), goal)) - self.lots
        return lots * m.lot, lots

    def trade(self, units, lots, price, half_spread, rate):
        """Fill `units` at `price` made worse by the share `half_spread`; returns (fee, spread cost)."""
        m = self.market
        paid = price + math.copysign(half_spread * abs(price), units)
        fee = abs(units) * abs(paid) * m.multiplier * rate
        if m.min_fee > 0:
            fee = max(fee, m.min_fee)
        before, after = self.position, (self.position + units if lots is None else (self.lots + lots) * m.lot)
        if lots is not None:
            self.lots += lots
        closed = 0.0  # units of the old position that this fill closed, signed like the position
        if before * units < 0:
            closed = math.copysign(min(abs(before), abs(units)), before)
            self.realised += closed * (paid - self.entry) * m.multiplier
        if after == 0:
            self.entry = 0.0
        elif before * after <= 0:
            self.entry = paid
        elif abs(after) > abs(before):
            self.entry = (abs(before) * self.entry + abs(units) * paid) / abs(after)
        self.position = after
        self.fees += fee
        cost = abs(units) * half_spread * abs(price) * m.multiplier
        self.spread_paid += cost
        return fee, cost

    def limit_price(self, close, patience, buys):
        """Limit of an order decided at `close`, on a tick away from the market."""
        tick = self.market.tick
        away = patience * self.market.spread_bps * BP * abs(close)
        limit = close - away if buys else close + away
        if tick > 0:
            limit = math.floor(limit / tick + 1e-9) * tick if buys else math.ceil(limit / tick - 1e-9) * tick
        return limit

    def order(self, action, close, bar, reference):
        """The order of one action, filled or not: (units, price or None, fee, spread cost)."""
        m = self.market
        nothing = (0.0, None, 0.0, 0.0)
        target, kind, urgency = TARGETS[action // 9], action // 3 % 3, action % 3
        if target == self.exposure and not (m.drift_tolerance > 0 and abs(self.share(close) - float(target)) > m.drift_tolerance):
            return nothing
        price, limited = reference, kind == LIMIT and m.fill_simulation
        if limited:
            buys = self.wanted(target, close)[0] > 0
            limit = self.limit_price(close, LIMIT_SPREADS[urgency], buys)
            open_, high, low, _ = bar
            if buys and low < limit:
                price = min(open_, limit)
            elif not buys and high > limit:
                price = max(open_, limit)
            else:
                return nothing
        wanted, wanted_lots = self.wanted(target, price)
        if wanted == 0:
            self.exposure = target
            return nothing
        if limited and (wanted > 0) != buys:
            return nothing
        fraction = IOC_FRACTIONS[urgency] if kind == IOC and m.fill_simulation else Fraction(1)
        units, lots = float(fraction) * wanted, None
        if wanted_lots is not None:
            lots = int(math.copysign(abs(wanted_lots) * fraction.numerator // fraction.denominator, wanted_lots))
            units, fraction = lots * m.lot, Fraction(lots, wanted_lots)
            if lots == 0:
                return nothing
        half_spread = 0.0 if limited or not m.fill_simulation else m.spread_bps * BP / 2 * SPREAD_FACTORS[urgency]
        rate = BP * (m.maker_bps if kind == LIMIT else m.taker_bps)
        fee, cost = self.trade(units, lots, price, half_spread, rate)
        self.exposure += fraction * (target - self.exposure)
        return units, price, fee, cost

    def leave(self, price):
        """Close everything at cost: (units, fee, spread cost)."""
        units, lots = -self.position, (-self.lots if self.market.lot > 0 else None)
        self.exposure = Fraction(0)
        if units == 0:
            return 0.0, 0.0, 0.0
        half_spread = self.market.spread_bps * BP / 2 if self.market.fill_simulation else 0.0
        return units, *self.trade(units, lots, price, half_spread, self.market.taker_bps * BP)

    def step(self, action, close, bar):
        """Play the action decided at `close` in the next bar (open, high, low, close)."""
        m = self.market
        before = self.equity(close)
        reference = bar[0] if m.fill_at == "next_open" else close
        units, price, fee, cost, financing = 0.0, None, 0.0, 0.0, 0.0
        exit_price = None
        if self.equity(reference) <= m.equity_floor:
            exit_price = reference
            position, exposure = 0.0, 0.0
        else:
            units, price, fee, cost = self.order(action, close, bar, reference)
            position, exposure = self.position, float(self.exposure)
            notional = position * reference * m.multiplier
            financed = -notional if notional < 0 else max(0.0, notional - self.equity(reference))
            financing = self.financing_rate * financed
            self.financing += financing
            self.peak = max(self.peak, self.equity(bar[3]))
            if self.equity(bar[3]) <= m.equity_floor:
                exit_price = bar[3]
        exit_units, exit_fee, exit_cost = 0.0, 0.0, 0.0
        if exit_price is not None:
            exit_units, exit_fee, exit_cost = self.leave(exit_price)
        after = self.equity(bar[3])
        self.peak = max(self.peak, after)
        return Step(
            before, after, units, price, fee, cost, financing, exit_units, exit_price, exit_fee, exit_cost,
            position, exposure, (self.peak - after) / self.peak, exit_price is not None,
        )  # fmt: skip
