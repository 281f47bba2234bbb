"""The replay kernels compile for the three architectures, keep their NaN checks, and use float64 and memory only as meant."""

import re

import pytest
from ptx import arithmetic, check_assembles, check_code, compile_ptx

SOURCE = """
    from numba_rl.kernels import replay_insert, replay_sample, replay_update
    from numba_rl.kernels.replay_layout import Layout

    layout = Layout(100_000, 54, 64, 64)
    tree = (array(f32), array(f64), array(f64), array(f32))
    batch = (array(i64, 2), *[array(i32)] * 4, array(i64), array(f32), array(f32), array(i64), array(f32))
    ranks = (array(i64), array(f64), array(i64))
    sample = (*tree, array(i64, 2), array(i64), array(f64), array(i64), *ranks, u32, i64, f64, *batch)
    sample_bf16 = (*sample[:-10], array(u32, 2), *batch[1:])
    sums = (array(f32), array(f64), array(f32), array(f64), array(f32))
    KERNELS = {
        "sample": (replay_sample.sample_kernel(layout, 0, 8), sample),
        "sample_rank": (replay_sample.sample_kernel(layout, 1, 8), sample),
        "sample_uniform": (replay_sample.sample_kernel(layout, 2, 8), sample),
        "sample_bf16": (replay_sample.sample_kernel(layout, 0, 8, True), sample_bf16),
        "sample_many": (replay_sample.sample_kernel(layout, 0, 32, ahead=4), sample),
        "sample_rounds": (replay_sample.sample_kernel(layout, 0, 16, ahead=5, rounds=4), sample),
        "sample_early": (replay_sample.sample_kernel(layout, 0, 8, early=True), sample),
        "update_early": (
            replay_update.update_kernel(layout, 16, True),
            (array(i64), array(f32), i64, array(i64), array(f32), array(f32), array(f32), array(i32), *sums[1:], array(i64), array(f64)),
        ),
        "locate": (replay_sample.locate_kernel(layout, 8), (array(f32), array(f64), array(f64), array(f64), i64, array(i64))),
        "update": (
            replay_update.update_kernel(layout, 16),
            (array(i64), array(f32), i64, array(i64), array(f32), array(f32), array(f32), array(i32), *sums[1:], array(i64), array(f64)),
        ),
        "peak": (replay_update.peak_kernel(layout), (array(f32), array(f32))),
        "rows": (
            replay_insert.rows_kernel(layout, 8),
            (array(i32, 2), array(i32, 2), *[array(i32)] * 4, array(f32), boolean, i64, i64, array(i32, 2), array(f32), array(f32),
             array(i64), array(f64)),
        ),
        "range": (replay_insert.range_kernel(layout, 8), (i64, i64, *sums, array(i64), array(i32), i64)),
    }
"""

# float64 on purpose: running sums and masses. No division, no root, nothing slow.
SUMS = {"add.f64", "sub.f64", "mul.f64", "fma.rn.f64", "max.f64", "neg.f64"}
MEANT = {
    "sample": SUMS,
    "sample_rank": SUMS,
    "sample_uniform": SUMS,
    "sample_bf16": SUMS,
    "sample_early": SUMS,
    "sample_many": SUMS,
    "sample_rounds": SUMS,
    "update_early": SUMS,
    "locate": SUMS,
    "update": SUMS,
    "range": SUMS,
    "peak": set(),
    "rows": set(),
}


EARLY = ("sample_early", "update_early")


@pytest.fixture(scope="module")
def ptx():
    return compile_ptx(SOURCE)


def test_the_same_code_is_good_for_the_oldest_architecture(ptx):
    check_assembles({name: text for name, text in ptx.items() if name not in ("sample_bf16", *EARLY)}, (7, 5))


def test_a_kernel_that_may_be_set_up_early_waits_before_it_touches_memory(ptx):
    for name, text in ptx.items():
        assert ("griddepcontrol" in text) == (name in EARLY), name
    for name in EARLY:
        waits = ptx[name].index("griddepcontrol.wait;")
        assert waits < ptx[name].index("griddepcontrol.launch_dependents;"), name
        assert not re.search(r"(?:ld|st|atom|red)\.(?:global|shared)", ptx[name][:waits]), name


def test_the_code_of_draws_and_updates_is_small(ptx):
    check_code(ptx, {"sample_early": 32_000, "sample_bf16": 32_000, "update_early": 25_000})


def test_every_kernel_compiles_without_local_memory(ptx):
    assert ptx.keys() == MEANT.keys()
    for name, text in ptx.items():
        assert ".entry" in text and ".local" not in text, name


def test_states_are_rounded_in_pairs_and_only_where_that_is_asked_for(ptx):
    for name, text in ptx.items():
        assert ("cvt.rn.bf16x2.f32" in text) == (name == "sample_bf16"), name


def test_float64_is_only_where_it_is_meant(ptx):
    for name, text in ptx.items():
        assert arithmetic(text, "f64") <= MEANT[name], name


def test_nan_and_infinity_are_still_looked_for(ptx):
    # outside, stale, NaN and infinite are counted apart: a check that the compiler had dropped would take its counter along
    assert len(re.findall(r"(?:atom|red)\.global\.add\.u64", ptx["update"])) >= 4
    # |x| compared unordered with infinity is how NaN is told, equal to infinity is the other one
    for name in ("update", "rows"):
        assert re.search(r"setp\.gtu\.f32 .*0f7F800000", ptx[name]) and re.search(r"setp\.eq\.f32 .*0f7F800000", ptx[name]), name


def test_weights_are_posted_whole_and_need_neither_a_fence_nor_an_atomic_of_the_whole_card(ptx):
    for name, text in ptx.items():
        if name.startswith("sample"):
            assert text.count("st.relaxed.gpu.global.s64") == 1 and "ld.relaxed.gpu.global.s64" in text, name
            assert not re.search(r"membar|fence|(?:atom|red)\.global", text), name
