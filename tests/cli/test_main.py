"""Every way a command can end is one line and an exit code."""

import signal
import sys

import pytest

from rltrain import main as entry


@pytest.fixture
def command(monkeypatch):
    """Makes `rltrain fails` raise a given error, in this process; gives (exit code, standard error)."""

    def run(error, capsys, *words):
        import rich_click

        from rltrain.app import rltrain

        @rich_click.command()
        def fails():
            raise error

        monkeypatch.setitem(rltrain.commands, "fails", fails)
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        try:
            with pytest.raises(SystemExit) as caught:
                entry.main(["fails", *words])
        finally:
            signal.signal(signal.SIGINT, before[0])
            signal.signal(signal.SIGTERM, before[1])
        return caught.value.code, capsys.readouterr().err

    return run


def test_what_the_user_can_mend_is_2(command, capsys):
    from numba_rl.errors import DataError

    assert command(DataError("x.csv, row 3: high < low"), capsys) == (2, "error: x.csv, row 3: high < low\n")


def test_an_internal_failure_is_1_and_one_line(command, capsys):
    code, err = command(ValueError("two\nlines"), capsys)
    assert (code, err) == (1, "error: internal failure: ValueError: two lines (run with --debug for the traceback)\n")


def test_a_full_disk_is_1_and_names_the_file(command, capsys):
    code, err = command(OSError(28, "No space left on device", "runs/a/latest"), capsys)
    assert (code, err) == (1, "error: runs/a/latest: No space left on device (run with --debug for the traceback)\n")


def test_an_interrupt_is_130_and_a_termination_143(command, capsys):
    from numba_rl.signals import Interrupted

    assert command(KeyboardInterrupt(), capsys) == (130, "SIGINT: interrupted\n")
    assert command(Interrupted("SIGTERM"), capsys) == (143, "SIGTERM: interrupted\n")


def test_debug_shows_the_traceback(rltrain):
    done = rltrain("config", "show", "--set", "ppo.gamma=2", "--debug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ConfigError: --set ppo.gamma=2" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing"], "error: No such command 'nothing'."),
        (["trian"], "Did you mean 'train'?"),
        (["train", "ppo", "--stepz", "3"], "'--steps'"),
        (["train", "ppo", "--time-limit", "soon"], "write for example 90, 90s, 30m or 2h"),
        (["train", "ppo", "--memory-limit", "4XB"], "write for example 4GB"),
        (["train", "ppo", "--steps", "0"], "--steps: train.steps must be a whole number >= 1, not 0"),
        (["train", "ppo", "--resume", "x", "--seed", "3"], "--seed cannot be given with it, only --steps, --time-limit"),
        (["train", "ppo", "--resume", "x"], "x: no such run directory"),
        (["resume", "x"], "x: no such run directory"),
        (["config", "show", "x"], "x: not a run directory"),
    ],
)
def test_wrong_arguments_are_one_line_and_2(rltrain, tmp_path, arguments, says):
    done = rltrain(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_group_without_a_command_shows_its_help(rltrain):
    done = rltrain("train")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Commands" in done.stderr


def test_units_become_the_units_of_the_settings():
    from rltrain.options import DURATION, MEMORY

    assert float(DURATION.convert("30m", None, None)) == 1800.0
    assert float(DURATION.convert("1.5", None, None)) == 1.5
    assert float(MEMORY.convert("500MB", None, None)) == 0.5
    assert float(MEMORY.convert("4 GiB", None, None)) == 4.294967296


def test_a_reader_that_goes_away_is_no_traceback(rltrain_process):
    process = rltrain_process("config", "list")
    process.stdout.close()
    assert process.wait(timeout=180) in (0, 1)
    assert "Traceback" not in process.stderr.read()


@pytest.mark.skipif(sys.platform != "linux", reason="signals of Linux")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_during_start_up_is_one_line(rltrain_process, tmp_path, number, code):
    """The command waits for its market on a pipe that nobody writes to, as it would for a slow disk."""
    import os
    import time

    os.mkfifo(tmp_path / "settings.toml")
    process = rltrain_process("train", "ppo", "--data", "x.csv", "--config", tmp_path / "settings.toml", cwd=tmp_path)
    with open(tmp_path / "settings.toml", "w"):  # opens once the command has opened it to read
        time.sleep(0.2)
        process.send_signal(number)
        out, err = process.communicate(timeout=180)
    assert (process.returncode, out, err) == (code, "", f"{number.name}: interrupted\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["settings.toml"]
