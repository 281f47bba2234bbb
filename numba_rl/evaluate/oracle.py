"""The best that can be earned on a synthetic market by one who knows its hidden state: value iteration over the game.

The oracle plays the same 45 actions under the same fills and costs. Its state is (hidden state, exposure held); it maximises
the mean log growth of the equity a bar, by relative value iteration (Puterman 1994, section 8.5). Hidden states lie on a grid
(mean_reverting) or are the two regimes (momentum); exposures on a grid of eighths, between which values are interpolated,
since IOC orders fill in parts. The chance that a limit order fills, given where the bar closes, is that of the Brownian
bridge's extreme. Bars open at the close before, so that it does not matter at which of the two orders fill. Left out of
the values, but not of the played profit, are the drift of a position away from its exposure, ticks, lots and the minimum
fee: the action table is played on the real bars through the rules.
"""

import numpy as np
from numba import njit

from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.data.synthetic import Model, Synthetic, fill_probability
from numba_rl.data.windows import Range
from numba_rl.errors import UserError
from numba_rl.evaluate.backtest import Backtest, decision_range, play_actions
from numba_rl.evaluate.metrics import log_return
from numba_rl.kernel_cache import cached
from numba_rl.kernels.slots import CLOSE
from numba_rl.rules.actions import ACTIONS, FLAT, IOC, LIMIT, MARKET, NORMAL
from numba_rl.rules.fills import advance
from numba_rl.rules.parameters import Rules, rules_of
from numba_rl.rules.portfolio import open_portfolio

EXPOSURE_GRID = np.linspace(-1.0, 1.0, 17)
DEVIATIONS = 161  # grid points of the hidden deviation, over +-5 stationary deviations
NODES = 41  # of the next bar's noise, Gauss-Hermite
TOLERANCE = 1e-9  # of the span of a sweep's change, log growth a bar


class Oracle:
    """The action table of a market's best policy.

    hidden float64 [H]; actions int64 [H, 17]; values float64 [H, 17], relative; growth: log growth of the equity a bar that
    the table earns in the long run.
    """

    def __init__(self, model: Model, rules: Rules):
        """Solve the game. Raises UserError for sizing by units, which the values do not cover."""
        if rules.equity_sizing != 1:
            raise UserError('the oracle knows sizing by equity only; set market.sizing = "equity"')
        self.rules = rules
        self.hidden, moves, weights, transition = _dynamics(model)
        reward, after, traded, chance = _outcomes(moves, weights, rules, model.sigma)
        self.actions, self.values, self.growth = _iterate(reward, after, traded, chance, transition, weights)

    def play(self, market: Market, synthetic: Synthetic, window: Range, config: Config) -> Backtest:
        """Play the table over a window of the market drawn as `synthetic`."""
        played = decision_range(window)
        hidden = synthetic.hidden[played.start + market.warmup : played.stop + market.warmup]
        prices = market.prices[played.start : played.stop]
        rows = np.abs(self.hidden[None, :] - hidden[:, None]).argmin(axis=1)
        actions = _play(rows, self.actions, EXPOSURE_GRID, prices, self.rules)
        return play_actions(market, [window], actions[:, None], config, names=["oracle"], rules=self.rules)[0]


def oracle_for(synthetic: Synthetic, config: Config) -> Oracle:
    """The oracle of a drawn market under the settings of `config`."""
    return Oracle(synthetic.model, rules_of(config, synthetic.bars.bars_per_year))


def net_log_profit(backtest: Backtest) -> float:
    """ln(final equity / initial equity), -inf after ruin."""
    return log_return(backtest.equity)


