"""The guard: what it counts, when it halts and why, the same on the CPU and in the kernel, and read without a torn row."""

import math

import numpy as np
import pytest
import torch
from ptx import arithmetic, compile_ptx

from numba_rl.config import GuardConfig
from numba_rl.gpu import SIMULATED
from numba_rl.kernels import guard as kernel
from numba_rl.trainer.guard import Guard

DEVICE = torch.device("cpu" if SIMULATED else "cuda")


def guards(**settings):
    """One by the kernel, one by the CPU path."""
    config = GuardConfig(**{"collapse_steps": 3, "max_skipped": 4, "q_interval": 5} | settings)
    return Guard(config, DEVICE, simulate=SIMULATED, threads=4), Guard(config, torch.device("cpu"))


def check(guard, loss, norms=(1.0,), values=None, stop=0.0):
    device = guard.device
    given = [torch.tensor(loss, device=device), torch.tensor(norms, device=device)]
    given.append(None if values is None else torch.tensor(values, device=device))
    guard.check(*given, stop=torch.tensor(stop, device=device))
    if device.type == "cuda":
        torch.cuda.synchronize()
    return guard.read()


@pytest.mark.parametrize("which", [0, 1], ids=["kernel", "cpu"])
def test_averages_clips_and_statistics(which):
    guard, rng = guards(loss_clip=10.0)[which], np.random.default_rng(0)
    losses = [1.0, 25.0, -40.0, 2.0, 3.0, 0.5]
    average = norm_average = None
    for update, loss in enumerate(losses, 1):
        values = rng.normal(5.0, 2.0, 37).astype(np.float32)
        norms = rng.uniform(1, 2, 2).astype(np.float32)
        reading = check(guard, loss, norms, values)
        bounded, norm = max(min(loss, 10.0), -10.0), math.hypot(*norms)
        average = bounded if average is None else 0.99 * average + 0.01 * bounded
        norm_average = norm if norm_average is None else 0.99 * norm_average + 0.01 * norm
        assert (reading.updates, reading.skipped, reading.reason, reading.why) == (update, 0, 0, None)
        found = reading.figures
        assert [found[name] for name in kernel.FIGURES[:4]] == pytest.approx([loss, norm, average, norm_average], rel=1e-5)
        if update in (1, 6):
            expected = [values.mean(), values.std(), values.min(), values.max()]
        assert [found[name] for name in kernel.FIGURES[4:]] == pytest.approx(expected, rel=1e-4), "kept until they are due again"
    assert reading.clipped == 2
    assert guard.halted.item() == 0


@pytest.mark.parametrize("which", [0, 1], ids=["kernel", "cpu"])
@pytest.mark.parametrize("bad", [{"loss": math.nan}, {"loss": math.inf}, {"norms": (1.0, math.nan)}, {"norms": (math.inf,)}])
def test_updates_that_are_not_finite_are_counted_and_halt_when_there_are_too_many(which, bad):
    guard = guards()[which]
    for _ in range(3):
        check(guard, **{"loss": 1.0} | bad)
    reading = check(guard, 1.0)
    assert (reading.skipped, reading.skipped_in_a_row, reading.reason) == (3, 0, kernel.NONE)
    assert reading.figures["loss_average"] == 1.0, "what was skipped is not averaged"
    for _ in range(4):
        assert guard.halted.item() == 0
        reading = check(guard, **{"loss": 1.0} | bad)
    assert (reading.skipped, reading.reason, guard.halted.item()) == (7, kernel.BROKEN, 1)
    assert reading.why == "4 updates in a row had to be skipped"


@pytest.mark.parametrize("which", [0, 1], ids=["kernel", "cpu"])
def test_a_gradient_that_collapses_halts(which):
    guard = guards()[which]
    for norm in (1e-8, 1e-8, 1.0, 1e-8, 1e-8):
        reading = check(guard, 1.0, (norm,))
    assert (reading.collapsed_in_a_row, reading.reason) == (2, kernel.NONE)
    reading = check(guard, 1.0, (0.0,))
    assert reading.reason == kernel.COLLAPSED
    assert "guard.collapse_norm for 3 updates" in reading.why


@pytest.mark.parametrize("which", [0, 1], ids=["kernel", "cpu"])
@pytest.mark.parametrize("value", [2e6, -2e6, math.inf, math.nan])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_values_that_diverge_halt_when_they_are_looked_at(which, value):
    guard = guards()[which]
    check(guard, 1.0, values=[1.0, 2.0])
    for _ in range(4):
        assert check(guard, 1.0, values=[value, value]).reason == kernel.NONE, "not due yet"
    reading = check(guard, 1.0, values=[value, value])
    assert reading.reason == kernel.DIVERGED and "values diverged" in reading.why


@pytest.mark.parametrize("which", [0, 1], ids=["kernel", "cpu"])
def test_an_update_that_was_not_to_be_made_is_not_judged(which):
    guard = guards()[which]
    check(guard, 1.0)
    assert check(guard, math.nan, stop=1.0).updates == 1
    assert check(guard, 2.0).updates == 2


def test_a_restored_guard_goes_on():
    first, second = guards()[1], guards()[1]
    for loss in (1.0, 2.0, math.nan, math.nan):
        check(first, loss)
    second.load(first.state())
    assert str(check(second, math.nan)) == str(check(first, math.nan))
    second.reset()
    assert second.read().updates == 0
    disabled = guards(enabled=False)[1]
    assert check(disabled, math.nan).updates == 0


def test_a_row_that_is_being_written_is_not_read():
    guard = guards()[1]
    check(guard, 1.0)
    check(guard, 2.0)
    guard.record[1, kernel.JUDGED] = 3  # the third update has written its counts, but not yet its number
    guard.figures[1, 0] = 9.0
    assert (guard.read().updates, guard.read().figures["loss"]) == (2, 2.0)


@pytest.mark.parametrize("capability", [(7, 5)])
def test_the_kernel_compiles_keeps_its_checks_and_computes_in_float32(capability):
    source = """
    from numba_rl.kernels.guard import guard_kernel
    f, l = array(f32), array(i64)
    KERNELS = {"guard": (guard_kernel(128), (f, f, f, i64, f, f, l, l, f, f, array(f32, 2), array(i64, 2)))}
    """
    ptx = compile_ptx(source, capability)["guard"]
    assert not arithmetic(ptx, "f64")
    assert "membar.sys" in ptx or "fence" in ptx
    assert "0f7F800000" in ptx, "the checks for infinity and NaN"
