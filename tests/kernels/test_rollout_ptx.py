"""The fused rollouts compile for the oldest and the newest architecture: no calls, no local memory, float64 for money, tensor cores used."""

import re

import pytest
from ptx import MONEY, assembled, check_float64, check_inlined, compile_ptx

from numba_rl.gpu import most_registers

SOURCE = """
    from numba import typeof
    from numba_rl.config import Config, RewardConfig
    from numba_rl.gpu import jit
    from numba_rl.kernels.mma import pack_kernel, tiles_of
    from numba_rl.kernels.rollout_block import block_function, block_of
    from numba_rl.kernels.rollout_warp import warp_function
    from numba_rl.kernels.settled import pattern_of
    from numba_rl.kernels.step import Launch
    from numba_rl.rules.parameters import rules_of

    fox = rules_of(Config(reward=RewardConfig(barrier=0.5, diversity=1.0, risk=0.1, shaping="dsr")))
    rules, launch, u64, i16 = typeof(fox), typeof(Launch(0, 0, 0, 0, 0, 1.0)), types.uint64, types.int16
    floats, doubles, integers, longs = array(f32, 2), array(f64, 2), array(i32, 2), array(i64, 2)
    slots = (doubles, doubles, longs, doubles, longs)
    outputs = (array(f32, 3), integers, array(f32, 3), integers, array(i32), integers, floats, floats, array(i16, 2), array(i32))
    layers = (floats, array(f32)) * 3
    block = (*layers, *slots, doubles, floats, *outputs, launch, rules)
    warp = (array(u64), array(f32), array(u32, 2), *slots, doubles, *outputs, launch, rules, i64)
    KERNELS = {
        "block": (jit(block_function(block_of(51, (128, 64), capability=Device.compute_capability), pattern_of(fox))), block),
    }
    if Device.compute_capability >= (8, 0):
        KERNELS["warp"] = (jit(warp_function(tiles_of(51, (128, 64)), pattern_of(fox))), warp)
        KERNELS["pack"] = (pack_kernel, (*layers, *[i64] * 10, array(u64), array(f32)))
"""


@pytest.fixture(scope="module", params=[(7, 5), (9, 0)], ids=lambda cc: f"sm_{cc[0]}{cc[1]}")
def ptx(request):
    return compile_ptx(SOURCE, request.param)


def test_everything_is_inlined_and_stays_in_registers(ptx):
    assert len(ptx) in (1, 3)
    check_inlined(ptx)


def test_blocks_can_be_launched_and_little_is_spilled(ptx):
    most = most_registers(384)  # 256 of the network, a warp or two for each of the other roles
    for capability in [(8, 6), (9, 0)] if "warp" in ptx else [(7, 5)]:
        registers, spilled = assembled(ptx["block"], capability, most)
        assert registers <= most == 168 and spilled <= {(9, 0): 0, (8, 6): 80, (7, 5): 120}[capability], capability


def test_float64_is_for_money_alone(ptx):
    for name, text in ptx.items():
        check_float64({name: text}, frozenset() if name == "pack" else MONEY | {"rcp.rn.f64", "sqrt.rn.f64"})


def test_roles_have_barriers_of_their_own_and_activations_come_four_at_a_time(ptx):
    assert len(re.findall(r"bar\.sync\s+%", ptx["block"])) >= 4 and "bar.arrive" in ptx["block"]
    assert ptx["block"].count("ld.shared.v4") >= 19
    assert ("redux.sync" in ptx["block"]) == ("warp" in ptx)


def test_with_barriers_of_the_whole_block_there_are_no_others(monkeypatch):
    source = """
        from numba_rl.gpu import jit
        from numba_rl.kernels.ptx import others_sync, some_arrive, some_sync

        @jit
        def kernel(out):
            some_sync(1, 64)
            some_arrive(2, 96)
            others_sync()
            out[0] = 1

        KERNELS = {"kernel": (kernel, (array(i32),))}
    """
    found = []
    for whole in ("0", "1"):
        monkeypatch.setenv("RLTRAIN_WHOLE_BARRIERS", whole)
        found.append([word for word, _ in re.findall(r"(bar\.\w+)\s+(\S+?)[,;]", compile_ptx(source)["kernel"])])
    assert found == [["bar.sync", "bar.arrive"], ["bar.sync"] * 3]


def test_the_warp_form_multiplies_on_tensor_cores(ptx):
    if "warp" in ptx:
        assert ptx["warp"].count("mma.sync") == 16 * 4 + 8 * 8 + 6 * 4
        assert "cvt.rn.f16x2" in ptx["pack"]


def test_nan_checks_of_the_draw_are_still_there(ptx):
    for name in ("block", "warp"):
        if name in ptx:
            assert re.search(r"setp\.\w*\.f32", ptx[name]) and "0f7F800000" in ptx[name]
