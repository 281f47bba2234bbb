"""D-06, D-12, D-14 by what is shown of a backtest: equity, trade list, metrics, report; on the CPU path and by the GPU's kernel."""

import csv
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rules.driver import bars, costless, random_bars

from numba_rl import gpu, settings
from numba_rl.config import Config
from numba_rl.data.windows import Range
from numba_rl.evaluate import backtest as product
from numba_rl.evaluate.backtest import AccountingError, play_actions, play_policy
from numba_rl.evaluate.device import GpuWindows
from numba_rl.evaluate.metrics import compute_metrics
from numba_rl.evaluate.report import ReportData, render_report
from numba_rl.evaluate.statistics import judge
from numba_rl.evaluate.tables import equity_table, trades_table
from numba_rl.kernels.backtest import EQUITY
from numba_rl.kernels.backtest_policy import FEES, FILLS
from numba_rl.rules.actions import compose
from numba_rl.trainer.networks import build_actor

HERE = Path(__file__).parent
LONG, SHORT, FLAT = (compose(exposure, 0, 1) for exposure in (4, 0, 2))
DAY = 86_400_000_000_000


def rows(case, file):
    with (HERE / case / file).open() as lines:
        return list(csv.DictReader(lines))


def market_of(closes):
    prices = bars(closes)
    features = np.zeros((len(prices), 2), np.float32)
    return SimpleNamespace(
        prices=prices, features=features, timestamp=DAY * np.arange(len(prices)), bars_per_year=365.0, interval_ns=DAY, source="case"
    )


def units(size, capital, **market):
    """Settings that hold `size` units, bought and sold at the close of the decision, with the costs given and no others."""
    own = costless(sizing="units", max_position=size, fill_at="close", initial_capital=capital, **market)
    return settings.replace(Config(), {"ppo.actor": (8, 8)} | {f"market.{name}": value for name, value in own.items()})


def played(config, closes, actions):
    """The actions over all bars, the first decision at bar 0; without a last action for the last bar, which is a mark alone."""
    return play_actions(market_of(closes), [Range(1, len(closes))], np.array(actions, np.int32)[:, None], config, names=["agent"])[0]


def report_of(agent, config):
    """The report's visible words."""
    page = render_report(ReportData("case", agent, judge(agent, agent), config=config))
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", re.sub(r"<(style|script).*?</\1>", " ", page, flags=re.DOTALL)))


@pytest.mark.parametrize(
    ("bps", "fees", "final", "shown"), [(10.0, 2.10, 10097.90, "2.10"), (0.0, 0.0, 10100.00, "0.00"), (-2.0, -0.42, 10100.42, "-0.42")]
)
def test_d_06_trade_list_and_report_agree_on_the_fees(bps, fees, final, shown):
    entry, leave = rows("D-06", "trades.csv")
    first, last, size = int(entry["bar"]), int(leave["bar"]), float(entry["quantity"])
    closes = np.full(last + 3, 26.0)
    closes[first], closes[last] = float(entry["price"]), float(leave["price"])
    actions = [FLAT] * first + [LONG] * (last - first) + [FLAT] * (len(closes) - 1 - last)
    config = units(size, 10_000.0, taker_bps=bps)
    agent = played(config, closes, actions)
    figures, trades = compute_metrics(agent), trades_table(agent, "close")
    assert len(trades) == figures["trades"] == 1
    trade = trades.row(0, named=True)
    assert (trade["units"], trade["entry_price"], trade["exit_price"], trade["is_open"]) == (size, 25.0, 27.5, False)
    stamps = [int(value) for value in trades.select("entry_time", "exit_time").cast(int).row(0)]
    assert stamps == [first * DAY, last * DAY]
    assert trade["gross"] == pytest.approx(100.0, abs=1e-9) and trade["costs"] == pytest.approx(fees, abs=1e-9)
    assert trade["net"] == pytest.approx(100.0 - fees, abs=1e-9)  # of both sides
    assert trades["costs"].sum() == pytest.approx(figures["fees"], abs=1e-9) and figures["fees"] == pytest.approx(fees, abs=1e-9)
    assert figures["final_equity"] == pytest.approx(final, abs=1e-6) and figures["total_return"] == pytest.approx(
        final / 10_000 - 1, abs=1e-10
    )
    assert equity_table(agent)["equity"][-1] == pytest.approx(final, abs=1e-6)
    assert equity_table(agent)["fee"].drop_nulls().sum() == pytest.approx(fees, abs=1e-9)
    assert f"Fees {shown} " in report_of(agent, config)


