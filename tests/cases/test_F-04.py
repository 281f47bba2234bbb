"""F-04: misspelt settings end the command before anything runs. The case's YAML files, adapted to this product's TOML."""

import shutil
from pathlib import Path

import pytest

from numba_rl import settings
from numba_rl.errors import ConfigError

CASE = Path(__file__).parent / "F-04"
FILES = {
    "typo_top.toml": ["line 2: unknown setting steps: steps belongs to train (train.steps)", "learning_rte; nearest: ppo.lr, dqn.lr"],
    "typo_nested.toml": ["line 5: unknown setting replay.alhpa; nearest: replay.alpha"],
    "wrong_place.toml": ["capacity belongs to replay (replay.capacity)", 'line 5: ppo.clip must be a number > 0, not "0,2"'],
    "duplicate_key.toml": ["line 5: steps is set twice"],
}
LINE = {
    "learning_rte=0.001": "unknown setting learning_rte; nearest: ppo.lr, dqn.lr",
    "ppo.gamma=1.5": "ppo.gamma must be a number from 0 to 1, not 1.5",
    "dqn.batch=0": "dqn.batch must be a whole number >= 1, not 0",
    "replay.alpha=-1": "replay.alpha must be a number from 0 to 1, not -1",
    "dqn.n_step=0": "dqn.n_step must be a whole number >= 1, not 0",
    "replay.capacity=1": "replay.capacity (1) must be at least dqn.n_step + 1 (2)",
}


@pytest.mark.parametrize("name", FILES)
def test_a_settings_file_with_a_slip(name):
    with pytest.raises(ConfigError) as caught:
        settings.load(CASE / name)
    assert all(part in str(caught.value) for part in FILES[name])


@pytest.mark.parametrize("text", LINE)
def test_a_setting_on_the_line_with_a_slip(text):
    with pytest.raises(ConfigError) as caught:
        settings.load(sets=[text])
    assert LINE[text] in str(caught.value)


@pytest.mark.parametrize("arguments", [["--config", "typo_nested.toml"], ["--set", "learning_rte=0.001"], ["--learning-rte", "0.001"]])
def test_the_command_ends_before_it_reads_or_makes_anything(rltrain, tmp_path, arguments):
    shutil.copy(CASE / "typo_nested.toml", tmp_path)
    done = rltrain("train", "dqn", "--data", "never_read.csv", "--out", "run", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()
