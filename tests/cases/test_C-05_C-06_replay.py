"""C-05 and C-06 for the replay: empty batches, gradients, strides, types and devices."""

import json
from pathlib import Path

import pytest
import torch
from replay.helpers import DEVICE, KINDS, check_rows, insert, items, make

both = pytest.mark.parametrize("kind", KINDS)
X = json.loads((Path(__file__).parent / "C-06" / "input.json").read_text())["x"]


def rest(n, device):
    """actions, rewards and discounts of n transitions."""
    return torch.zeros(n, dtype=torch.int32, device=device), torch.zeros(n, device=device), torch.ones(n, device=device)


def stored(replay, name="states"):
    return torch.from_numpy(replay.state_dict()[name])


@both
def test_empty_batches(kind):
    replay = make(kind, 8)
    empty = torch.zeros(0, 3, device=replay.device)
    replay.insert(empty, empty, *rest(0, replay.device))
    assert replay.size == 0
    with pytest.raises(ValueError, match="replay is empty"):
        replay.sample(2)
    insert(replay, range(4))
    for size in (0, -1):
        with pytest.raises(ValueError, match=f"size {size}"):
            replay.sample(size)
    replay.update_slots(torch.zeros(0, dtype=torch.int64, device=replay.device), torch.zeros(0, device=replay.device))
    assert replay.locate(torch.zeros(0, dtype=torch.float64, device=replay.device)).shape == (0,)
    assert replay.priorities.tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="capacity >= 1"):
        make(kind, 0)


@both
def test_tensors_that_require_grad_are_detached(kind):
    replay = make(kind, 8, width=2)
    x = torch.tensor(X, dtype=torch.float32, device=replay.device, requires_grad=True)
    replay.insert(x, x * 2, *rest(3, replay.device))
    assert stored(replay).tolist() == X
    batch = replay.sample(3)
    replay.update(batch, (batch.states.sum(1) * x.sum()).abs())
    assert replay.priorities[0] != 1 and x.grad is None


@both
def test_strided_views_are_read_as_they_look(kind):
    replay = make(kind, 8, width=3)
    x = torch.tensor(X, dtype=torch.float32, device=replay.device)
    rewards = x[:, 1][:2]  # stride 2
    replay.insert(x.t(), x.t(), torch.zeros(2, dtype=torch.int32, device=replay.device), rewards, 1.0)
    assert stored(replay).tolist() == [[1, 3, 5], [2, 4, 6]]
    assert stored(replay, "rewards").tolist() == [2, 4]
    replay.update_slots(torch.tensor([[0, 7], [1, 7]], device=replay.device)[:, 0], x[:, 1][:2])
    assert torch.allclose(replay.priorities[:2].cpu(), torch.tensor([2.0, 4.0]) ** 0.6 + 1e-6)


@both
def test_other_types_are_converted_or_refused_never_reinterpreted(kind):
    replay = make(kind, 8)
    states, next_states, actions, rewards, discounts, flags = items(range(4), device=replay.device)
    replay.insert(states.double(), next_states.half().double(), actions.long(), rewards.double(), discounts, flags == 1)
    assert torch.equal(stored(replay), states.cpu()) and torch.equal(stored(replay, "rewards"), rewards.cpu())
    assert stored(replay, "flags").tolist() == [0, 1, 0, 0]
    with pytest.raises(TypeError, match="states must be float32 or .* got torch.int32"):
        replay.insert(states.int(), next_states, actions, rewards, discounts)
    with pytest.raises(TypeError, match="actions must be int32 or .* got torch.float32"):
        replay.insert(states, next_states, rewards, rewards, discounts)
    with pytest.raises(TypeError, match="rewards must be a torch tensor, got list"):
        replay.insert(states, next_states, actions, [0.0] * 4, discounts)
    batch = replay.sample(2)
    with pytest.raises(TypeError, match="td errors must be float32"):
        replay.update(batch, torch.ones(2, dtype=torch.int32, device=replay.device))
    replay.update(batch, torch.ones(2, dtype=torch.float64, device=replay.device))
    check_rows(make_full(kind).sample(2), range(8))


def make_full(kind):
    replay = make(kind, 8)
    insert(replay, range(8))
    return replay


@both
def test_wrong_shapes_name_the_argument(kind):
    replay = make_full(kind)
    states, next_states, actions, rewards, discounts, _ = items(range(4), device=replay.device)
    with pytest.raises(ValueError, match=r"next_states must have shape \(4, 3\), got \(3, 3\)"):
        replay.insert(states, next_states[:3], actions, rewards, discounts)
    with pytest.raises(ValueError, match=r"states must be a tensor of shape \(n, 3\)"):
        replay.insert(states[0], next_states, actions, rewards, discounts)
    with pytest.raises(ValueError, match=r"td errors must have shape \(2,\), got \(3,\)"):
        replay.update(replay.sample(2), torch.ones(3, device=replay.device))


@both
def test_tensors_elsewhere_are_refused(kind):
    replay = make_full(kind)
    elsewhere = "meta" if replay.device.type == "cpu" else "cpu"
    with pytest.raises(ValueError, match=f"states is on {elsewhere}, the replay is on {replay.device.type}"):
        replay.insert(*(t.to(elsewhere) for t in items(range(4))))
    with pytest.raises(ValueError, match="td errors is on"):
        replay.update(replay.sample(2), torch.ones(2, device=elsewhere))


@pytest.mark.gpu
def test_a_cpu_tensor_for_a_replay_on_the_gpu():
    replay = make("device", 8)
    with pytest.raises(ValueError, match="states is on cpu, the replay is on cuda"):
        replay.insert(*items(range(4)))
    assert DEVICE == "cuda"
