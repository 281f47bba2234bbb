"""`rltrain config` and `--help`."""

import pytest

from numba_rl import keys, settings
from numba_rl.config import Config
from numba_rl.rundir import RunDir
from rltrain.app import COMMANDS
from rltrain.config import field_notes


def test_show_says_where_each_value_came_from(rltrain):
    done = rltrain("config", "show", "--preset", "foxhunt", "--set", "ppo.lr=1e-3", env={"RLTRAIN_DQN_BATCH": "64"})
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert "lr = 0.001  # --set ppo.lr=1e-3" in lines
    assert "batch = 64  # environment variable RLTRAIN_DQN_BATCH" in lines
    assert "barrier = 0.5  # preset foxhunt" in lines


def test_show_prints_the_settings_of_a_run(rltrain, tmp_path):
    config = settings.load(sets=["train.seed=9"]).config
    RunDir.create(tmp_path / "run", config).close()
    assert rltrain("config", "show", tmp_path / "run").stdout == settings.to_toml(config)
    assert rltrain("config", "show", tmp_path / "run", "--preset", "foxhunt").returncode == 2


def test_init_writes_a_file_that_reads_as_the_defaults_and_keeps_what_is_there(rltrain, tmp_path):
    target = tmp_path / "settings.toml"
    assert rltrain("config", "init", target).returncode == 0
    assert settings.read_toml(target) == Config()
    assert "# a number from 0 to 1" in target.read_text()
    target.write_text("mine")
    assert rltrain("config", "init", target).returncode == 2
    assert target.read_text() == "mine"


def test_list_names_every_setting(rltrain):
    lines = rltrain("config", "list").stdout.splitlines()
    assert [line.partition(" = ")[0] for line in lines] == list(keys.KEYS)


def test_the_notes_of_the_schema_are_found():
    notes = field_notes()
    assert notes["train.time_limit"] == "seconds of training"
    assert all(notes.values()), "every setting says what it means"


@pytest.mark.parametrize("command", [[], ["train"], ["train", "ppo"], ["train", "dqn"], *([name] for name in COMMANDS)])
def test_every_help_has_an_example(rltrain, command):
    done = rltrain(*command, "--help")
    assert done.returncode == 0
    assert "Example: " in done.stdout


def test_completion_knows_commands_and_options(rltrain):
    def complete(words, position):
        env = {"_RLTRAIN_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(position)}
        return rltrain(env=env).stdout

    assert "train" in complete("rltrain tr", 1)
    assert "foxhunt" in complete("rltrain train ppo --preset ", 4)
