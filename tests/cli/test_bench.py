"""`rltrain bench`: what it times is checked first, what it prints is right, and the baselines play the game they say they play."""

import importlib
import json

import click
import numpy as np
import pytest
import torch

from numba_rl import gpu, settings
from numba_rl.bench import gae, games, plain, replay
from numba_rl.bench.device import measured_device
from numba_rl.bench.rows import OutputError, Row
from numba_rl.bench.timing import Clock
from numba_rl.config import Config
from numba_rl.errors import UserError
from numba_rl.trainer.networks import build_actor
from rltrain.bench import Sizes, bench, duration, goal, rate

CPU = torch.device("cpu")
QUICK = Clock(CPU, 1e-6)
TINY = {"rollout": [(4, 8)], "ppo": [(4, 8)], "gae": [(4, 8)], "replay": [(500, 32)], "dqn": [(32,), (4, 8)]}
SMALL = {"ppo.actor": (16, 8), "ppo.critic": (16, 16), "dqn.hidden": (16, 16), "dqn.head": 8}
WORKS = {"rollout": 2, "ppo": 3, "gae": 1, "replay": 2, "dqn": 3}


def test_the_command_writes_its_table(rltrain, tmp_path):
    done = rltrain("bench", "gae", "--sizes", "16x32,8x16", "--seconds", "0.01", "--device", "cpu", "--json", tmp_path / "gae.json")
    assert done.returncode == 0, done.stderr
    assert "This is the CPU path. The goals are those of one GPU, an NVIDIA H200" in done.stdout
    assert "advantages 16 x 32" in done.stdout and "plain torch" in done.stdout
    found = json.loads((tmp_path / "gae.json").read_text())
    assert [row["count"] for row in found["rows"]] == [512, 128]
    assert all(row["seconds"] > 0 and row["plain"] > 0 and row["missed"] is None and row["checks"]["error"] < 1e-4 for row in found["rows"])
    assert found["machine"]["versions"]["numba"] and found["goals_of"] == "NVIDIA H200"


@pytest.mark.parametrize("name", TINY)
def test_every_benchmark_runs_on_the_cpu_path(name, monkeypatch):
    monkeypatch.setattr(games, "BARS", 2000)
    config = games.config
    monkeypatch.setattr(games, "config", lambda episodes, steps, changes=None: config(episodes, steps, SMALL | (changes or {})))
    module = importlib.import_module(f"numba_rl.bench.{name}")
    if name == "dqn":
        monkeypatch.setitem(module.SLOTS, "cpu", 2000)
    rows = list(module.run(QUICK, TINY[name]))
    assert len(rows) == WORKS[name] == len({row.work for row in rows})
    assert all(row.seconds > 0 and row.count > 0 for row in rows)
    assert all(np.isfinite(list(row.checks.values())).all() for row in rows)
    assert any(row.plain for row in rows) and any(row.checks for row in rows)
    assert set(module.SIZES) == {"cpu", "cuda"} and module.TIMED > 0


