"""The forward model: what it is shown, what it pays, that it learns, and that narrow feature sets work."""

import torch

from numba_rl.config import Config
from numba_rl.trainer.curiosity import Curiosity


def model(features, bars=50):
    table = torch.randn(bars, features, generator=torch.Generator().manual_seed(0))
    return Curiosity(Config(), table, torch.Generator().manual_seed(1)), table


def test_input_is_the_first_features_and_the_action_in_three_parts():
    curiosity, table = model(51)
    bars, actions = torch.tensor([3, 4, 5]), torch.tensor([0, 22, 44], dtype=torch.int32)
    inputs = curiosity.inputs(bars, actions)
    assert torch.equal(inputs[:, :32], table[bars, :32])
    assert inputs[:, 32:].tolist() == [[-1.0, -1.0, -1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    assert [tuple(weight.shape) for weight in curiosity.model.parameters()] == [(64, 35), (64,), (32, 64), (32,)]


def test_the_bonus_is_the_error_of_the_next_features_up_to_a_tenth():
    curiosity, table = model(51)
    with torch.no_grad():
        for weight in curiosity.model.parameters():
            weight.zero_()  # predicts 0
    table[10, :32] = 0.2
    table[11, :32] = 5.0
    found = curiosity.bonus(torch.tensor([[9], [10]], dtype=torch.int32), torch.zeros(2, 1, dtype=torch.int32))
    torch.testing.assert_close(found, torch.tensor([[0.04], [0.1]]))


def test_a_narrow_feature_set_is_predicted_whole_and_learned():
    curiosity, table = model(4)
    table[1:] = table[:-1].clone() * 0  # what follows is always 0
    table[0] = 0
    bars, actions = torch.arange(40, dtype=torch.int32), torch.arange(40, dtype=torch.int32)
    before = curiosity.errors(bars.long(), actions).mean()
    for _ in range(60):
        after = curiosity.train(bars, actions, torch.arange(40).tensor_split(2))
    assert curiosity.inputs(bars.long(), actions).shape == (40, 7)
    assert after < 0.5 * before


def test_weight_times_bonus_is_added_to_the_rewards(trainer):
    ppo = trainer({"reward.curiosity": 3.0})
    rollout = ppo.collector.collect(ppo._act)
    bonus = ppo.curiosity.bonus(rollout.bars, rollout.actions)
    assert (bonus > 0).all()
    torch.testing.assert_close(ppo._rewards(rollout), rollout.rewards + 3.0 * bonus)


def test_without_a_weight_there_is_no_model(trainer):
    assert trainer().curiosity is None
