"""DQN: updates on a full replay, collection, and whole epochs; written out on a GPU, by autograd elsewhere; beside plain torch."""

import copy
from collections.abc import Iterator, Sequence

import torch
from torch.nn import functional

from numba_rl import settings
from numba_rl.bench import games, plain
from numba_rl.bench import replay as replays
from numba_rl.bench.rollout import CHECKED_SLOTS, check_game
from numba_rl.bench.rows import Row, require
from numba_rl.bench.timing import Clock
from numba_rl.collect.batched import BatchedCollector
from numba_rl.config import Config, DqnConfig
from numba_rl.data.market import Market
from numba_rl.errors import UserError
from numba_rl.replay import PrioritizedReplay
from numba_rl.trainer import dqn_fused
from numba_rl.trainer.building import build
from numba_rl.trainer.dqn import Dqn
from numba_rl.trainer.dqn_networks import HEADS, QNetwork, build_q_network
from numba_rl.trainer.dqn_update import Learner
from numba_rl.trainer.precision import resolve, tf32

SIZES = {"cuda": ((256,), (1024,), (4096,), (128, 500), (8192, 500)), "cpu": ((256,), (1024,), (128, 64))}
SLOTS = {"cuda": 1_000_000, "cpu": 100_000}
UPDATE_GOALS = {256: 60e-6, 1024: 75e-6, 4096: 120e-6}
COLLECT_GOALS = {(128, 500): 4e-3, (8192, 500): 20e-3}
EPOCH_GOALS = {(128, 500): 0.05}
EPOCH_UPDATES = 500  # after a collection of EPOCH_GOALS; elsewhere the setting's number
IN_GRAPH = 8  # updates
TIMED = 3  # of each size
TIE = 0.05  # of the values' deviation: what bf16 cannot tell apart


def run(clock: Clock, sizes: Sequence[tuple[int, ...]]) -> Iterator[Row]:
    """A size (batch,) gives a row of updates, with the default settings; (episodes, steps) rows of a collection and an epoch."""
    batches = [size[0] for size in sizes if len(size) == 1]
    if batches:
        replay, plain_replay = _replays(clock.device)
        for batch in batches:
            yield _update(clock, replay, plain_replay, batch)
        if clock.device.type == "cuda":
            yield from _variants(clock, replay)
    for size in sizes:
        if len(size) == 2:
            yield from _epoch(clock, *size)


def _replays(device):
    """A full replay, and plain torch's of the same rows."""
    slots = SLOTS[device.type]
    random = torch.Generator(device).manual_seed(0)
    rows = replays.random_rows(slots, device, random)
    rows["discounts"].fill_(0.95)
    rows["flags"].zero_()
    errors = torch.randn(slots, device=device, generator=random)
    replay = PrioritizedReplay(slots, replays.WIDTH, device=device, seed=1)
    replay.insert(*rows.values(), errors=errors)
    config = Config().replay
    return replay, plain.PlainReplay(
        rows, errors.abs() ** config.alpha + config.eps, alpha=config.alpha, eps=config.eps, largest=1e6, beta=config.beta_start
    )


def _config(batch: int, variant: str = "dueling") -> Config:
    return settings.replace(Config(), {"algorithm": "dqn", "dqn.batch": batch, "dqn.variant": variant})


def _learner(replay, config: Config):
    """The learner that a training with these settings has."""
    network = build_q_network(config, replays.WIDTH - 3, torch.Generator().manual_seed(0)).to(replay.device)
    if dqn_fused.fits(config, replay.device):
        return dqn_fused.FusedLearner(network, config, replay)
    return Learner(network, config, replay, resolve(config.train.precision, replay.device))


def _update(clock: Clock, replay, plain_replay, batch: int) -> Row:
    config = _config(batch)
    learner = _learner(replay, config)
    checks = check(learner, config)
    naive = plain.PlainDqn(plain_replay, config.dqn, replays.WIDTH, clock.device)
    with tf32():
        plain_seconds = clock.time(naive.update, repeat=IN_GRAPH, warm=3)
    return Row(
        f"update, {SLOTS[clock.device.type]:,} slots, batch {batch:,}",
        _seconds(clock, learner),
        1,
        "updates",
        plain_seconds,
        UPDATE_GOALS.get(batch),
        checks,
    )


def _seconds(clock: Clock, learner) -> float:
    if clock.device.type == "cpu":
        return clock.time(lambda: learner.updates(1))
    learner.warm_up()
    return clock.time(lambda: learner.updates(IN_GRAPH), warm=0) / IN_GRAPH


def _variants(clock: Clock, replay) -> Iterator[Row]:
    """Every variant's update at the default batch."""
    for variant in HEADS:
        config = _config(DqnConfig().batch, variant)
        if not dqn_fused.fits(config, clock.device):
            yield Row(f"update of {variant}, batch {config.dqn.batch:,}", _seconds(clock, _learner(replay, config)), 1, "updates")


