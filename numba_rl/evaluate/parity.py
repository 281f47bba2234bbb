"""Do the GPU's kernel, the CPU path and a plain-Python ledger play the same game? The first difference, or that there is none.

Random actions, addressed by Philox so that every path sees the same ones, are played through the product's steppers and through
`evaluate.ledger`, and after every step of every slot the FIELDS are compared. A step that ends an episode is compared by
its reward and flag, and the new episode by its account. Without a GPU its kernel runs in Numba's simulator, in a process of
its own, for fewer steps.

Integers have to be equal. Of the others, two numbers agree where |a - b| <= tolerance x max(|a|, |b|, scale of the field):
the paths contract to FMA or not, and the ledger adds up in another order.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import torch

from numba_rl import gpu
from numba_rl.collect.batched import BatchedCollector
from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.data.windows import Range
from numba_rl.errors import UserError
from numba_rl.evaluate.ledger import Ledger
from numba_rl.rules.actions import EXPOSURES, ORDERS, URGENCIES
from numba_rl.rules.parameters import rules_of
from numba_rl.rules.philox import EXPLORE, below
from numba_rl.rules.portfolio import Portfolio
from numba_rl.rules.reward import RUIN_RATIO
from numba_rl.rules.user_reward import load_reward
from numba_rl.settings import replace

MONEY = 1e-9  # tolerance of what is kept in float64
FLOAT32 = 1e-5  # tolerance of rewards and states, which are float32
ACCOUNT = ("cash", "position", "entry", "costs", "exposure", "peak")  # of rules.portfolio.Portfolio
FIELDS = {"bar": 0.0, "end": 0.0, "reward": FLOAT32, **dict.fromkeys(ACCOUNT, MONEY), "state_equity": FLOAT32, "state_position": FLOAT32}
CPU, GPU, SIMULATOR, LEDGER = "CPU path", "GPU", "GPU kernel in the simulator", "float64 ledger"
SIMULATED_SLOTS, SIMULATED_STEPS, SIMULATED_BARS = 4, 24, 5_000
_SECONDS = 600  # that the simulator may take

Trace = dict[str, np.ndarray]  # field -> float64 [steps, slots]; NaN: this path does not know it


@dataclass(frozen=True)
class Difference:
    """The first value, by step and then slot, in which two paths differ."""

    slot: int
    step: int
    bar: int  # of the market after warm-up, at the decision
    action: int
    field: str
    first: float
    second: float


@dataclass(frozen=True)
class Comparison:
    """Two paths over the same actions."""

    first: str
    second: str
    slots: int
    steps: int
    difference: Difference | None
    largest: dict[str, float]  # field -> largest |a - b| / max(|a|, |b|, scale) seen
    skipped: tuple[str, ...]  # fields that one of the two does not know


def check_parity(config: Config, market: Market, slots: int, steps: int) -> list[Comparison]:
    """Compare all paths of this machine on the training range, over `slots` episode slots of `steps` steps.

    config.train.device: "cpu" leaves the GPU out. Raises UserError where the simulator's process fails.
    """
    actions = random_actions(slots, steps, config.train.seed)
    played = {CPU: trace_collector(config, market, actions)}
    played[LEDGER] = trace_ledger(config, market, actions, played[CPU]["bar"])
    if config.train.device != "cpu" and not gpu.SIMULATED and torch.cuda.is_available() and gpu.available():
        played[GPU] = trace_collector(config, market, actions, device="cuda")
        pairs = [(CPU, LEDGER), (GPU, CPU), (GPU, LEDGER)]
        return [_compare(pair, played, config, market, actions) for pair in pairs]
    some = actions[:SIMULATED_STEPS, :SIMULATED_SLOTS]
    train = market.train
    part = Range(train.start, min(train.stop, train.start + SIMULATED_BARS))
    played_few = {CPU: trace_collector(config, market, some, range=part), SIMULATOR: _simulate(config, market, some, part)}
    return [_compare((CPU, LEDGER), played, config, market, actions), _compare((SIMULATOR, CPU), played_few, config, market, some)]


def random_actions(slots: int, steps: int, seed: int) -> np.ndarray:
    """int32 [steps, slots]: exposure, order type and urgency drawn each by itself, as a random exploration draws them."""
    actions = np.zeros((steps, slots), np.int32)
    for t, e in np.ndindex(steps, slots):
        exposure, order, urgency = (int(below(n, seed, EXPLORE, e, 0, t, draw)) for draw, n in enumerate((EXPOSURES, ORDERS, URGENCIES), 1))
        actions[t, e] = (exposure * ORDERS + order) * URGENCIES + urgency
    return actions


def trace_collector(config: Config, market, actions: np.ndarray, *, device="cpu", simulate=False, range: Range | None = None) -> Trace:
    """What a BatchedCollector on `device` makes of the actions, a launch a step."""
    base = load_reward(config.reward.function) if config.reward.function else None
    one_step = replace(config, {"episodes.count": actions.shape[1], "episodes.launch": 1, "ppo.minibatches": 1})
    collector = BatchedCollector(market, one_step, device=device, base=base, range=range, simulate=simulate)
    trace = {name: np.zeros(actions.shape) for name in FIELDS}
    for t, row in enumerate(actions):
        rollout = collector.collect(None, actions=torch.from_numpy(row[None]))
        account = collector.slots["portfolio"].cpu().numpy()
        trace["bar"][t], trace["reward"][t] = rollout.bars[0].cpu(), rollout.rewards[0].cpu()
        trace["end"][t] = rollout.ends[0].cpu().clamp(max=1)
        for name in ACCOUNT:
            trace[name][t] = account[:, Portfolio._fields.index(name)]
        trace["state_equity"][t], trace["state_position"][t] = rollout.states[1, :, -3].cpu(), rollout.states[1, :, -2].cpu()
    return trace


def trace_ledger(config: Config, market: Market, actions: np.ndarray, bars: np.ndarray) -> Trace:
    """What the ledger makes of the actions; bars [steps, slots] says where each slot's episodes play."""
    rules, prices = rules_of(config, market.bars_per_year), market.prices
    reward = config.reward
    known = reward.function is None and reward.mode == "net_return" and reward.shaping == "none"
    known = known and reward.barrier == reward.diversity == reward.risk == 0
    trace = {name: np.zeros(actions.shape) for name in FIELDS}
    for e in range(actions.shape[1]):
        ledger, played = Ledger(config.market, rules.financing), 0
        for t, action in enumerate(actions[:, e]):
            bar = int(bars[t, e])
            step = ledger.step(int(action), prices[bar, 3], prices[bar + 1])
            played += 1
            change = (step.equity_after - step.equity_before) / step.equity_before
            end = -1 if step.terminated else int(played >= config.episodes.length or bar + 2 >= market.train.stop)
            if end:
                ledger, played = Ledger(config.market, rules.financing), 0
            price = prices[int(bars[t + 1, e]) if end and t + 1 < len(bars) else bar + 1, 3]
            trace["bar"][t, e], trace["end"][t, e] = bar, end
            trace["reward"][t, e] = reward.scale * math.log1p(max(change, RUIN_RATIO - 1)) if known else math.nan
            equity = ledger.equity(price)
            trace["cash"][t, e] = equity - ledger.position * price * config.market.multiplier
            trace["position"][t, e], trace["entry"][t, e] = ledger.position, ledger.entry
            trace["costs"][t, e] = ledger.fees + ledger.financing + ledger.spread_paid
            trace["exposure"][t, e], trace["peak"][t, e] = float(ledger.exposure), ledger.peak
            trace["state_equity"][t, e] = equity / config.market.initial_capital
            trace["state_position"][t, e] = ledger.share(price)
    return trace


