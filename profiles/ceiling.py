"""How much of the oracle's profit can be had from the features? The oracle's own policy on estimates of the hidden state.

    python profiles/ceiling.py [--markets 2000,2001,2003,2004] [--json FILE]

Mean-reverting markets of 40,000 bars, by the seeds they are drawn with. "state": the best linear estimate of the hidden deviation from the 51
features, fitted on the training range with the deviation known, which no agent is shown; "explained": its share of the deviation's variance
on the test range. "returns": least squares of the next bar's return, fitted on the same bars. "routed": the oracle itself, the hidden state
known, with the order types and urgencies of exposure-only agents (rules.routing) in place of its own. Shares are of the oracle's net log
profit on the test range; default costs and fills.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from numba_rl.config import Config
from numba_rl.data.market import Market, load_market
from numba_rl.data.synthetic import Synthetic, generate
from numba_rl.evaluate.backtest import decision_range, play_actions
from numba_rl.evaluate.oracle import EXPOSURE_GRID, Oracle, net_log_profit, oracle_for
from numba_rl.kernels.slots import CLOSE
from numba_rl.rules.fills import advance
from numba_rl.rules.portfolio import open_portfolio
from numba_rl.rules.routing import route

BARS = 40_000


def shares(seed: int) -> dict[str, float]:
    """The row of one market."""
    config = Config()
    made = generate("mean_reverting", BARS, seed)
    market = load_market(config, made.bars)
    bars, train = len(market), slice(*market.train)
    features = np.c_[market.features, np.ones(bars)].astype(np.float64)
    following = np.diff(np.log(market.prices[:, CLOSE]), append=np.log(market.prices[-1, CLOSE]))

    def fitted(target):
        return features @ np.linalg.lstsq(features[train], target[train], rcond=None)[0]

    estimates = {"state": fitted(made.hidden[-bars:]), "returns": fitted(following) / (made.model.phi - 1.0)}
    oracle = oracle_for(made, config)

    def earned(hidden):
        return net_log_profit(oracle.play(market, replace(made, hidden=hidden), market.test, config))

    best = earned(made.hidden)
    found = {name: earned(np.concatenate([made.hidden[:-bars], estimate])) / best for name, estimate in estimates.items()}
    test = slice(*market.test)
    hidden = made.hidden[-bars:][test]
    explained = 1.0 - np.var(estimates["state"][test] - hidden) / np.var(hidden)
    return {"market": seed, "oracle": best, "explained": explained} | found | {"routed": routed(oracle, market, made, config) / best}


def routed(oracle: Oracle, market: Market, made: Synthetic, config: Config) -> float:
    """Net log profit of the oracle's exposures by the orders of an exposure-only agent."""
    window = decision_range(market.test)
    prices = market.prices[window.start : window.stop]
    hidden = made.hidden[market.warmup :][window.start : window.stop]
    account, actions = open_portfolio(prices[0, CLOSE], oracle.rules), []
    for t in range(len(prices) - 1):
        wanted = oracle.actions[np.abs(oracle.hidden - hidden[t]).argmin(), np.abs(EXPOSURE_GRID - account.exposure).argmin()]
        actions.append(route(wanted // 9, account.exposure, market.regime[window.start + t, 2]))
        account, _ = advance(account, actions[-1], prices[t, CLOSE], *prices[t + 1, :4], oracle.rules)
    played = play_actions(market, [market.test], np.array(actions, np.int32)[:, None], config, names=["routed"], rules=oracle.rules)
    return net_log_profit(played[0])


def main() -> None:
    """Print a line a market, and keep all in a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--markets", default="2000,2001,2003,2004", help="seeds")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    for seed in given.markets.split(","):
        rows.append(shares(int(seed)))
        print("  ".join(f"{name} {value:.3g}" if name != "market" else f"market {value}" for name, value in rows[-1].items()), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps({"bars": BARS, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