def _dynamics(model: Model):
    """(hidden [H], log moves [H, K], node weights [K], transition [H, K, H]): where each node of the noise leads."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    weights = weights / weights.sum()
    if model.kind == "mean_reverting":
        hidden = np.linspace(-5, 5, DEVIATIONS) * model.sigma / np.sqrt(1.0 - model.phi**2)
        following = model.phi * hidden[:, None] + model.sigma * nodes[None, :]
        return hidden, following - hidden[:, None], weights, _interpolation(following, hidden)
    if model.kind == "momentum":
        hidden = np.array([-1.0, 1.0])
        moves = model.drift * hidden[:, None] - 0.5 * model.sigma**2 + model.sigma * nodes[None, :]
        stay = np.array([[1.0 - model.switch, model.switch], [model.switch, 1.0 - model.switch]])
        return hidden, moves, weights, np.repeat(stay[:, None, :], NODES, axis=1)
    moves = -0.5 * model.sigma**2 + model.sigma * nodes[None, :]
    return np.zeros(1), moves, weights, np.ones((1, NODES, 1))


def _interpolation(points, grid):
    """[..., len(grid)]: linear interpolation weights of each point, held at the ends."""
    place = np.clip((points - grid[0]) / (grid[1] - grid[0]), 0, len(grid) - 1)
    left = np.minimum(place.astype(int), len(grid) - 2)
    matrix = np.zeros((*points.shape, len(grid)))
    np.put_along_axis(matrix, left[..., None], (1.0 - (place - left))[..., None], -1)
    np.put_along_axis(matrix, left[..., None] + 1, (place - left)[..., None], -1)
    return matrix


def _outcomes(moves, weights, rules: Rules, sigma):
    """Of each action: expected log growth [H, E, A], exposure after a fill and its change [E, A], chance of a fill [A, 2, H, K]."""
    invested = rules.leverage * (1.0 - rules.reserve)
    change = np.expm1(moves)  # of the price over the bar, [H, K]
    held = EXPOSURE_GRID
    reward = np.zeros((len(moves), len(held), ACTIONS))
    after = np.zeros((len(held), ACTIONS))
    chance = np.ones((ACTIONS, 2, *moves.shape))

    def log_growth(gained, exposure):
        """Of the account that gained a share of what is invested and held `exposure` through the bar."""
        borrowed = np.where(exposure < 0, -invested * exposure, np.maximum(invested * exposure - 1.0, 0.0))
        return np.log1p(np.maximum(invested * gained - rules.financing * borrowed, -0.999))

    idle = log_growth(held[None, :, None] * change[:, None, :], held[None, :, None])  # [H, E, K]
    for action in range(ACTIONS):
        target, order, haste = (action // 9 - FLAT) * 0.5, action // 3 % 3, action % 3
        share = 1.0
        if order == IOC and rules.fill_simulation == 1:
            share = 0.5 + 0.25 * haste
        traded = share * (target - held)
        after[:, action] = held + traded
        fee = rules.maker if order == LIMIT else rules.taker
        slip = 0.25 * rules.spread * (haste + 1) if order != LIMIT and rules.fill_simulation == 1 else 0.0
        for side in range(2):  # buys, sells
            offset = (2 - haste) * rules.spread if order == LIMIT and rules.fill_simulation == 1 else 0.0
            sign = 1.0 if side == 0 else -1.0
            if order == LIMIT and rules.fill_simulation == 1:
                chance[action, side] = fill_probability(sign * moves, offset, sigma)
            rows = np.flatnonzero(traded > 0 if side == 0 else traded < 0)
            better = (1.0 + change) / (1.0 - sign * offset) - 1.0  # of the traded part, from its fill price, [H, K]
            cost = np.abs(traded[rows]) * (fee + slip)
            gained = held[None, rows, None] * change[:, None, :] + traded[None, rows, None] * better[:, None, :] - cost[None, :, None]
            filled = log_growth(gained, after[None, rows, action, None])
            p = chance[action, side][:, None, :]
            reward[:, rows, action] = ((p * filled + (1.0 - p) * idle[:, rows]) * weights).sum(-1)
        still = np.flatnonzero(traded == 0)
        reward[:, still, action] = (idle[:, still] * weights).sum(-1)
    return reward, after, after - held[:, None], chance


def _iterate(reward, after, traded, chance, transition, weights):
    """Value iteration; each sweep is one small matrix product a distinct fill chance."""
    held = EXPOSURE_GRID
    operators, which = [], np.zeros((ACTIONS, 2), dtype=int)
    for action in range(ACTIONS):
        for side in range(2):
            p = chance[action, side]
            for index, known in enumerate(operators):
                if np.array_equal(known[0], p):
                    which[action, side] = index
                    break
            else:
                which[action, side] = len(operators)
                operators.append((p, np.einsum("k,hk,hkj->hj", weights, p, transition)))
    everything = np.einsum("k,hkj->hj", weights, transition)
    to = _interpolation(np.clip(after, -1, 1), held)  # [E, A, E]
    values = np.zeros(reward.shape[:2])
    sells = traded < 0
    for _ in range(20_000):
        expected = everything @ values  # [H, E]
        filled = np.stack([operator @ values for _, operator in operators])  # [O, H, E]
        quality = reward.copy()
        for action in range(ACTIONS):
            by_side = filled[which[action]]  # [2, H, E]
            # value after the fill, where it happens, and of staying, where it does not
            worth = by_side @ to[:, action].T + (expected - by_side)
            quality[:, :, action] += np.where(sells[:, action], worth[1], worth[0])
        updated = quality.max(-1)
        gained = updated - values
        span = np.ptp(gained)
        values = updated - updated[0, len(held) // 2]
        if span < TOLERANCE:
            break
    # Among equals an action that keeps the exposure comes first, as a market order of normal urgency.
    favoured = quality.copy()
    favoured[:, traded == 0.0] += 1e-12
    favoured[..., np.arange(ACTIONS) % 9 == MARKET * 3 + NORMAL] += 1e-13
    return favoured.argmax(-1), values, 0.5 * (gained.min() + gained.max())


@cached
@njit(error_model="numpy")
def _play(rows, table, grid, prices, rules):
    """Actions int32 [n] that the table takes along the bars, with the exposure really held."""
    n = len(prices) - 1
    actions = np.zeros(n, np.int32)
    account = open_portfolio(prices[0, CLOSE], rules)
    for t in range(n):
        nearest = 0
        for e in range(len(grid)):
            if abs(grid[e] - account.exposure) < abs(grid[nearest] - account.exposure):
                nearest = e
        actions[t] = table[rows[t], nearest]
        account, outcome = advance(
            account, actions[t], prices[t, CLOSE], prices[t + 1, 0], prices[t + 1, 1], prices[t + 1, 2], prices[t + 1, CLOSE], rules
        )
        if outcome.terminated == 1:
            break
    return actions
