"""Playing episodes: on a GPU the fused kernel, on the CPU the batched collector; beside a loop of torch operations on a simpler game."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from numba_rl.bench import games, plain
from numba_rl.bench.rows import Row, require
from numba_rl.bench.timing import Clock
from numba_rl.collect.batched import BatchedCollector, Rollout
from numba_rl.collect.fused import CompactCollector, CompactRollout, FusedCollector
from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.evaluate.parity import FLOAT32, random_actions, trace_collector, trace_ledger
from numba_rl.trainer.networks import Network, build_actor

SIZES = {"cuda": ((128, 500), (1024, 500), (8192, 500), (65_536, 128)), "cpu": ((128, 64), (1024, 64))}
GOALS = {(128, 500): 0.6e-3, (8192, 500): 2.2e-3, (65_536, 128): 2.8e-3}
TIMED = 3  # of each size
EVERY_TERM = {"reward.barrier": 0.5, "reward.diversity": 1.0, "reward.risk": 0.1, "reward.shaping": "dsr"}
CHECKED_SLOTS = 64
LEDGER_SLOTS, LEDGER_STEPS = 4, 200


def run(clock: Clock, sizes: Sequence[tuple[int, ...]]) -> Iterator[Row]:
    """Two rows for each size (episodes, steps): with the default reward, and with every term of it."""
    market = games.market()
    for episodes, steps in sizes:
        naive_seconds = clock.time(plain.PlainPpo(market, Config().ppo, episodes, steps, clock.device).play)
        for title, changes in (("", {}), (", every reward term", EVERY_TERM)):
            config = games.config(episodes, steps, changes)
            actor = build_actor(config, len(market.names), torch.Generator().manual_seed(1)).to(clock.device)
            games.give_opinions(actor)
            if clock.device.type == "cuda":
                collector = FusedCollector(market, config, device=clock.device)
                checks = check_fused(market, config, collector, actor)
                seconds = clock.time(lambda collector=collector, actor=actor: collector.launch(actor))
            else:
                collector = BatchedCollector(market, config)
                checks = check_batched(market, config, collector, actor)
                seconds = clock.time(lambda collector=collector, actor=actor: collector.collect(actor))
            del collector
            yield Row(
                f"rollout {episodes:,} x {steps}{title}",
                seconds,
                episodes * steps,
                "steps",
                naive_seconds,
                GOALS.get((episodes, steps)),
                checks,
            )


@torch.no_grad()
def check_fused(market: Market, config: Config, collector: FusedCollector, actor: Network) -> dict[str, float]:
    """Raises OutputError unless the collector's first launch is the game, played by the steppers, with the draws of the network."""
    stepped = BatchedCollector(market, config, device=collector.device)
    found = collector.collect(actor)
    checks = check_game(collector, found, stepped, stepped.collect(actor, actions=found.actions))
    some = slice(0, CHECKED_SLOTS)
    drawn = found.states[:-1, some], found.actions[:, some], found.log_probs[:, some]
    return checks | games.check_draws(actor, *drawn, collector.seed, exact=collector.plan.form == "block")


def check_game(collector: CompactCollector, found: CompactRollout, stepped: BatchedCollector, truth: Rollout) -> dict[str, float]:
    """Raises OutputError unless a fused launch, `found`, is the game that the steppers played by the same actions, `truth`."""
    whole = [(found.bars, truth.bars), (found.ends, truth.ends), (found.finals, truth.finals)]
    whole += [(collector.slots[name], stepped.slots[name]) for name in ("clock", "window")]
    different = sum(int((one != other).sum()) for one, other in whole) + int(found.status.any())
    money, kept = collector.slots["portfolio"], stepped.slots["portfolio"]
    checks = {
        "integers_different": float(different),
        "reward_error": (found.rewards - truth.rewards).abs().max().item() / max(1.0, truth.rewards.abs().max().item()),
        "account_error": (found.account - truth.states[:, :, -3:]).abs().max().item(),
        "money_error": ((money - kept).abs() / money.abs().clamp_min(1)).max().item(),
    }
    sound = different == 0 and checks["reward_error"] < 1e-4 and checks["account_error"] < 1e-5 and checks["money_error"] < 1e-9
    return require(sound, "the rollout", checks)


@torch.no_grad()
def check_batched(market: Market, config: Config, collector: BatchedCollector, actor: Network) -> dict[str, float]:
    """Raises OutputError unless the CPU path plays as a float64 ledger does, and its first launch has the draws of the network."""
    actions = random_actions(LEDGER_SLOTS, LEDGER_STEPS, config.train.seed)
    found = trace_collector(config, market, actions)
    truth = trace_ledger(config, market, actions, found["bar"])
    capital = config.market.initial_capital
    checks = {"money_error": float(abs(found["cash"] - truth["cash"]).max() / capital)}
    error = abs(found["reward"] - truth["reward"])
    if np.isfinite(error).all():  # the ledger knows the default reward alone
        checks["reward_error"] = float(error.max() / max(1.0, abs(truth["reward"]).max()))
    require(checks["money_error"] < 1e-9 and checks.get("reward_error", 0.0) < FLOAT32, "the rollout", checks)
    rollout = collector.collect(actor)
    some = slice(0, CHECKED_SLOTS)
    drawn = rollout.states[:-1, some], rollout.actions[:, some], rollout.log_probs[:, some]
    return checks | games.check_draws(actor, *drawn, collector.seed, exact=True)
