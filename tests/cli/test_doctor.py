"""`rltrain doctor` on this machine, and what it says of others."""

import pytest

from rltrain.doctor import _cards, _path

SEES = {"torch": True, "numba": True, "build": "13.0"}
BLIND = {"torch": False, "numba": False, "build": "13.0"}
CARD = ["NVIDIA H200, 143771 MiB (143000 MiB free), compute capability 9.0, driver 580.95"]


def test_it_names_the_path_and_leaves_no_fault(rltrain):
    done = rltrain("doctor", env={"NUMBA_ENABLE_CUDASIM": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert lines["path"] == "cpu: the CUDA simulator is on; unset NUMBA_ENABLE_CUDASIM to use a GPU"
    assert {"python", "packages", "cpu", "memory", "gpu", "simulator", "cache"} <= set(lines)


def test_a_cache_that_cannot_be_written_is_a_fault(rltrain, tmp_path):
    (tmp_path / "file").write_text("")
    done = rltrain("doctor", env={"RLTRAIN_CACHE_DIR": str(tmp_path / "file"), "NUMBA_ENABLE_CUDASIM": "1"})
    assert done.returncode == 2
    assert "cannot be written (Not a directory): set RLTRAIN_CACHE_DIR" in done.stdout


@pytest.mark.parametrize(
    ("probe", "simulated", "cards", "device", "why"),
    [
        (SEES, False, CARD, "cuda", "both see the GPU"),
        (SEES, True, CARD, "cpu", "unset NUMBA_ENABLE_CUDASIM"),
        ({"error": "no answer within 120 s"}, False, CARD, "cpu", "no answer within 120 s"),
        ({**BLIND, "build": None}, False, [], "cpu", "a build without CUDA"),
        ({**BLIND, "build": None, "numba": True}, False, CARD, "cpu", "install the CUDA build to use the GPU"),
        (BLIND, False, [], "cpu", "no NVIDIA GPU, or no driver"),
        (BLIND, False, CARD, "cpu", "torch does not see the GPU"),
        ({**SEES, "numba": False}, False, CARD, "cpu", "numba-cuda does not see the GPU"),
    ],
)
def test_which_path_and_why(probe, simulated, cards, device, why):
    chosen, said = _path(probe, simulated, cards)
    assert chosen == device
    assert why in said


def test_cards_are_read_from_nvidia_smi(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771 MiB, 143000 MiB, 9.0, 580.95'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert _cards() == CARD
    program.write_text("#!/bin/sh\necho 'has failed because it could not communicate with the driver'\nexit 9\n")
    assert _cards() == []