@pytest.mark.parametrize(("words", "said"), [
    (["gae", "--sizes", "16y32"], "'16y32' is no size; write for example 128x500,4096x512"),
    (["gae", "--sizes", "16"], "'16' is no size"),
    (["dqn", "--sizes", "0"], "'0' is no size"),
    (["gae", "--seconds", "0"], "--seconds"),
    (["gae", "--json", "nowhere/file.json"], "nowhere/file.json: there is no directory nowhere; make it first"),
    (["gae", "--device", "cuda"], "--device cuda: there is no GPU"),
    (["nothing"], "No such command 'nothing'"),
])  # fmt: skip
def test_mistakes_are_one_line_and_code_2(rltrain, words, said):
    done = rltrain("bench", *words, env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 2
    assert said in done.stderr and len(done.stderr.strip().splitlines()) == 1 and not done.stdout


def test_every_command_has_help_with_an_example():
    for command in (bench, *bench.commands.values()):
        assert "Example: rltrain bench" in command.help


def test_sizes():
    assert Sizes("1x1").convert("128x500,8192x500", None, None) == [(128, 500), (8192, 500)]
    assert Sizes("1,1x1").convert("256,128x500", None, None) == [(256,), (128, 500)]
    for wrong in ("", "1", "1x1x1", "-1x2", "²x2", "1x", "1.5x2"):
        with pytest.raises(click.BadParameter):
            Sizes("1x1").convert(wrong, None, None)


def test_how_numbers_are_written():
    assert [duration(seconds) for seconds in (4.93e-6, 0.912e-3, 0.0215, 26.0)] == ["4.93 us", "912 us", "21.5 ms", "26 s"]
    row = Row("collect", 0.9e-3, 64_000, "steps", goal=1.8e-3)
    assert rate(row) == "71.1 M steps" and goal(row, True) == "1.8 ms, met" and goal(row, False) == "1.8 ms"
    assert goal(Row("collect", 2.7e-3, 1, "steps", goal=1.8e-3), True) == "1.8 ms, missed by 50%"
    assert rate(Row("update", 0.5, 1, "updates")) == "2 updates" and goal(Row("update", 0.5, 1, "updates"), True) == "-"


@pytest.mark.skipif(not gpu.SIMULATED, reason="on a machine with a GPU the tests run without the simulator")
def test_the_simulator_is_never_timed():
    assert measured_device("cpu") == measured_device("auto") == CPU
    with pytest.raises(UserError, match="CUDA simulator"):
        measured_device("cuda")


def test_wrong_outputs_are_not_timed(monkeypatch):
    monkeypatch.setattr(gae, "gae_cpu", lambda *arrays: arrays[-2].fill(1.0))
    with pytest.raises(OutputError, match="advantages 4 x 8 is not timed, since its outputs are wrong: error"):
        next(gae.run(QUICK, [(4, 8)]))


def test_a_replay_that_draws_wrongly_is_not_timed():
    ring, arrays, _ = replay.filled(CPU, 500)
    replay.check(ring, 32, arrays)
    arrays["states"][::2] += 1
    with pytest.raises(OutputError, match="rows_different"):
        replay.check(ring, 32, arrays)


def test_draws_that_are_not_the_policy_s_are_seen():
    actor = build_actor(Config(), 51, torch.Generator().manual_seed(0))
    states, actions = torch.randn(3, 2, 54), torch.zeros(3, 2, dtype=torch.int32)
    log_probs = games.log_policy(actor, states)[..., 0]
    with pytest.raises(OutputError, match="draw_outside_its_interval"):
        games.check_draws(actor, states, actions, log_probs, 0, exact=True)


def test_the_plain_game_is_what_it_says():
    class Market:
        features, prices = np.zeros((60, 1), np.float32), np.exp(np.random.default_rng(0).normal(0, 0.01, (60, 4)).cumsum(0))

        def __len__(self):
            return 60

    game = plain.Game(Market(), 3, 5, CPU)
    torch.manual_seed(1)
    played = game.play(lambda states: (torch.full((3,), 40), states[:, 0]))  # fully long, always
    torch.manual_seed(1)
    first = torch.randint(0, game.last, (3,))
    close = Market.prices[:, 3]
    change = close[first + 5] / close[first + 4] - 1
    np.testing.assert_allclose(played.rewards[4], 1000 * np.log1p(change), rtol=1e-3, atol=1e-3)
    entry = close[first + 1] / close[first] - 1 - plain.COST
    np.testing.assert_allclose(played.rewards[0], 1000 * np.log1p(entry), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(played.states[-1, :, 1], torch.exp(played.rewards.sum(0) / 1000), rtol=1e-5, atol=0)


def test_plain_torch_learns_what_it_is_given(monkeypatch):
    """The baselines are not broken: a policy gradient and TD errors go where they must."""
    monkeypatch.setattr(games, "BARS", 2000)
    torch.manual_seed(0)
    config = settings.replace(Config(), SMALL | {"dqn.lr": 1e-2, "dqn.batch": 64})
    ppo = plain.PlainPpo(games.market(), config.ppo, 4, 8, CPU)
    states, actions, old, _, returns = ppo.collect()
    advantages = torch.where(actions == actions[0], 1.0, -1.0)
    before = ppo.actor(states)[:, actions[0]].mean().item()
    for _ in range(10):
        ppo.update(states, actions, old, advantages, returns)
    assert ppo.actor(states)[:, actions[0]].mean().item() > before
    rows = replay.random_rows(256, CPU, torch.Generator().manual_seed(0))
    rows["discounts"].zero_()
    rows["rewards"].fill_(3.0)
    memory = plain.PlainReplay(rows, torch.ones(256), alpha=0.6, eps=1e-6, largest=1e6, beta=0.4)
    dqn = plain.PlainDqn(memory, config.dqn, replay.WIDTH, CPU)
    for _ in range(100):
        dqn.update()
    assert memory.priorities.mean() < 0.5
    assert (dqn.online(rows["states"]).gather(1, rows["actions"].long()[:, None]).mean() - 3.0).abs() < 0.5


@pytest.mark.gpu
@pytest.mark.parametrize("name", TINY)
def test_every_benchmark_runs_on_a_gpu(name):
    module = importlib.import_module(f"numba_rl.bench.{name}")
    sizes = {"rollout": [(128, 20)], "ppo": [(128, 20)], "gae": [(128, 20)], "replay": [(10_000, 256)], "dqn": [(256,), (64, 32)]}[name]
    rows = list(module.run(Clock(torch.device("cuda"), 0.01), sizes))
    assert rows and all(row.seconds > 0 for row in rows)