def test_d_06_half_a_position_pays_for_half():
    """An entry in two parts and an exit in two: every fill pays on its own notional, and the trip's costs are their sum."""
    half = compose(3, 0, 1)
    config = units(40.0, 10_000.0, taker_bps=10.0)
    agent = played(config, [25.0, 26.0, 27.0, 27.5, 27.5], [half, LONG, half, FLAT])
    assert agent.fee.tolist() == pytest.approx([0.5, 0.52, 0.54, 0.55])
    assert agent.trades.costs.tolist() == pytest.approx([2.11]) and compute_metrics(agent)["fees"] == pytest.approx(2.11)


TAPE = [float(row["price"]) for row in rows("D-12", "tape.csv")]


def always_long():
    network = build_actor(settings.replace(Config(), {"ppo.actor": (8, 8)}), 2, torch.Generator().manual_seed(0))
    with torch.no_grad():
        network.policy_output.bias[LONG] = 10.0
    return network


def test_d_12_the_exit_at_the_end_is_everywhere():
    config = units(5.0, 10_000.0, taker_bps=20.0)
    agent = play_policy(market_of(TAPE), [Range(1, len(TAPE))], always_long(), config)[0]
    assert agent.equity[0] - agent.fee[0] == pytest.approx(9999.00)  # bar 0, after the entry
    assert agent.equity[1:3].tolist() == pytest.approx([10024.0, 10059.0])  # 9999 and 5 units' profit
    figures = compute_metrics(agent)
    assert agent.closed_at_end and not agent.terminated
    table, trades = equity_table(agent), trades_table(agent, "close")
    assert table["equity"][-1] == pytest.approx(10097.80, abs=1e-6) == agent.equity[-1] == figures["final_equity"]
    assert figures["total_return"] == pytest.approx(0.00978, abs=1e-12)
    assert len(trades) == 1 and figures["trades"] == 1 and not trades["is_open"].any()
    assert trades["exit_time"].cast(int)[0] == 3 * DAY  # on the last bar
    assert trades["net"][0] == pytest.approx(97.80) and trades["costs"][0] == pytest.approx(2.20)
    assert figures["fees"] == pytest.approx(2.20) == table["fee"].drop_nulls().sum()
    assert table["fee"][-1] == pytest.approx(1.20)
    text = report_of(agent, config)
    assert "Net return 0.98% " in text and "Equity at the end, net 10,098 " in text and "Closed trades 1 " in text and "Fees 2.20 " in text


@pytest.mark.skipif(not gpu.SIMULATED, reason="test_backtest_gpu holds the kernel on a GPU against the ledger")
def test_d_12_and_d_14_on_the_gpus_kernel():
    """The same rule in the kernel that plays windows on a GPU, here in the simulator: D-12's exit, and D-14's ruin with SHORT for LONG."""
    windows = GpuWindows(market_of(TAPE), [Range(1, len(TAPE))], always_long(), units(5.0, 10_000.0, taker_bps=20.0), "cpu")
    windows.launch()
    equity, actions, totals, steps, _ = windows.outputs
    assert (actions == LONG).all() and int(steps[0]) == 3
    assert float(equity[-1, 0]) == pytest.approx(10097.80, abs=1e-6)
    assert float(totals[0, FEES]) == pytest.approx(2.20) and int(totals[0, FILLS]) == 1  # orders; the exit is none

    network = always_long()
    with torch.no_grad():
        network.policy_output.bias[SHORT] = 20.0
    windows = GpuWindows(market_of(SQUEEZE), [Range(1, len(SQUEEZE))], network, units(10.0, 1000.0), "cpu")
    windows.launch()
    assert int(windows.outputs.steps[0]) == 3 and windows.outputs.equity[:, 0].tolist() == [
        700.0,
        200.0,
        -600.0,
        0.0,
    ]  # the last one is never played


