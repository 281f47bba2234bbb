"""Run directories: never shared, never overwritten, never emptied; a kill leaves whole files."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from numba_rl import rundir, settings
from numba_rl.config import Config
from numba_rl.errors import UserError
from numba_rl.files import atomic_file, atomic_write
from numba_rl.rundir import RunDir


def make(path, **options):
    return RunDir.create(path, options.pop("config", Config()), command=["rltrain", "train"], **options)


def with_results(path):
    """A finished run with a checkpoint and a row of metrics."""
    with make(path) as run:
        (run.checkpoints / "latest.safetensors").write_bytes(b"weights")
        run.metrics.write_text("step\n1\n")
    return path


def sums(path):
    return {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(path.rglob("*")) if file.is_file()}


def python(code, *arguments):
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def test_a_new_run_holds_its_settings_and_what_made_it(tmp_path):
    config = settings.load(sets=["train.seed=7", "ppo.lr=0.1"]).config
    with make(tmp_path / "deep" / "run", config=config) as run:
        meta = run.meta()
        assert run.config() == config
        assert (meta["status"], meta["seed"], meta["algorithm"]) == ("running", 7, "ppo")
        assert meta["segments"][0]["command"] == ["rltrain", "train"]
        assert meta["segments"][0]["versions"]["torch"]
        run.update(bars_digest="abc")
        run.log("notice")
    assert run.meta()["status"] == "finished"
    assert run.meta()["bars_digest"] == "abc"
    assert (run.path / "log.txt").read_text().endswith(" notice\n")
    assert rundir.is_run(run.path)


def test_the_second_run_of_one_directory_is_refused_and_the_first_keeps_its_checksums(tmp_path):
    first = with_results(tmp_path / "run")
    before = sums(first)
    with pytest.raises(UserError, match="holds a run already; choose another --out"):
        make(first)
    assert sums(first) == before


def test_automatic_names_count_on(tmp_path):
    paths = []
    for _ in range(3):
        with make(None, name="ppo-bars", parent=tmp_path / "runs") as run:
            paths.append(run.path.name)
            run.metrics.write_text("step\n")
    assert paths == ["ppo-bars", "ppo-bars-2", "ppo-bars-3"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_directory_with_foreign_files_is_never_touched(tmp_path, overwrite):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"is not empty \(notes.txt\) and no run; .* nothing in it was touched"):
        make(tmp_path, overwrite=overwrite)
    assert [entry.name for entry in tmp_path.iterdir() if entry.name != ".lock"] == ["notes.txt"]


def test_an_empty_directory_is_taken(tmp_path):
    (tmp_path / "run").mkdir()
    with make(tmp_path / "run") as run:
        assert run.meta()["status"] == "running"


def test_overwrite_replaces_a_run_and_only_a_run(tmp_path):
    path = with_results(tmp_path / "run")
    with make(path, overwrite=True) as run:
        assert not run.metrics.exists()
        assert not list(run.checkpoints.iterdir())
        run.metrics.write_text("step\n")
    (path / "notes.txt").write_text("mine")
    before = sums(path)
    with pytest.raises(UserError, match=r"holds notes.txt beside the run"):
        make(path, overwrite=True)
    assert sums(path) == before


def test_what_a_killed_process_was_writing_is_no_obstacle(tmp_path):
    path = with_results(tmp_path / "run")
    (path / ".config.toml.29131.tmp").write_text("[da")
    with make(path, overwrite=True):
        assert not (path / ".config.toml.29131.tmp").exists()
    began = tmp_path / "began"
    began.mkdir()
    (began / ".meta.json.7.tmp").write_text("{")
    with make(began):
        assert rundir.is_run(began)
    (path / ".notes.txt.7.tmp").write_text("mine")
    with pytest.raises(UserError, match=r"holds \.notes\.txt\.7\.tmp beside the run"):
        make(path, overwrite=True)


def test_overwrite_does_not_follow_links_out_of_the_run(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "keep.txt").write_text("mine")
    path = with_results(tmp_path / "run")
    (path / "evaluation").rmdir()
    (path / "evaluation").symlink_to(elsewhere)
    make(path, overwrite=True).close()
    assert (elsewhere / "keep.txt").read_text() == "mine"


def test_a_file_or_an_unwritable_place_as_directory(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file; choose another --out"):
        make(tmp_path / "file")
    with pytest.raises(UserError, match="the run directory cannot be made: Not a directory"):
        make(tmp_path / "file" / "run")


def test_a_run_in_use_cannot_be_opened_replaced_or_resumed(tmp_path):
    run = make(tmp_path / "run")
    before = sums(run.path)
    for attempt in (RunDir.open, lambda path: make(path, overwrite=True)):
        with pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
            attempt(run.path)
    assert sums(run.path) == before
    assert rundir.status(run.path) == "running"
    run.close()
    assert rundir.status(run.path) == "killed"


def test_processes_that_start_together_get_directories_of_their_own(tmp_path):
    code = """
        import sys, time
        from numba_rl.config import Config
        from numba_rl.errors import UserError
        from numba_rl.rundir import RunDir
        print("ready", flush=True)
        while time.time() < float(sys.argv[2]): pass
        try:
            run = RunDir.create(None, Config(), name="same", parent=sys.argv[1])
            print(run.path.name)
        except UserError as error:
            print("refused", error)
        try:
            RunDir.create(sys.argv[1] + "/explicit", Config())
            print("explicit")
            time.sleep(1)
        except UserError as error:
            print("refused")
    """
    start = time.time() + 3
    processes = [python(code, tmp_path, start) for _ in range(6)]
    lines = [process.communicate(timeout=180)[0].split("\n") for process in processes]
    assert sorted(line[1] for line in lines) == ["same", *(f"same-{n}" for n in range(2, 7))]
    assert sorted(line[2] for line in lines) == ["explicit", *["refused"] * 5]


def test_the_lock_goes_with_a_killed_process(tmp_path):
    process = python(
        """
        import sys, time
        from numba_rl.config import Config
        from numba_rl.rundir import RunDir
        run = RunDir.create(sys.argv[1], Config())
        run.metrics.write_text("step")
        print("ready", flush=True)
        time.sleep(60)
        """,
        tmp_path / "run",
    )
    assert process.stdout.readline() == "ready\n"
    with pytest.raises(UserError, match=f"in use by process {process.pid}"):
        RunDir.open(tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / ".latest.safetensors.1.tmp").write_bytes(b"half")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert rundir.status(tmp_path / "run") == "killed"
    with RunDir.open(tmp_path / "run") as run:
        assert not list(run.checkpoints.iterdir()), "half-written files of the killed process are removed"


def test_a_resume_is_noted_as_one_more_segment(tmp_path):
    path = with_results(tmp_path / "run")
    with RunDir.open(path) as run:
        assert run.segment == 0
        run.begin(["rltrain", "resume"])
        assert (run.segment, run.meta()["status"]) == (1, "running")
        run.finish("interrupted", "SIGTERM")
    meta = rundir.read_meta(path)
    assert (meta["status"], meta["reason"]) == ("interrupted", "SIGTERM")
    assert [segment["command"][1] for segment in meta["segments"]] == ["train", "resume"]


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt("SIGINT"), "interrupted"), (ValueError("two\nlines"), "failed")])
def test_how_a_run_ended_is_noted(tmp_path, error, status):
    with pytest.raises(type(error)), make(tmp_path / "run") as run:
        run.metrics.write_text("step\n")
        raise error
    meta = rundir.read_meta(run.path)
    assert meta["status"] == status
    assert "\n" not in meta["reason"]


def test_a_look_at_a_killed_run_leaves_its_status(tmp_path):
    run = make(tmp_path / "run")
    run.metrics.write_text("step\n")
    run.close()
    with pytest.raises(UserError), RunDir.open(run.path):
        raise UserError("no checkpoint")
    with RunDir.open(run.path):
        pass
    assert rundir.status(run.path) == "killed"


@pytest.mark.parametrize("error", [KeyboardInterrupt("SIGINT"), UserError("mend this")])
def test_a_run_that_never_began_leaves_nothing(tmp_path, error):
    with pytest.raises(type(error)), make(tmp_path / "run"):
        raise error
    assert not (tmp_path / "run").exists()


def test_a_run_that_failed_by_itself_is_kept_for_a_look(tmp_path):
    with pytest.raises(ZeroDivisionError), make(tmp_path / "run"):
        raise ZeroDivisionError
    assert rundir.status(tmp_path / "run") == "failed"


def test_what_is_no_run_cannot_be_opened(tmp_path):
    with pytest.raises(UserError, match="no such run directory"):
        RunDir.open(tmp_path / "missing")
    (tmp_path / "meta.json").write_text(json.dumps({"kind": "something else"}))
    with pytest.raises(UserError, match="not a run directory"):
        RunDir.open(tmp_path)
    (tmp_path / "meta.json").write_text("{half")
    with pytest.raises(UserError, match="not readable as a run's meta.json"):
        rundir.read_meta(tmp_path)


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    target = tmp_path / "file"
    atomic_write(target, "old")
    with pytest.raises(ZeroDivisionError), atomic_file(target) as stream:
        stream.write(b"new and only half")
        raise ZeroDivisionError
    assert target.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_kill_while_writing_leaves_a_whole_file(tmp_path):
    """The child rewrites one file with ever other contents; whatever moment it dies in, the file is one of them, whole."""
    target = tmp_path / "file"
    code = """
        import sys
        from numba_rl.files import atomic_write
        number = 0
        while True:
            atomic_write(sys.argv[1], str(number % 10) * 200_000)
            number += 1
            if number == 3:
                print("ready", flush=True)
    """
    for delay in (0.0, 0.003, 0.011, 0.02):
        process = python(code, target)
        assert process.stdout.readline() == "ready\n"
        time.sleep(delay)
        process.kill()
        process.wait()
        text = target.read_text()
        assert len(text) == 200_000
        assert len(set(text)) == 1


def test_a_fallback_is_said_and_kept_with_its_traceback_by_segment(tmp_path, caplog):
    with make(tmp_path / "run") as run:
        run.warn("only this line")
        run.fall_back("there is no GPU")
        run.begin()
        try:
            raise RuntimeError("launch failed")
        except RuntimeError:
            run.fall_back("the GPU failed")
        log = (run.path / "log.txt").read_text()
    lost = "the GPU failed; the run's log.txt has the traceback, `rltrain doctor` looks at this machine, and a resume tries the GPU again"
    assert rundir.fallbacks(run.path) == ["there is no GPU", lost]
    assert rundir.fallbacks(run.path, 0) == ["there is no GPU"] and rundir.fallbacks(run.path, 1) == [lost]
    assert [record.getMessage() for record in caplog.records] == ["only this line", "there is no GPU", lost]
    assert all(f"warning: {line}" in log for line in ("only this line", "there is no GPU", lost))
    assert log.count("Traceback") == 1 and "RuntimeError: launch failed" in log
    assert rundir.fallbacks(with_results(tmp_path / "other")) == []
