"""The kernels of the written-out PPO update as PTX: no float64, no local memory, the NaN check still there."""

from ptx import arithmetic, assembled, check_assembles, check_code, compile_ptx

from numba_rl.gpu import most_registers

SOURCE = """
from numba_rl.kernels import adam, minibatch, polyak, ppo_loss, relu_grad
from numba_rl.kernels.value_head import make_value_head
pick, rows, states, moments = minibatch.make_kernels()
norm, step = adam.make_kernels()
pairs, column, table, parts, quads = array(u32, 2), array(f32), array(f32, 2), array(f32, 3), array(types.uint64, 2)
KERNELS = {
    "pick": (pick, (array(i32), column, column, column, i64, array(i64), i64, array(i64), array(i32), column, column, column)),
    "rows": (rows, (quads, array(i32), table, array(i64), i64, quads)),
    "states": (states, (quads, array(i32), table, i64, i64, quads)),
    "moments": (moments, (column, i64, array(i64), i64, parts)),
    "relu_grad": (relu_grad.make_relu_grad(), (quads, quads, table, i64)),
    "ppo_loss": (ppo_loss.make_ppo_loss(45, 32), (table, column, pairs, column, array(i32), column, column, column, parts, i64, column, pairs,
                 pairs, column, table, i64, i64, table)),
    "norm": (norm, (column, table, column, i64, i64, column, table, column, column)),
    "adam": (step, (column, column, column, column, column, i64, i64, column, column, column, f32, column, column, column, array(i64),
             i64, column, array(u32))),
    "polyak": (polyak.polyak_kernel(), (column, column, f32, column, array(u32))),
    "value_head": (make_value_head(16), (quads, column, i64, column)),
}
"""


SIZES = {
    "pick": 5_000, "rows": 5_000, "states": 5_000, "moments": 10_500, "relu_grad": 5_000, "ppo_loss": 24_000, "norm": 6_500, "adam": 12_000,
    "value_head": 5_000,
}  # fmt: skip


def test_ptx():
    found = compile_ptx(SOURCE)
    check_assembles(found, (8, 0))
    check_code(found, SIZES)
    for name, ptx in found.items():
        assert not arithmetic(ptx, "f64"), (name, arithmetic(ptx, "f64"))
        assert ".local" not in ptx, f"{name} spills to local memory"
        if name == "ppo_loss":
            registers, spilled = assembled(ptx, (9, 0), most_registers(2 * 256))
            assert registers <= 128 and spilled <= 110, (registers, spilled)
