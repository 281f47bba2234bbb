"""The README names what exists: its table is that of the settings, and its commands are commands."""

import re
from pathlib import Path

import torch
from rltrain.app import COMMANDS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_table_of_settings_is_the_one_of_the_command(rltrain):
    table = rltrain("config", "list", "--markdown").stdout
    assert table in README, "replace the README's table by the output of `rltrain config list --markdown`"


def test_the_commands_in_it_exist():
    used = set(re.findall(r"^(?:RLTRAIN_\S+ )?rltrain ([a-z-]+)", README, flags=re.MULTILINE))
    assert used
    assert used <= set(COMMANDS)


def test_the_files_in_it_exist():
    named = set(re.findall(r"`((?:numba_rl|cli|tests|profiles)/[\w./]*)`", README))
    assert named
    assert not [path for path in named if not (ROOT / path).exists()]


def test_the_agent_in_it_learns_from_the_replay():
    program = re.search(r"```python\n# my_agent\.py\n(.*?)```", README, flags=re.DOTALL)[1]
    names: dict = {}
    exec(compile(program, "README.md", "exec"), names)
    replay = names["replay"]
    assert len(replay) == 50 * 256 and replay.rejected() == {"nan": 0, "infinite": 0, "stale": 0, "outside": 0, "last_step": 0}
    assert torch.isfinite(names["loss"]) and len(replay.priorities[: len(replay)].unique()) > 1000