SQUEEZE = [float(row["price"]) for row in rows("D-14", "squeeze.csv")]


def test_d_14_the_ruin_is_shown_and_final():
    config = units(10.0, 1000.0)
    agent = played(config, SQUEEZE, [SHORT] * 4)
    assert agent.equity.tolist() == [1000.0, 700.0, 200.0, -600.0] and len(agent) == 3  # the recovery to 1100 is never reached
    assert agent.terminated and not agent.closed_at_end
    assert agent.trades.net.tolist() == [-1600.0] and not agent.trades.is_open.any()
    figures = compute_metrics(agent)
    assert (
        figures["total_return"] == pytest.approx(-1.6)
        and figures["final_equity"] == -600.0
        and figures["max_drawdown"] == pytest.approx(1.6)
    )
    text = report_of(agent, config)
    assert re.search(r"The account was ruined at 1970-01-04.* with an equity of -600\.00; it ends there", text)


GAMES = {
    "default": {},
    "dear": {"market.spread_bps": 5.0, "market.financing_rate": 0.3, "market.min_fee": 1.0, "market.tick": 0.01, "market.lot": 0.5},
    "levered": {"market.leverage": 40.0, "market.multiplier": 50.0, "market.fill_at": "close"},
    "gap": {"market.leverage": 60.0},
}


@pytest.mark.parametrize("name", GAMES)
def test_d_14_the_accounting_identity_holds_at_every_step(name):
    """equity = start + realised + unrealised - fees, each counted here from the fills, ruined accounts included."""
    config = settings.replace(Config(), {"market.initial_capital": 1000.0} | GAMES[name])
    market = market_of(np.ones(400))
    market.prices = random_bars(np.random.default_rng(11), 400, 0.01)
    actions = np.random.default_rng(12).integers(0, 45, (399, 3)).astype(np.int32)
    ruined = 0
    for agent in play_actions(market, [Range(1, 400), Range(50, 300), Range(200, 400)], actions, config, names=["a", "b", "c"]):
        ruined += agent.terminated
        position = entry = realised = paid = 0.0
        held = np.append(agent.position, 0.0)
        for t in range(len(agent)):
            fills = [(agent.traded[t], agent.price[t])]
            if t == len(agent) - 1 and agent.exit_notional[t]:
                leaving = -(position + agent.traded[t])
                fills.append((leaving, agent.exit_notional[t] / abs(leaving) / agent.multiplier))
            for size, price in fills:
                closed = np.clip(-size, min(position, 0.0), max(position, 0.0))  # units of the old position, signed like it
                realised += closed * (price - entry) * agent.multiplier
                opened = size + closed
                position += size
                if opened:
                    entry = price if abs(position - opened) < 1e-9 else (entry * (position - opened) + price * opened) / position
            paid += agent.fee[t] + agent.spread_cost[t] + agent.financing[t]
            unrealised = position * (agent.close[t + 1] - entry) * agent.multiplier
            assert agent.equity[t + 1] == pytest.approx(1000.0 + realised + unrealised - paid, abs=1e-6), t
        assert np.isfinite(held).all() and abs(position) < 1e-9
    assert (ruined > 0) == (name in ("levered", "gap"))


def test_d_14_a_break_of_the_identity_is_an_error(monkeypatch):
    """A ledger that clamps the equity of the squeezed account at 0 is found out, at the step where it does so."""
    honest = product.kernel.play_given

    def clamping(*arguments):
        honest(*arguments)
        record = arguments[12]
        np.maximum(record[..., EQUITY], 0.0, out=record[..., EQUITY])

    monkeypatch.setattr(product.kernel, "play_given", clamping)
    with pytest.raises(AccountingError, match=r"agent: after step 2 the equity is .*0\.0.*, but its fills make .*-600\.0"):
        played(units(10.0, 1000.0), SQUEEZE, [SHORT] * 4)
    assert played(units(10.0, 10_000.0), SQUEEZE, [SHORT] * 4).equity[-1] == 10_100.0  # nothing to clamp
