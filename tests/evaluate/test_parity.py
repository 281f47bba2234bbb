"""The parity check agrees where the paths do, and names the first place where one of them was made to differ."""

import numpy as np
import pytest

from numba_rl import settings
from numba_rl.config import Config
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.data.write import write_bars
from numba_rl.evaluate import parity
from numba_rl.rules.actions import ACTIONS

EVERYTHING = {
    "market.spread_bps": 5.0, "market.min_fee": 1.0, "market.tick": 0.01, "market.lot": 0.5, "market.leverage": 3.0, "reward.barrier": 0.5,
    "reward.diversity": 1.0, "reward.risk": 0.1, "reward.shaping": "dsr",
}  # fmt: skip


@pytest.fixture(scope="module")
def market():
    return load_market(Config(), generate("mean_reverting", 1500, 3).bars)


def config(changes=None):
    return settings.replace(Config(), {"train.device": "cpu", "episodes.length": 40, **(changes or {})})


def test_cpu_path_and_ledger_agree_with_every_rule_in_play(market):
    actions = parity.random_actions(3, 60, 0)
    settled = config(EVERYTHING)
    cpu = parity.trace_collector(settled, market, actions)
    ledger = parity.trace_ledger(settled, market, actions, cpu["bar"])
    assert len(np.unique(cpu["position"])) > 20 and (cpu["end"] == 1).any()
    found = parity._compare((parity.CPU, parity.LEDGER), {parity.CPU: cpu, parity.LEDGER: ledger}, settled, market, actions)
    assert (found.difference, found.skipped) == (None, ("reward",))
    assert set(found.largest) == set(parity.FIELDS) - {"reward"}


def test_the_first_difference_is_named(market):
    actions = parity.random_actions(3, 30, 0)
    cpu = parity.trace_collector(config(), market, actions)
    for field, slot, step in (("cash", 2, 7), ("bar", 0, 8), ("reward", 1, 7), ("end", 1, 29)):
        other = {name: values.copy() for name, values in cpu.items()}
        other[field][step, slot] += 1.0
        other[field][step + 1 :] += 5.0
        found = parity._compare(("a", "b"), {"a": cpu, "b": other}, config(), market, actions).difference
        assert (found.field, found.slot, found.step, found.action) == (field, slot, step, actions[step, slot])
        assert (found.first, found.second) == (cpu[field][step, slot], other[field][step, slot])
    other = {name: values.copy() for name, values in cpu.items()}
    other["reward"][4, 1] = np.nan
    assert parity._compare(("a", "b"), {"a": cpu, "b": other}, config(), market, actions).difference.step == 4


def test_a_ledger_with_other_costs_differs_at_its_first_fill(market):
    actions = parity.random_actions(2, 20, 0)
    actions[:3] = 2 * 9  # stay flat
    actions[3] = [2 * 9, 4 * 9]
    cpu = parity.trace_collector(config(), market, actions)
    ledger = parity.trace_ledger(config({"market.taker_bps": 4.1}), market, actions, cpu["bar"])
    found = parity._compare((parity.CPU, parity.LEDGER), {parity.CPU: cpu, parity.LEDGER: ledger}, config(), market, actions).difference
    assert (found.slot, found.step, found.action) == (1, 3, 4 * 9)


def test_random_actions_are_addressed_and_cover_all():
    whole = parity.random_actions(6, 200, 1)
    assert np.array_equal(parity.random_actions(3, 50, 1), whole[:50, :3])
    assert set(np.unique(whole)) == set(range(ACTIONS))
    assert not np.array_equal(parity.random_actions(6, 200, 2), whole)


@pytest.mark.slow
def test_the_command(rltrain, tmp_path):
    write_bars(tmp_path / "bars.parquet", generate("mean_reverting", 1500, 3).bars)
    done = rltrain("check-parity", "--data", "bars.parquet", "--device", "cpu", "--steps", "50", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "CPU path and float64 ledger agree over 8 x 50 steps" in done.stdout
    assert "GPU kernel in the simulator and CPU path agree over 4 x 24 steps" in done.stdout
    assert rltrain("check-parity").returncode == 2


@pytest.mark.gpu
def test_all_paths_agree_on_a_gpu(market):
    for changes in ({}, EVERYTHING):
        found = parity.check_parity(settings.replace(config(changes), {"train.device": "auto"}), market, 256, 200)
        assert [(c.first, c.second, c.difference) for c in found] == [
            (parity.CPU, parity.LEDGER, None), (parity.GPU, parity.CPU, None), (parity.GPU, parity.LEDGER, None),
        ]  # fmt: skip
