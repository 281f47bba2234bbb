"""The flat Adam against torch's own, its clipping, and steps that must leave nothing behind."""

import math

import pytest
import torch
from torch import nn

from numba_rl.config import DqnConfig
from numba_rl.trainer.optimizer import EPSILON, FlatAdam, weight_decay_of

KEEP, SKIP = torch.tensor(0.0), torch.tensor(1.0)


def networks(seed=0):
    torch.manual_seed(seed)
    return {"one": nn.Linear(3, 4), "two": nn.Sequential(nn.Linear(5, 2), nn.Linear(2, 1))}


def set_gradients(pair, seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    for network in pair.values():
        for parameter in network.parameters():
            parameter.grad.copy_(scale * torch.randn(parameter.shape, generator=generator))


def everything(pair, optimizer):
    weights = [parameter.detach().clone() for network in pair.values() for parameter in network.parameters()]
    return weights + [value.clone() for name, value in optimizer.state().items() if not name.startswith("skipped")]


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_steps_are_those_of_torch_with_each_network_clipped_by_itself(decay):
    pair, same = networks(), networks()
    optimizer = FlatAdam(pair, lr=0.01, max_norm=1.5, weight_decay=decay)
    parameters = [parameter for network in same.values() for parameter in network.parameters()]
    reference = torch.optim.AdamW(parameters, lr=0.01, eps=EPSILON, weight_decay=decay)
    for step in range(5):
        set_gradients(pair, step, scale=0.1 + step)
        for name, network in same.items():
            for mine, its in zip(pair[name].parameters(), network.parameters(), strict=True):
                its.grad = mine.grad.clone()
            nn.utils.clip_grad_norm_(network.parameters(), 1.5)
        norms = optimizer.step(KEEP)
        assert norms.shape == (2,)
        reference.step()
    for mine, its in zip(pair.values(), same.values(), strict=True):
        for a, b in zip(mine.parameters(), its.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("value", "skip", "counted"), [(math.nan, KEEP, 1), (math.inf, KEEP, 1), (0.5, SKIP, 0), (math.nan, SKIP, 0)])
def test_a_step_left_out_leaves_everything_as_it_was(value, skip, counted):
    pair = networks()
    optimizer = FlatAdam(pair, lr=0.01, max_norm=1.0)
    set_gradients(pair, 0)
    optimizer.step(KEEP)
    before = everything(pair, optimizer)
    set_gradients(pair, 1)
    pair["two"][1].bias.grad.fill_(value)
    optimizer.step(skip)
    assert all(torch.equal(a, b) for a, b in zip(before, everything(pair, optimizer), strict=True))
    assert int(optimizer.skipped) == counted


def test_broken_steps_in_a_row_are_counted_until_one_is_made():
    pair = networks()
    optimizer = FlatAdam(pair, lr=0.01, max_norm=1.0)
    seen = []
    for broken in (True, True, False, True):
        set_gradients(pair, 0, math.nan if broken else 1.0)
        optimizer.step(KEEP)
        seen.append(int(optimizer.skipped_in_a_row))
    assert seen == [1, 2, 0, 1]
    assert int(optimizer.skipped) == 3


def test_a_stop_does_not_break_a_row():
    pair = networks()
    optimizer = FlatAdam(pair, lr=0.01, max_norm=1.0)
    for skip in (KEEP, SKIP, KEEP):
        set_gradients(pair, 0, math.nan)
        optimizer.step(skip)
    assert int(optimizer.skipped_in_a_row) == 2


def test_a_loaded_state_goes_on_as_the_one_it_came_from():
    pair, other = networks(), networks()
    optimizer, restored = FlatAdam(pair, lr=0.01, max_norm=1.0), FlatAdam(other, lr=0.01, max_norm=1.0)
    for step in range(3):
        set_gradients(pair, step)
        optimizer.step(KEEP)
    for name, network in other.items():
        network.load_state_dict(pair[name].state_dict())
    restored.load({name: value.clone() for name, value in optimizer.state().items()})
    for both, its in ((pair, optimizer), (other, restored)):
        set_gradients(both, 9)
        its.step(KEEP)
    assert all(torch.equal(a, b) for a, b in zip(everything(pair, optimizer), everything(other, restored), strict=True))


def test_the_decay_is_the_one_set_and_else_that_of_the_variant():
    assert weight_decay_of(DqnConfig(variant="branching")) == weight_decay_of(DqnConfig()) > 0.0
    assert weight_decay_of(DqnConfig(weight_decay=0.0)) == weight_decay_of(DqnConfig(variant="iqn")) == 0.0
