"""Checkpoints: what is saved is loaded, damaged and foreign files are refused in one line, changes are named."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load as read_tensors
from safetensors.torch import save as tensor_bytes

from numba_rl import settings
from numba_rl.errors import CheckpointError, UserError
from numba_rl.trainer import checkpoint


@pytest.fixture(scope="module")
def trained(trainer):
    """A trainer after an epoch."""
    ppo = trainer({"reward.curiosity": 0.5})
    ppo.epoch()
    return ppo


@pytest.fixture
def saved(trained, market, tmp_path):
    """(path, trainer) of a checkpoint of its own."""
    path = tmp_path / "latest.safetensors"
    checkpoint.save(path, trained.state(), checkpoint.describe(trained.config, market, best=np.float64(0.25), steps=np.int64(64)))
    return path, trained


def test_what_is_saved_is_loaded(saved, market):
    path, ppo = saved
    loaded = checkpoint.load(path)
    assert loaded.config == ppo.config
    assert (loaded.metadata["best"], loaded.metadata["steps"], loaded.metadata["algorithm"]) == (0.25, 64, "ppo")
    assert loaded.scaling.names == market.names
    state = ppo.state()
    assert set(loaded.tensors) == set(state)
    for name, value in state.items():
        assert torch.equal(loaded.tensors[name], torch.as_tensor(value)), name


def test_a_policy_is_that_of_the_training(saved, market):
    path, ppo = saved
    policy = checkpoint.load_policy(path)
    states = torch.from_numpy(np.hstack([market.features[:9], np.ones((9, 3), np.float32)]))
    assert torch.equal(policy(states), ppo.actor(states).detach())
    assert policy(states).requires_grad is False
    assert policy.feature_names == market.names
    np.testing.assert_array_equal(policy.scaling.apply(market.raw_features), market.features)


def refused(path, action=checkpoint.load):
    with pytest.raises(CheckpointError) as caught:
        action(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.01, 0.5, 0.999])
def test_a_truncated_file_is_refused(saved, share):
    path, _ = saved
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    refused(path)


def test_a_flipped_bit_anywhere_is_noticed(saved):
    path, _ = saved
    data = path.read_bytes()
    for place in np.random.default_rng(0).integers(0, len(data), 40):
        broken = bytearray(data)
        broken[place] ^= 4
        path.write_bytes(broken)
        refused(path)


def test_other_files_are_refused_by_what_they_are(tmp_path):
    path = tmp_path / "x.safetensors"
    assert "no checkpoint to read" in refused(path)
    assert "no checkpoint to read" in refused(tmp_path)
    path.write_bytes(tensor_bytes({"a": torch.ones(2)}))
    assert "no checkpoint of rltrain" in refused(path)
    path.write_text("timestamp,open,high,low,close\n" * 9)
    assert "no checkpoint: use another one" in refused(path)
    path.write_bytes((2**62).to_bytes(8, "little") + b"{}")
    refused(path)


def rewritten(path, change=lambda metadata: None, tensors=None):
    """The file with its header changed and the checksum made to fit, as a hostile writer could."""
    stored = checkpoint.load(path)
    metadata = dict(stored.metadata)
    change(metadata)
    checkpoint.save(path, stored.tensors | (tensors or {}), metadata)


def test_other_formats_and_versions_are_named(saved):
    path, _ = saved
    rewritten(path, lambda metadata: metadata.update(format=99, version="9.1"))
    assert "has format 99, this version reads 1; use version '9.1'" in refused(path)


def test_unknown_settings_are_named(saved):
    path, _ = saved
    rewritten(path, lambda metadata: metadata["config"]["ppo"].update(wings=2))
    assert "wings" in refused(path, checkpoint.load_policy)


@pytest.mark.parametrize(
    ("name", "tensor", "said"),
    [
        ("policy_output.weight", torch.zeros(45, 9), "not float32 (45, 8)"),
        ("policy_output.weight", torch.zeros(45, 8, dtype=torch.int32), "is torch.int32"),
        ("policy_output.bias", torch.full((45,), float("nan")), "is not finite"),
    ],
)
def test_weights_that_do_not_fit_are_refused(saved, name, tensor, said):
    path, _ = saved
    rewritten(path, tensors={name: tensor})
    assert said in refused(path, checkpoint.load_policy)


def test_sizes_that_no_memory_holds_are_refused(saved):
    path, _ = saved
    rewritten(path, lambda metadata: metadata["config"]["ppo"].update(actor=[2**40, 2**20]))
    assert "the weight policy_layer_0.weight is torch.float32 (16, 54)" in refused(path, checkpoint.load_policy)


def test_a_scaling_that_makes_no_sense_is_refused(saved):
    path, _ = saved
    rewritten(path, lambda metadata: metadata["scaling"]["std"].__setitem__(0, -1.0))
    refused(path, checkpoint.load_policy)


def test_a_file_that_cannot_be_written_leaves_the_one_before(saved, tmp_path):
    path, ppo = saved
    before = path.read_bytes()
    with pytest.raises(UserError, match="cannot be written"):
        checkpoint.save(tmp_path / "none" / "x.safetensors", ppo.state(), {})
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_the_file_is_plain_safetensors(saved):
    path, ppo = saved
    assert torch.equal(read_tensors(path.read_bytes())["policy_output.bias"], ppo.actor.policy_output.bias)
    json.dumps(checkpoint.load(path).metadata)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ppo.actor": (16, 4)}, "ppo.actor was (16, 8) and is (16, 4) now"),
        ({"ppo.gamma": 0.5}, "ppo.gamma was"),
        ({"algorithm": "dqn"}, "was trained by ppo, this run by dqn"),
        ({"episodes.count": 9}, "episodes.count was 4 and is 9 now"),
        ({"market.taker_bps": 0.0}, "market.taker_bps was 4.0 and is 0.0 now"),
        ({"train.seed": 7}, "train.seed was 0 and is 7 now"),
    ],
)
def test_a_resume_under_other_settings_is_refused_by_name(saved, market, changes, said):
    path, ppo = saved
    loaded = checkpoint.load(path)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.refuse_changes(loaded, settings.replace(ppo.config, changes), market)
    assert said in str(caught.value)


def test_a_resume_on_other_data_is_refused_by_name(saved, market):
    path, ppo = saved
    loaded = checkpoint.load(path)
    checkpoint.refuse_changes(loaded, settings.replace(ppo.config, {"train.steps": 5, "train.device": "cpu"}), market)
    for changes, said in (
        ({"bars_digest": "0"}, "the bars of synthetic:mean_reverting are not those"),
        ({"features_digest": "0"}, "the features of synthetic:mean_reverting are not those"),
        ({"names": market.names[:-1]}, f"was trained on 51 features, this market has 50 (the first difference: {market.names[-1]})"),
        ({"names": market.names[::-1]}, "(the first difference: their order)"),
        ({"scaling": dataclasses.replace(market.scaling, clip=9.0)}, "resume with the same data.split"),
    ):
        with pytest.raises(CheckpointError) as caught:
            checkpoint.refuse_changes(loaded, ppo.config, dataclasses.replace(market, **changes))
        assert said in str(caught.value)
