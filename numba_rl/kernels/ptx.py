"""Instructions that Numba has no name for, as inline PTX, and what the simulator runs in their place.

Named barriers let a few warps of a block wait for each other while the others work on. The simulator has one barrier for
all threads, so there a role must pass the barriers of the others too: `others_sync` stands for them and is nothing on a GPU.
Tensor-core and conversion instructions have no twin: what is built on them has one (see kernels.mma).
"""

from numba import float64, uint64

from numba_rl.gpu import SIMULATED, cuda, device, float32, int32, uint32

if SIMULATED:
    import threading

    @cuda.jit(device=True)
    def some_sync(barrier, threads):
        """Wait until `threads` threads (whole warps) came to this barrier; 0 is the block's own."""
        threading.current_thread().syncthreads()

    @cuda.jit(device=True)
    def some_arrive(barrier, threads):
        """Come to a barrier, but do not wait for the others."""
        threading.current_thread().syncthreads()

    @cuda.jit(device=True)
    def others_sync():
        """Stands where other roles of the block pass a barrier of their own."""
        threading.current_thread().syncthreads()

else:
    from llvmlite import ir
    from numba import types
    from numba.cuda.extending import intrinsic

    _I32, _I64, _F32, _F64 = ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.DoubleType()
    _LLVM = {uint32: _I32, int32: _I32, uint64: _I64, float32: _F32, float64: _F64}
    _LETTER = {uint32: "r", int32: "r", uint64: "l", float32: "f", float64: "d"}

    def _assembly(builder, text, results, arguments, kinds, *, volatile=False, whole_warp=False):
        """Emit one PTX statement; `results` and `kinds` are Numba types, and a list of LLVM values comes back.

        volatile: it orders memory; whole_warp: it must not move into or out of branches.
        """
        shape = ir.VoidType() if not results else _LLVM[results[0]]
        if len(results) > 1:
            shape = ir.LiteralStructType([_LLVM[kind] for kind in results])
        constraints = [f"={_LETTER[kind]}" for kind in results] + [_LETTER[kind] for kind in kinds] + ["~{memory}"] * volatile
        function = ir.FunctionType(shape, [_LLVM[kind] for kind in kinds])
        call = builder.call(
            ir.InlineAsm(function, text, ",".join(constraints), side_effect=volatile),
            arguments,
            attrs=("convergent", "nounwind") if volatile or whole_warp else ("nounwind",),
        )
        return [call] if len(results) == 1 else [builder.extract_value(call, index) for index in range(len(results))]

    def _instruction(text, result, *kinds, volatile=False, whole_warp=False):
        """Code generator of an intrinsic with one result, or with a tuple of equal results (result a list), or none."""
        results = result if isinstance(result, list) else [] if result == types.void else [result]
        returns = types.UniTuple(results[0], len(results)) if isinstance(result, list) else result

        def codegen(context, builder, signature, arguments):
            found = _assembly(builder, text, results, arguments, kinds, volatile=volatile, whole_warp=whole_warp)
            if not results:
                return context.get_dummy_value()
            return context.make_tuple(builder, signature.return_type, found) if isinstance(result, list) else found[0]

        return returns(*kinds), codegen

    @intrinsic
    def _some_sync(typingctx, barrier, threads):
        return _instruction("bar.sync $0, $1;", types.void, int32, int32, volatile=True)

    @intrinsic
    def _some_arrive(typingctx, barrier, threads):
        return _instruction("bar.arrive $0, $1;", types.void, int32, int32, volatile=True)

    @device
    def some_sync(barrier, threads):
        """Wait until `threads` threads (whole warps) came to this barrier; 0 is the block's own."""
        _some_sync(int32(barrier), int32(threads))

    @device
    def some_arrive(barrier, threads):
        """Come to a barrier, but do not wait for the others."""
        _some_arrive(int32(barrier), int32(threads))

    @device
    def others_sync():
        """Stands where other roles of the block pass a barrier of their own."""

    @intrinsic
    def largest_int(typingctx, value):
        """Maximum of an int32 over the warp, in every lane (compute capability 8.0 or newer)."""
        return _instruction("redux.sync.max.s32 $0, $1, 0xffffffff;", int32, int32, whole_warp=True)

    @intrinsic
    def float_bits(typingctx, value):
        """The bits of a float32, as int32."""

        def codegen(context, builder, signature, arguments):
            return builder.bitcast(arguments[0], _I32)

        return int32(float32), codegen

    @intrinsic
    def bits_float(typingctx, value):
        """The float32 of 32 bits."""

        def codegen(context, builder, signature, arguments):
            return builder.bitcast(arguments[0], _F32)

        return float32(int32), codegen

    @intrinsic
    def exp2_fast(typingctx, value):
        """2 ** value, within 2 units in the last place."""
        return _instruction("ex2.approx.ftz.f32 $0, $1;", float32, float32)

    @intrinsic
    def log2_fast(typingctx, value):
        """log2(value), absolute error below 2e-7 around 1."""
        return _instruction("lg2.approx.ftz.f32 $0, $1;", float32, float32)

    @intrinsic
    def half_pair(typingctx, low, high):
        """Two float32 rounded to fp16, the first in the low half."""
        return _instruction("cvt.rn.f16x2.f32 $0, $2, $1;", uint32, float32, float32)

    @intrinsic
    def half_pair_relu(typingctx, low, high):
        """Two float32 made fp16, negative ones 0, NaN kept (compute capability 8.0 or newer)."""
        return _instruction("cvt.rn.relu.f16x2.f32 $0, $2, $1;", uint32, float32, float32)

    @intrinsic
    def multiply(typingctx, a0, a1, a2, a3, b, c0, c1, c2, c3):
        """c + A B of a 16 x 16 fp16 tile A (a0..a3) and a 16 x 8 tile B (two words in one uint64), c float32 (8.0 or newer)."""
        kinds = (*[uint32] * 6, *[float32] * 4)

        def codegen(context, builder, signature, arguments):
            low = builder.trunc(arguments[4], _I32)
            high = builder.trunc(builder.lshr(arguments[4], ir.Constant(_I64, 32)), _I32)
            text = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {$0,$1,$2,$3},{$4,$5,$6,$7},{$8,$9},{$10,$11,$12,$13};"
            found = _assembly(builder, text, [float32] * 4, [*arguments[:4], low, high, *arguments[5:]], kinds, whole_warp=True)
            return context.make_tuple(builder, signature.return_type, found)

        return types.UniTuple(float32, 4)(*[uint32] * 4, uint64, *[float32] * 4), codegen

    def _load(array, text, result):
        """Vector load of consecutive elements of a C-contiguous array, from element `index` on, read-only for the whole kernel."""
        signature = types.UniTuple(result[0], len(result))(array, types.int64)

        def codegen(context, builder, signature, arguments):
            from numba.core import cgutils

            base = context.make_array(array)(context, builder, arguments[0]).data
            address = builder.ptrtoint(cgutils.gep_inbounds(builder, base, arguments[1]), _I64)
            return context.make_tuple(builder, signature.return_type, _assembly(builder, text, result, [address], [uint64]))

        return signature, codegen

    @intrinsic
    def load_four(typingctx, array, index):
        """Four consecutive uint32 of a flat array in global memory; the first must lie on 16 bytes."""
        return _load(array, "ld.global.nc.v4.u32 {$0,$1,$2,$3}, [$4];", [uint32] * 4)

    @intrinsic
    def load_two(typingctx, array, index):
        """Two consecutive float64 of a flat array in global memory; the first must lie on 16 bytes."""
        return _load(array, "ld.global.nc.v2.f64 {$0,$1}, [$2];", [float64] * 2)

    @device
    def largest(value):
        """Maximum of a float32 over the warp by one instruction: floats that compare as integers (NaN the largest)."""
        key = float_bits(value)
        key = largest_int(key ^ ((key >> int32(31)) & int32(0x7FFFFFFF)))
        return bits_float(key ^ ((key >> int32(31)) & int32(0x7FFFFFFF)))