def _simulate(config: Config, market: Market, actions: np.ndarray, part: Range) -> Trace:
    """`trace_collector` by the kernels in Numba's CUDA simulator, which has to be chosen before Numba is imported."""
    with tempfile.TemporaryDirectory() as folder:
        at, into = Path(folder) / "in.npz", Path(folder) / "out.npz"
        rows = slice(part.start, part.stop)
        settings = {"config": msgspec.to_builtins(config), "bars_per_year": market.bars_per_year, "source": market.source}
        arrays = {"prices": market.prices[rows], "features": market.features[rows], "actions": actions}
        np.savez(at, **arrays, settings=json.dumps(settings))
        words = [sys.executable, "-m", "numba_rl.evaluate.parity", str(at), str(into)]
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=_SECONDS, env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise UserError(f"the simulator could not play the kernel ({last}); `rltrain doctor` says what is missing")
        with np.load(into) as found:
            trace = {name: found[name] for name in FIELDS}
    trace["bar"] += part.start
    return trace


def _in_simulator(at: str, into: str) -> None:
    sys.setswitchinterval(1e-5)  # the simulator's threads wait for each other by polling
    with np.load(at) as given:
        settings = json.loads(str(given["settings"]))
        arrays = {name: given[name] for name in ("prices", "features", "actions")}
    market = SimpleNamespace(
        prices=arrays["prices"], features=arrays["features"], train=Range(0, len(arrays["prices"])),
        bars_per_year=settings["bars_per_year"], source=settings["source"],
    )  # fmt: skip
    config = msgspec.convert(settings["config"], Config)
    np.savez(into, **trace_collector(config, market, arrays["actions"], simulate=True))


def _scales(config: Config, market: Market) -> dict[str, float]:
    price = float(np.abs(market.prices[market.train.start : market.train.stop, 3]).mean())
    capital, rules = config.market.initial_capital, config.market
    units = rules.max_position if rules.sizing == "units" else capital / (price * rules.multiplier)
    return {"cash": capital, "costs": capital, "peak": capital, "position": units, "entry": price}


def _compare(pair: tuple[str, str], played: dict[str, Trace], config: Config, market: Market, actions: np.ndarray) -> Comparison:
    """The first difference of two traces, in the order of steps, slots and FIELDS."""
    first, second = (played[path] for path in pair)
    scales = _scales(config, market)
    wrong, largest, skipped = [], {}, []
    for name, tolerance in FIELDS.items():
        a, b = first[name], second[name]
        if any(path == LEDGER and np.isnan(played[path][name]).all() for path in pair):
            skipped.append(name)
            wrong.append(np.zeros(a.shape, bool))
            continue
        with np.errstate(invalid="ignore"):
            apart = np.abs(a - b) / np.maximum(np.maximum(np.abs(a), np.abs(b)), scales.get(name, 1.0))
        apart[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
        largest[name] = float(np.max(apart, initial=0.0))
        wrong.append(~(apart <= tolerance))  # NaN on one side is a difference
    steps, slots = actions.shape
    found = np.argwhere(np.stack(wrong, axis=-1))
    difference = None
    if len(found):
        t, e, index = (int(value) for value in found[0])
        name = tuple(FIELDS)[index]
        difference = Difference(e, t, int(first["bar"][t, e]), int(actions[t, e]), name, float(first[name][t, e]), float(second[name][t, e]))
    return Comparison(*pair, slots, steps, difference, largest, tuple(skipped))


if __name__ == "__main__":
    _in_simulator(*sys.argv[1:])
