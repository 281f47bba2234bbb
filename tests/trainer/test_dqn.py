"""DQN: networks of every variant, an epoch, noise, averaging, schedules, resume with the replay, evaluation of each variant."""

import csv

import numpy as np
import pytest
import torch

from numba_rl import settings
from numba_rl.collect.batched import BatchedCollector
from numba_rl.collect.experience import epsilon_range
from numba_rl.config import Config
from numba_rl.errors import CheckpointError
from numba_rl.evaluate.backtest import play_policy
from numba_rl.replay import PrioritizedReplay
from numba_rl.replay.storage import load_replay, save_replay
from numba_rl.rules.routing import route
from numba_rl.signals import StopRequest
from numba_rl.trainer import checkpoint, session
from numba_rl.trainer.dqn import FIGURES, Dqn
from numba_rl.trainer.dqn_networks import HEADS, QNetwork, build_q_network, q_parameters
from numba_rl.trainer.networks import parameter_count

VARIANTS = tuple(HEADS)
SMALL = {
    "algorithm": "dqn", "dqn.hidden": (16, 16), "dqn.head": 8, "dqn.batch": 16, "dqn.updates": 4, "dqn.quantiles": 4, "dqn.n_step": 2,
    "replay.capacity": 200,
}  # fmt: skip


@pytest.fixture
def dqn_config(small):
    return lambda changes=None: small(SMALL | (changes or {}))


@pytest.fixture
def dqn(market, dqn_config):
    """A Dqn on the small market, with changes of its settings."""

    def make(changes=None):
        config = dqn_config(changes)
        return Dqn(config, BatchedCollector(market, config), market.regime)

    return make


def copied(trainer):
    return {name: torch.as_tensor(value).clone() for name, value in trainer.state().items()}


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_epoch_of_each_variant(dqn, variant):
    trainer = dqn({"dqn.variant": variant})
    before = copied(trainer)
    for _ in range(2):
        trainer.epoch()
    figures = trainer.statistics()
    assert set(figures) | {"losses/curiosity_loss", "rollout/curiosity_bonus"} == set(FIGURES)
    assert (trainer.steps, figures["losses/updates"], figures["replay/size"]) == (128, 4, 64 * 2 - 4)
    assert figures["losses/skipped"] == figures["rollout/broken_slots"] == 0 and figures["losses/td_error"] > 0
    after = copied(trainer)
    for name, weight in trainer.network.named_parameters():
        if "hidden_layer_0" in name or name.startswith(("stream", "value", "advantage")):
            assert not torch.equal(before[name], weight), name
            assert not torch.equal(before[f"target/{name}"], after[f"target/{name}"]), name


def test_default_sizes(market):
    network = build_q_network(settings.replace(settings.Config(), {"algorithm": "dqn"}), 51)
    assert parameter_count(network) == 54 * 256 + 256 + 256 * 256 + 256 + 2 * (256 * 128 + 128) + 128 + 1 + 128 * 45 + 45


@pytest.mark.parametrize("variant", VARIANTS)
def test_parameters_are_counted_without_building_the_network(variant):
    config = settings.replace(settings.Config(), {"algorithm": "dqn", "dqn.variant": variant, "dqn.hidden": (40, 24, 16), "dqn.head": 12})
    assert q_parameters(config, 7) == parameter_count(build_q_network(config, 7))


def test_values_are_dueling():
    network = QNetwork(6, (8,), 4, "branching", 1)
    x = torch.randn(5, 6)
    h = torch.relu(network.stream_layer(network.body(x)))
    value, advantage = network.value_output(h[:, :4]), network.advantage_output(h[:, 4:])
    wanted = torch.cat([value + part - part.mean(1, keepdim=True) for part in advantage.split((5, 3, 3), 1)], 1)
    torch.testing.assert_close(network.values(x), wanted)
    joint = network(x).view(5, 5, 3, 3)
    assert all(joint[n].flatten().argmax() == 9 * q[0].argmax() + 3 * q[1].argmax() + q[2].argmax() for n, q in
               ((n, wanted[n].split((5, 3, 3))) for n in range(5)))  # fmt: skip


def test_states_of_a_wrong_shape_are_refused():
    network = QNetwork(6, (8,), 4, "dueling", 1)
    with pytest.raises(ValueError, match=r"shape \(2, 5\), this network takes \(rows, 6\)"):
        network(torch.zeros(2, 5))
    with pytest.raises(ValueError, match="the batch is empty"):
        network(torch.zeros(0, 6))


