"""The first signal asks for a stop, the second stops at once, and before training has begun the first one is enough."""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from numba_rl.signals import Interrupted, StopRequest

CHILD = """
    import sys, time
    from numba_rl.signals import StopRequest
    with StopRequest() as stop:
        if sys.argv[1] == "training":
            stop.requested
        print("ready", flush=True)
        while True:
            time.sleep(0.01)
            if sys.argv[1] == "training" and stop.requested and len(sys.argv) == 2:
                print("asked by", stop.requested)
                sys.exit(0)
"""


def child(*arguments):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_seen_by_the_loop(number):
    process = child("training")
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, f"asked by {number.name}\n")
    assert err == f"{number.name}: saving and stopping; once more stops at once\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_second_signal_stops_at_once(number, code):
    process = child("training", "deaf")
    process.send_signal(number)
    assert process.stderr.readline().startswith(number.name)  # the first has been handled
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (code, "stopped at once; the last checkpoint is intact\n")


def test_before_the_first_poll_a_signal_raises_at_once():
    with pytest.raises(Interrupted) as caught, StopRequest():
        os.kill(os.getpid(), signal.SIGTERM)
    assert (caught.value.name, caught.value.exit_code) == ("SIGTERM", 143)
    assert isinstance(caught.value, KeyboardInterrupt)


LOSES = """
    import ctypes, os, signal, sys, time
    from numba_rl.signals import Interrupted, StopRequest, raise_on_signals
    def press():
        os.kill(os.getpid(), signal.{name})
        for _ in range(1000):
            pass
    class Finalized:
        def __del__(self):
            press()
    raise_on_signals()
    try:
        {enter}
        {lose}
        end = time.monotonic() + 20
        while time.monotonic() < end:
            time.sleep(0.01)
    except Interrupted as interrupt:
        print(interrupt, "arrived")
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("enter", ["pass", "StopRequest().__enter__()"])
@pytest.mark.parametrize("lose", ["ctypes.CFUNCTYPE(None)(press)()", "Finalized()"])
def test_an_interrupt_that_a_callback_drops_arrives_all_the_same(name, enter, lose):
    code = textwrap.dedent(LOSES).format(name=name, enter=enter, lose=lose)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == (f"{name} arrived\n", "")


def test_a_lost_interrupt_that_the_loop_has_seen_is_not_the_second_one():
    code = """
        import ctypes, os, signal, time
        from numba_rl.signals import StopRequest
        def press():
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):
                pass
        with StopRequest() as stop:
            ctypes.CFUNCTYPE(None)(press)()
            assert stop.requested == "SIGINT"
            time.sleep(0.5)
        print("saved")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("saved\n", "", 0)


def test_other_lost_exceptions_go_to_the_hook_of_before(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)

    class Broken:
        def __del__(self):
            raise ValueError("mine")

    with StopRequest():
        Broken()
    assert [str(lost.exc_value) for lost in seen] == ["mine"]
    Broken()
    assert len(seen) == 2


def test_the_handlers_of_before_come_back():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with StopRequest():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_another_thread_can_ask_and_be_asked():
    seen = []

    def work():
        with StopRequest() as stop:
            stop.request("SIGTERM")
            seen.append(stop.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == ["SIGTERM"]
