"""Dead units are counted over all hidden layers, by what they do on the states given."""

import math

import torch

from numba_rl.trainer.dead_units import ROWS, dead_units, seen_states
from numba_rl.trainer.dqn_networks import QNetwork
from numba_rl.trainer.networks import Network


def test_units_that_never_fire_are_counted():
    network = Network("policy", 5, (8, 4), 3, output_gain=1.0)
    states = torch.randn(200, 5)
    before = dead_units(network, states)
    with torch.no_grad():
        network.policy_layer_0.bias[:3] = -1e6
        network.policy_layer_1.bias[:1] = -1e6
    assert before < 3 / 12
    assert dead_units(network, states) > 0.33
    with torch.no_grad():
        network.policy_layer_0.bias[:] = -1e6
        network.policy_layer_1.bias[:] = -1.0
    assert dead_units(network, states) == 1.0
    assert math.isnan(dead_units(Network("policy", 5, (), 3, output_gain=1.0), states))


def test_every_kind_of_q_network_can_be_looked_at():
    for variant in ("dueling", "branching", "noisy", "iqn", "exposure"):
        network = QNetwork(6, (16,), 8, variant, 4)
        assert 0 <= dead_units(network, torch.randn(300, 6)) < 1
        assert not any(layer._forward_hooks for layer in network.modules())


def test_states_are_spread_over_the_rollout(trainer):
    ppo = trainer({"episodes.launch": 1500})
    rollout = ppo.collector.collect(ppo.actor)
    states = seen_states(ppo.collector)
    assert ROWS <= len(states) <= 2 * ROWS
    assert torch.equal(states[0], rollout.states[0, 0])
    assert all(torch.equal(states[k], rollout.states[:-1].reshape(6000, -1)[2 * k]) for k in (1, 700, 2999))