def test_epsilon_falls_with_the_steps_played(dqn):
    trainer = dqn({"dqn.epsilon_steps": 128, "dqn.epsilon_end": 0.5})
    seen = []
    for _ in range(3):
        trainer.epoch()
        seen.append(trainer.statistics()["charts/epsilon"])
    assert seen == pytest.approx([0.75, 0.5, 0.5])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, (1.0, 0.05)), ({"dqn.variant": "noisy"}, (1.0, 0.0)), ({"dqn.epsilon_start": 0.01}, (0.01, 0.01)), ({"dqn.epsilon_end": 0.3}, (1.0, 0.3))],
)
def test_noisy_begins_with_random_actions_as_well_but_ends_without(changes, expected):
    assert epsilon_range(settings.replace(Config(), {"algorithm": "dqn", **changes}).dqn) == pytest.approx(expected)


def test_the_learning_rate_falls_with_the_steps_played(dqn):
    trainer = dqn({"dqn.lr": 1e-3, "dqn.lr_schedule": "linear", "train.steps": 256})
    seen = []
    for _ in range(4):
        trainer.epoch()
        seen.append(trainer.statistics()["charts/learning_rate"])
    assert seen == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])


def test_what_is_judged_is_the_averaged_network(dqn, market, tmp_path):
    """The trainer's policy and that of its checkpoint are the target network, not the online one."""
    trainer = dqn({"dqn.target_rate": 0.1})
    for _ in range(2):
        trainer.epoch()
    path = tmp_path / "a.safetensors"
    checkpoint.save(path, trainer.state(), checkpoint.describe(trainer.config, market))
    states = torch.randn(5, market.features.shape[1] + 3)
    values = trainer.learner.target(states)
    assert not torch.equal(values, trainer.network(states))
    for policy in (trainer.policy(market), checkpoint.load_policy(path)):
        assert torch.equal(policy(states), values)


def test_accumulated_batches_are_averaged(dqn):
    """Two batches of one update give the gradient of their mean loss."""
    trainer = dqn({"dqn.accumulate": 2, "dqn.updates": 1, "dqn.target_rate": 1.0, "dqn.max_grad_norm": 1e9, "train.precision": "float32"})
    trainer._collect()
    learner, replay = trainer.learner, trainer.replay
    saved, seen = replay.state_dict(), []
    loss = learner.loss
    learner.loss = lambda batch: seen.append(batch.indices.clone()) or loss(batch)
    learner.updates(1)
    assert len(seen) == 2 and learner.figures()["updates"] == 1
    found = learner.optimizer.weights.grad.clone()
    fresh = dqn({"dqn.updates": 1, "dqn.max_grad_norm": 1e9, "train.precision": "float32"})
    fresh.replay.load_state_dict(saved)
    total, given = 0, []
    for _ in range(2):
        fresh.learner.optimizer.zero_grad()
        batch = fresh.replay.sample(16)
        value, errors, _ = fresh.learner.loss(batch)
        value.backward()
        total = total + fresh.learner.optimizer.weights.grad.clone() / 2
        given.append((batch.indices.clone(), errors.detach().clone()))
    torch.testing.assert_close(found, total, rtol=1e-4, atol=1e-6)
    for slots, errors in given:
        fresh.replay.update_slots(slots, errors)
    torch.testing.assert_close(replay.priorities, fresh.replay.priorities, msg="written after the step, of every batch")


def test_an_update_that_is_not_finite_is_skipped_and_counted(dqn):
    trainer = dqn()
    trainer._collect()
    before, priorities = copied(trainer), trainer.replay.backend.priorities.clone()
    trainer.replay.backend.rows[::2, -3] = np.float32(np.nan).view(np.int32)  # every second reward
    trainer.learner.updates(3)
    after = copied(trainer)
    for name in before:
        if not name.startswith(("optimizer/skipped", "collector", "experience", "dqn", "noise", "guard")):
            assert torch.equal(after[name], before[name]), name
    assert torch.equal(trainer.replay.backend.priorities, priorities), "those of the finite errors as well"
    assert trainer.guard.read().skipped_in_a_row == 3 and trainer.replay.rejected()["nan"] == 0


# ------------------------------------------------------------------------------------------------------- a whole run


def rows(run):
    with run.metrics.open(newline="") as file:
        return [{k: v for k, v in row.items() if k not in ("segment", "seconds", "charts/SPS")} for row in csv.DictReader(file)]


class StopsAt(StopRequest):
    def __init__(self, epochs):
        super().__init__()
        self.left = epochs

    def progress(self, figures):
        self.left -= 1
        if self.left == 0:
            self.request("SIGTERM")