def check(learner, config: Config) -> dict[str, float]:
    """Raises OutputError unless the first update's loss and gradient are those of a float64 computation on its batch."""
    network = copy.deepcopy(learner.network).requires_grad_(True)
    learner.begin()
    learner.updates(1)
    found, batch = learner.figures(), learner.replay.batch(config.dqn.batch, learner.state_dtype)
    states, following = _stored(learner.replay, batch.indices)
    with torch.no_grad():
        best = _values(network, following).max(1).values  # the target network is still a copy of the online one
        targets = batch.rewards + torch.where(batch.terminated, 0.0, batch.discounts * best)
    q = _values(network, states).gather(1, batch.actions.long()[:, None]).squeeze(1)
    loss = (batch.weights * functional.huber_loss(q, targets, reduction="none")).mean()
    loss.backward()
    norm = torch.stack([parameter.grad.norm() for parameter in network.parameters()]).norm()
    errors = {"loss_error": abs(found["td_loss"] / loss.item() - 1), "gradient_norm_error": abs(found["grad_norm"] / norm.item() - 1)}
    exact = learner.precision == "float32"
    return require(
        errors["loss_error"] < (1e-4 if exact else 0.03) and errors["gradient_norm_error"] < (1e-3 if exact else 0.1), "the update", errors
    )


def _stored(replay: PrioritizedReplay, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """States and next states of `slots`, float64, as they lie in the replay: a batch may have rounded them."""
    rows = torch.as_tensor(replay.backend.rows).to(replay.device)[slots].view(torch.float32).double()
    padded, width = replay.backend.layout.padded, replay.state_width
    return rows[:, :width], rows[:, padded : padded + width]


def _values(network: QNetwork, states: torch.Tensor) -> torch.Tensor:
    """Action values of a dueling network in float64; its own last layers are float32."""

    def linear(name, x):
        layer = getattr(network, name)
        return functional.linear(x, layer.weight.double(), layer.bias.double())

    x = states
    for name in (*network.hidden, "stream_layer"):
        x = linear(name, x).relu()
    advantage = linear("advantage_output", x[..., network.head :])
    return linear("value_output", x[..., : network.head]) + advantage - advantage.mean(-1, keepdim=True)


@torch.no_grad()
def check_play(trainer: Dqn, market: Market, config: Config) -> dict[str, float]:
    """Raises OutputError unless a launch without random actions is the game and the network's choices; the trainer explores no more.

    choice_error: how far an action's float64 value lies below the best one, over the values' deviation.
    """
    collector, checks = trainer.collector, {}
    trainer.chooser.settings[:2].zero_()  # epsilon
    if isinstance(collector, BatchedCollector):
        found = trainer._rollout()
    else:
        stepped = BatchedCollector(market, config, device=trainer.device)
        stepped.load_state_dict(collector.state_dict())
        found = trainer._rollout()
        checks = check_game(collector, found, stepped, stepped.collect(None, actions=found.actions))
    some = slice(0, CHECKED_SLOTS)
    values = _values(trainer.network, found.states[:-1, some].double())
    below = values.max(-1).values - values.gather(-1, found.actions[:, some].long()[..., None])[..., 0]
    checks["choice_error"] = (below.max() / values.std()).item()
    return require(checks["choice_error"] < TIE, "the collection", checks)


def _epoch(clock: Clock, episodes: int, steps: int) -> Iterator[Row]:
    """Collection, and the collection with the updates after it."""
    updates = EPOCH_UPDATES if (episodes, steps) in EPOCH_GOALS else None
    capacity = max(SLOTS[clock.device.type], 2 * episodes * steps)
    changes = {"algorithm": "dqn", "dqn.updates": updates, "replay.capacity": capacity, "train.device": clock.device.type}
    config, market = games.config(episodes, steps, changes), games.market()
    trainer = build(config, market)  # with the collector that a training takes
    if trainer.device.type != clock.device.type:
        raise UserError("the GPU cannot be used, the warning above says why; --device cpu times the CPU path")
    if trainer.collector.episodes != episodes:
        raise UserError(f"{episodes:,} x {steps} does not fit into this memory; take fewer episodes by --sizes")
    for _ in range(3):  # compiles, then captures
        trainer.epoch()
    figures = trainer.statistics()
    checks = {"skipped": figures["losses/skipped"], "broken_slots": figures["rollout/broken_slots"]}
    require(not any(checks.values()) and figures["losses/updates"] == trainer.updates, "the epoch", checks)
    checks |= check_play(trainer, market, config)
    naive = plain.PlainDqn(None, config.dqn, replays.WIDTH, clock.device)
    game = plain.Game(market, episodes, steps, clock.device)
    plain_collect = clock.time(lambda: game.play(naive.choose))
    size = f"{episodes:,} x {steps}"
    collect = clock.time_host(trainer._collect)
    yield Row(f"collect {size}", collect, episodes * steps, "steps", plain_collect, COLLECT_GOALS.get((episodes, steps)), checks)
    whole = clock.time_host(trainer.epoch)
    yield Row(
        f"epoch {size} + {trainer.updates} updates", whole, episodes * steps, "steps", None, EPOCH_GOALS.get((episodes, steps)), checks
    )
