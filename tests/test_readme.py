"""The README names what exists: its table is that of the settings, and its commands are commands."""

import re
from pathlib import Path

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