@pytest.mark.parametrize("changes", [{}, {"dqn.variant": "noisy", "reward.curiosity": 1.0}, {"dqn.variant": "iqn", "replay.mode": "rank"}])
def test_a_stopped_and_resumed_run_equals_one_without_a_break(market, dqn_config, new_run, changes):
    config = dqn_config({"train.steps": 64 * 7, "dqn.n_step": 3} | changes)
    straight, broken = new_run(config, "straight"), new_run(config, "broken")
    session.train(config, straight, market)
    stop = StopsAt(4)
    assert session.train(config, broken, market, stop=stop, progress=stop.progress).reason == "interrupted"
    assert [path.name for path in broken.checkpoints.glob("replay-*")] == ["replay-256.safetensors"]
    broken.begin()
    assert session.train(config, broken, market, resume=True).reason == "finished"
    one, other = (checkpoint.load(run.checkpoints / "latest.safetensors").tensors for run in (straight, broken))
    assert equal(one, other)
    assert rows(straight) == rows(broken)
    files = [run.checkpoints / "replay-448.safetensors" for run in (straight, broken)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_replay_above_the_limit_is_left_out_and_said(market, dqn_config, new_run, caplog):
    config = dqn_config({"train.steps": 128, "replay.checkpoint_limit_gb": 1e-6})
    run = new_run(config)
    session.train(config, run, market)
    assert not list(run.checkpoints.glob("replay-*"))
    run.begin()
    config = settings.replace(config, {"train.steps": 256})
    session.train(config, run, market, resume=True)
    assert "the replay was not saved with the checkpoint; training goes on with an empty one" in caplog.text


def test_other_replay_settings_are_refused_at_a_resume(market, dqn_config, new_run):
    config = dqn_config({"train.steps": 128})
    run = new_run(config)
    session.train(config, run, market)
    run.begin()
    with pytest.raises(CheckpointError, match="replay.alpha was 0.6 and is 0.5 now"):
        session.train(settings.replace(config, {"replay.alpha": 0.5, "train.steps": 256}), run, market, resume=True)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_checkpoint_plays_as_the_trainer_does(market, dqn_config, new_run, variant):
    config = dqn_config({"train.steps": 128, "dqn.variant": variant})
    run, seen = new_run(config), []
    window = [market.test]

    def validate(policy):
        seen.append(play_policy(market, window, policy, config)[0].action)
        return 0.0

    session.train(config, run, market, validate=validate)
    policy = checkpoint.load_policy(run.checkpoints / "best.safetensors")
    played = play_policy(market, window, policy, config)[0]
    np.testing.assert_array_equal(played.action, seen[-1])
    np.testing.assert_array_equal(play_policy(market, window, policy, config)[0].action, played.action)
    states = torch.randn(3, market.features.shape[1] + 3)
    assert torch.equal(policy(states), policy(states))
    if variant == "exposure":
        held = np.concatenate([[0.0], played.exposure[:-1]])
        bars = np.searchsorted(market.timestamp, played.timestamp[:-1])
        routed = [int(route(a // 9, h, v)) for a, h, v in zip(played.action, held, market.regime[bars, 2], strict=True)]
        assert played.action.tolist() == routed


# --------------------------------------------------------------------------------------------------- replay on disk


@pytest.mark.parametrize("mode", ["proportional", "rank", "uniform"])
def test_a_replay_on_disk(tmp_path, mode, monkeypatch):
    monkeypatch.setattr("numba_rl.replay.storage.CHUNK", 7)
    one, other = (PrioritizedReplay(40, 5, device="cpu", mode=mode) for _ in range(2))
    for _ in range(3):
        one.insert(torch.randn(17, 5), torch.randn(17, 5), torch.arange(17), torch.randn(17), 0.9, errors=torch.randn(17))
        batch = one.sample(8)
        one.update(batch, torch.randn(8))
    path = tmp_path / "replay.safetensors"
    save_replay(one, path)
    load_replay(other, path)
    for _ in range(3):
        a, b = one.sample(8), other.sample(8)
        assert torch.equal(a.indices, b.indices) and torch.equal(a.stacked, b.stacked) and torch.equal(a.weights, b.weights)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged"):
        load_replay(PrioritizedReplay(40, 5, device="cpu", mode=mode), path)
    with pytest.raises(CheckpointError, match="resume with the same replay settings"):
        load_replay(PrioritizedReplay(41, 5, device="cpu", mode=mode), path)
