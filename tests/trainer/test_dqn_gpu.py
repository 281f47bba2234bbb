"""DQN on a GPU: the written-out update against autograd, captured against eager, every variant, resume, runs that repeat bit for bit."""

import numpy as np
import pytest
import torch

from numba_rl import settings
from numba_rl.collect.batched import BatchedCollector
from numba_rl.config import Config
from numba_rl.replay import PrioritizedReplay
from numba_rl.trainer.capture import captured
from numba_rl.trainer.dqn import Dqn
from numba_rl.trainer.dqn_fused import FusedLearner, fits
from numba_rl.trainer.dqn_networks import HEADS, build_q_network
from numba_rl.trainer.dqn_update import Learner

pytestmark = pytest.mark.gpu
SLOTS = 20_000
BASE = {"algorithm": "dqn", "episodes.count": 64, "episodes.launch": 32, "dqn.batch": 256, "dqn.updates": 20, "replay.capacity": SLOTS}


def learner(kind, batch=256, changes=None, **options):
    """A learner on a full replay; the same for every kind."""
    config = settings.replace(Config(), {"algorithm": "dqn", "dqn.batch": batch, "dqn.lr": 1e-3} | (changes or {}))
    network = build_q_network(config, 51, torch.Generator().manual_seed(0)).cuda()
    with torch.no_grad():
        network.advantage_output.weight.mul_(10)
    replay = PrioritizedReplay(SLOTS, 54, device="cuda", seed=1)
    random = torch.Generator("cuda").manual_seed(2)

    def normal(*shape):
        return torch.randn(*shape, device="cuda", generator=random)

    actions = torch.randint(0, 45, (SLOTS,), device="cuda", generator=random)
    flags = (torch.rand(SLOTS, device="cuda", generator=random) < 0.1).int()
    replay.insert(normal(SLOTS, 54), normal(SLOTS, 54), actions, 3 * normal(SLOTS), 0.99, flags, errors=normal(SLOTS))
    return kind(network, config, replay, **options)


@pytest.mark.parametrize("batch", [256, 1024, 4096])
def test_the_written_out_update_equals_autograd(batch):
    one, other = learner(FusedLearner, batch), learner(Learner, batch, precision="float32")
    for trained in (one, other):
        trained.begin()
        trained.updates(1)
    found, wanted = one.figures(), other.figures()
    for name in ("td_loss", "td_error", "grad_norm"):
        assert found[name] == pytest.approx(wanted[name], rel=0.03), name
    gradient = torch.cat([part.reshape(-1) for part in one.named(one.first_moment)])
    reference = other.optimizer.state()["exp_avg"]
    assert (gradient - reference).norm() < 0.05 * reference.norm()  # bf16, and an argmax in a hundred that it turns
    torch.testing.assert_close(one.replay.priorities, other.replay.priorities, rtol=0.1, atol=0.15)


@pytest.mark.parametrize("kind", [FusedLearner, Learner])
def test_captured_updates_are_those_of_eager_calls(kind):
    options = {} if kind is FusedLearner else {"precision": "tf32"}
    eager, graphed = learner(kind, **options), learner(kind, **options)
    graphed.warm_up()
    eager.warm_up()
    graphs = {count: captured(lambda count=count: graphed.updates(count)) for count in (8, 3)}
    for trained in (eager, graphed):
        trained.begin()
    for count in (8, 3, 8):
        eager.updates(count)
        graphs[count].replay()
    one, other = eager.state(), graphed.state()
    for name in one:
        torch.testing.assert_close(other[name], one[name], rtol=1e-3, atol=1e-4, msg=name)
    assert eager.figures()["updates"] == graphed.figures()["updates"] == 19


