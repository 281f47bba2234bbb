"""The fused rollout of a Q-network compiles: no calls, next to no local memory, float64 for money alone, bf16 on tensor cores.

What was compiled, fragments and barriers included, is then played by tests/ptx_machine.py and held to the game and the choices.
"""

import re

import numpy as np
import pytest
from ptx import MONEY, assembled, check_float64, check_inlined, compile_ptx
from ptx_machine import Machine
from reference.rollout import Game, actor, check_game
from reference.rollout_q import OUTPUTS, check_choices, played
from rules.driver import random_bars

from numba_rl.config import Config, EpisodeConfig, RewardConfig, TrainConfig
from numba_rl.gpu import most_registers
from numba_rl.kernels.q_layout import as_pairs, packed, q_layout

SOURCE = """
    from numba import typeof
    from numba_rl.config import Config, RewardConfig
    from numba_rl.gpu import jit
    from numba_rl.kernels.q_layout import q_layout
    from numba_rl.kernels.rollout_q import QPlan, q_function
    from numba_rl.kernels.settled import pattern_of
    from numba_rl.kernels.step import Launch
    from numba_rl.rules.parameters import rules_of

    fox = rules_of(Config(reward=RewardConfig(barrier=0.5, diversity=1.0, risk=0.1, shaping="dsr")))
    rules, launch = typeof(fox), typeof(Launch(0, 0, 0, 0, 0, 1.0))
    floats, doubles, integers, longs = array(f32, 2), array(f64, 2), array(i32, 2), array(i64, 2)
    slots = (doubles, doubles, longs, doubles, longs)
    outputs = (array(f32, 3), integers, array(f32, 3), integers, array(i32), integers, floats, array(types.int16, 2), array(i32))
    arguments = (array(u32), array(f32), array(u32, 2), *slots, doubles, *outputs, array(f32), launch, rules)

    def kernel(hidden, head, groups):
        return jit(q_function(QPlan(q_layout(51, hidden, head, 45), groups), pattern_of(fox))), arguments

    KERNELS = {"few": kernel((256, 256), 128, 1), "many": kernel((256, 256), 128, 4), "other": kernel((136,), 72, 2)}
"""
MMA = {"few": 4 * 4 + 4 * 16 + 2 * 16 + 8, "many": 4 * (4 * 4 + 4 * 16 + 2 * 16 + 8), "other": 2 * (3 * 4 + 2 * 12 + 8)}


GROUPS = {"few": 1, "many": 4, "other": 2}
SIZES = {"few": ((256, 256), 128), "many": ((256, 256), 128), "other": ((136,), 72)}
FEATURES = 51
CONFIG = Config(
    reward=RewardConfig(barrier=0.5, diversity=1.0, risk=0.1, shaping="dsr"), episodes=EpisodeConfig(length=3), train=TrainConfig(seed=1)
)
PRICES = random_bars(np.random.default_rng(4), 60, 0.01)


@pytest.fixture(scope="module")
def whole():
    """The smallest kernel with barriers of the whole block alone, as racecheck is shown it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLTRAIN_WHOLE_BARRIERS", "1")
        return compile_ptx(SOURCE + '    KERNELS = {"few": KERNELS["few"]}\n')


@pytest.fixture(scope="module")
def ptx():
    return compile_ptx(SOURCE)


def test_everything_is_inlined_and_stays_in_registers(ptx):
    check_inlined(ptx)


def test_float64_is_for_money_alone(ptx):
    check_float64(ptx, MONEY | {"sqrt.rn.f64"})


def test_the_products_are_bf16_on_tensor_cores_and_loads_are_16_bytes(ptx):
    for name, text in ptx.items():
        assert text.count("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") == MMA[name], name
        # the first words of a launch, and then one for each product of a step
        groups = GROUPS[name]
        assert text.count("ld.global.v4.u32") == 8 + MMA[name] // groups // 2, name
        assert text.count("ld.shared.v4.u32") >= groups * 16 and "cvt.rn.relu.bf16x2.f32" in text, name


def test_nan_is_still_looked_for(ptx):
    for name, text in ptx.items():
        assert re.search(r"setp\.gtu\.f32\s+%p\d+, %f\d+, 0f7F800000", text), name


def test_a_block_can_be_launched_and_next_to_nothing_is_spilled(ptx):
    for name, text in ptx.items():
        most = most_registers(256 + max(32, 16 * GROUPS[name]))
        for capability, spills in (((9, 0), 24), ((8, 6), 400)):
            registers, spilled = assembled(text, capability, most)
            assert registers <= most and spilled <= spills, (name, capability, registers, spilled)


def run(text, name, game, layers, choice):
    """One launch of the compiled kernel on the CPU."""
    layout, groups = q_layout(FEATURES, *SIZES[name], 45), GROUPS[name]
    table = np.zeros((len(PRICES), layout.width), np.float32)
    table[:, :FEATURES] = game.features
    outputs = [getattr(game, output) for output in OUTPUTS]
    arguments = [*packed(layout, layers), as_pairs(table), *game.state(), game.prices, *outputs, choice, game.launch, game.rules]
    blocks, players = -(-game.slots // (16 * groups)), max(32, 16 * groups)
    Machine(text).launch(blocks, 256 + players, arguments)


@pytest.mark.parametrize(("name", "slots", "steps"), [("few", 20, 5), ("many", 70, 4), ("other", 40, 4)])
def test_what_was_compiled_plays_the_game_and_makes_the_choices(ptx, name, slots, steps):
    features = np.random.default_rng(9).standard_normal((len(PRICES), FEATURES)).astype(np.float32)
    found, truth = (Game(CONFIG, PRICES, features, slots, steps) for _ in range(2))
    hidden, head = SIZES[name]
    layers = actor(FEATURES, (*hidden, head), scale=3.0)
    choice, before = np.array([0.4, 0.2, 300.0, 0.0], np.float32), played(found)
    run(ptx[name], name, found, layers, choice)
    check_game(found, truth)
    explored, ties = check_choices(found, truth, layers, choice, before, 0.03)
    assert 0.1 < explored / (slots * steps) < 0.6 and ties <= 0.05 * slots * steps
    assert (found.ends > 0).sum() >= slots and not found.status.any() and len(np.unique(found.actions)) > 20
    layers[0][3, 1] = np.nan
    run(ptx[name], name, found, layers, choice)
    assert (found.status == 1).all() and (found.actions == 19).all()


def test_with_barriers_of_the_whole_block_the_same_game_is_played(ptx, whole):
    assert set(re.findall(r"bar\.(?:sync|arrive)\s+(\S+?)[,;]", whole["few"])) == {"0"}
    features = np.random.default_rng(9).standard_normal((len(PRICES), FEATURES)).astype(np.float32)
    games = [Game(CONFIG, PRICES, features, 20, 5) for _ in range(2)]
    layers = actor(FEATURES, (256, 256, 128), scale=3.0)
    for text, game in zip((ptx["few"], whole["few"]), games, strict=True):
        run(text, "few", game, layers, np.array([0.4, 0.2, 300.0, 0.0], np.float32))
    for output in OUTPUTS:
        np.testing.assert_array_equal(*(getattr(game, output) for game in games), err_msg=output)