def test_a_rerun_of_graphs_is_identical_bit_for_bit():
    states = []
    for _ in range(2):
        trained = learner(FusedLearner)
        trained.warm_up()
        graph = captured(lambda trained=trained: trained.updates(8))
        for _ in range(50):
            graph.replay()
        states.append({name: tensor.clone() for name, tensor in trained.state().items()} | {"priorities": trained.replay.priorities.clone()})
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_the_written_out_update_learns():
    """Targets of a known function: the td error falls."""
    trained = learner(FusedLearner, changes={"dqn.gamma": 0.0, "dqn.weight_decay": 0.0})
    trained.replay.backend.rows[:, -2] = 0  # discounts
    trained.warm_up()
    graph = captured(lambda: trained.updates(8))
    errors = []
    for _ in range(40):
        trained.begin()
        graph.replay()
        errors.append(trained.figures()["td_loss"])
    assert sum(errors[-5:]) < 0.93 * sum(errors[:5])  # of labels without a pattern; 0.88 where it was seen


@pytest.fixture
def dqn(market):
    def make(changes=None):
        config = settings.replace(Config(), BASE | (changes or {}))
        return Dqn(config, BatchedCollector(market, config, device="cuda"), market.regime)

    return make


def test_the_default_takes_the_written_out_update(dqn):
    assert isinstance(dqn().learner, FusedLearner)
    assert not fits(settings.replace(Config(), {"algorithm": "dqn", "dqn.variant": "iqn"}), torch.device("cuda"))


@pytest.mark.parametrize("variant", HEADS)
@pytest.mark.parametrize("mode", ["proportional", "rank"])
def test_epochs_of_each_variant(dqn, variant, mode):
    trainer = dqn({"dqn.variant": variant, "dqn.n_step": 3, "replay.mode": mode, "dqn.quantiles": 4})
    for epoch in range(4):
        before = trainer.networks()["value_output.weight"].clone()
        trainer.epoch()
        figures = trainer.statistics()
        assert figures["losses/updates"] == 20 and figures["losses/skipped"] == figures["rollout/broken_slots"] == 0
        assert trainer.steps == (epoch + 1) * 2048 and figures["replay/size"] == min((epoch + 1) * 2048 - 2 * 64, SLOTS)
        assert not torch.equal(before, trainer.networks()["value_output.weight"])
    assert figures["charts/epsilon"] == pytest.approx(trainer.chooser.epsilon())


@pytest.mark.parametrize("variant", ["dueling", "noisy"])
def test_runs_repeat_and_resumes_go_on(dqn, market, variant):
    changes = {"dqn.variant": variant, "dqn.n_step": 3}
    one, other = dqn(changes), dqn(changes)
    for _ in range(3):
        one.epoch()
        other.epoch()
    again = dqn(changes)
    again.load({name: torch.as_tensor(value).cpu().clone() for name, value in one.state().items()})
    again.replay.load_state_dict(one.replay.state_dict())
    for trainer in (one, other, again):
        for _ in range(3):
            trainer.epoch()
    wanted = {name: torch.as_tensor(value).cpu() for name, value in one.state().items()}
    for trainer in (other, again):
        found = {name: torch.as_tensor(value).cpu() for name, value in trainer.state().items()}
        different = [name for name in wanted if not torch.equal(found[name], wanted[name])]
        assert not different
    assert torch.equal(one.replay.priorities, again.replay.priorities)


def test_the_gpu_plays_as_the_cpu_path_does(market):
    """The same seeds and weights: the first launch's transitions agree but where values are within rounding of each other."""
    config = settings.replace(Config(), BASE | {"dqn.epsilon_start": 0.5, "dqn.n_step": 3})
    rings = []
    for device in ("cpu", "cuda"):
        trainer = Dqn(config, BatchedCollector(market, config, device=device), market.regime)
        trainer._collect()
        rings.append(trainer.replay.state_dict())
    # Rows are in order of time, those of all slots together: what a slot plays before its first other action is the same game.
    same = (rings[0]["actions"] == rings[1]["actions"]).reshape(-1, config.episodes.count)
    assert same.mean() > 0.95
    before = np.logical_and.accumulate(same)
    before[:-2] &= before[2:]  # a return is of three steps
    rows = before[:-2].ravel()
    assert rows.mean() > 0.5
    for name, within in (("states", 1e-4), ("rewards", 1e-2)):
        one, other = (ring[name][: rows.size][rows] for ring in rings)
        assert abs(one - other).max() < within, name
