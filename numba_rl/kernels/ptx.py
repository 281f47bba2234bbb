"""Instructions that Numba has no name for, as inline PTX, and what the simulator runs in their place.

Named barriers let a few warps of a block wait for each other while the others work on. The simulator has one barrier for
all threads, so there a role must pass the barriers of the others too: `others_sync` stands for them and is nothing on a GPU.
With RLTRAIN_WHOLE_BARRIERS=1 a GPU does as the simulator: compute-sanitizer's racecheck reports races that are none where a part of a
block passes a named barrier (profiles/racecheck.py shows it), and nothing else changes.
Tensor-core instructions and the shortcuts around them have no twin: what is built on them has one (see kernels.mma).
"""

from numba import float64, uint64

from numba_rl.gpu import SIMULATED, cuda, device, float32, int32, intrinsic, uint32
from numba_rl.kernel_cache import WHOLE_BARRIERS

if SIMULATED:
    import threading

    import numpy as np

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

    @cuda.jit(device=True)
    def converge():
        """Bring the lanes of a warp together again, after branches that only some of them took."""

    @cuda.jit(device=True)
    def half_pair(low, high):
        """Two float32 rounded to fp16, the first in the low half."""
        return np.array([low, high], np.float16).view(np.uint32)[0]

    @cuda.jit(device=True)
    def post(array, index, value):
        """array[index] = value, one int64 that other blocks see whole and soon."""
        array[index] = value

    @cuda.jit(device=True)
    def read_post(array, index):
        """array[index] as it is now, an int64 that other blocks may be writing."""
        return array[index]

    @cuda.jit(device=True)
    def prices_of(prices, bar):
        """(open, high, low, close) of a bar, asked for at this place."""
        return prices[bar, 0], prices[bar, 1], prices[bar, 2], prices[bar, 3]

else:
    from llvmlite import ir
    from numba import types

    _I32, _I64, _F32, _F64 = ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.DoubleType()
    _LLVM = {uint32: _I32, int32: _I32, uint64: _I64, types.int64: _I64, float32: _F32, float64: _F64}
    _LETTER = {uint32: "r", int32: "r", uint64: "l", types.int64: "l", float32: "f", float64: "d"}

    def _assembly(builder, text, results, arguments, kinds, *, volatile=False, whole_warp=False):
        """Emit one PTX statement; `results` and `kinds` are Numba types, and a list of LLVM values comes back.

        volatile: it orders memory; whole_warp: it must not move into or out of branches.
        """
        shape = _LLVM[results[0]] if results else ir.VoidType()
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

    _SYNC, _ARRIVE = ("bar.sync 0;", "bar.sync 0;") if WHOLE_BARRIERS else ("bar.sync $0, $1;", "bar.arrive $0, $1;")

    @intrinsic
    def _some_sync(typingctx, barrier, threads):
        return _instruction(_SYNC, types.void, int32, int32, volatile=True)

    @intrinsic
    def _some_arrive(typingctx, barrier, threads):
        return _instruction(_ARRIVE, types.void, int32, int32, volatile=True)

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
        if WHOLE_BARRIERS:
            cuda.syncthreads()

    @device
    def converge():
        """Bring the lanes of a warp together again, after branches that only some of them took."""
        cuda.syncwarp()

    @intrinsic
    def _wait_for_previous(typingctx):
        return _instruction("griddepcontrol.wait; griddepcontrol.launch_dependents;", types.void, volatile=True)

    @device
    def wait_for_previous():
        """Until the kernel before this one has ended; then the next one may be set up (kernels.early; compute capability 9.0 or newer)."""
        _wait_for_previous()

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

    def half_pair_into(builder, low, high, relu, kind="f16"):
        """Emit two float32 made fp16 (or kind "bf16") in one word; relu: negative ones 0, NaN kept (compute capability 8.0 or newer)."""
        text = f"cvt.rn{'.relu' if relu else ''}.{kind}x2.f32 $0, $2, $1;"
        return _assembly(builder, text, [uint32], [low, high], [float32] * 2)[0]

    def multiply_into(builder, a, word, c):
        """Emit c + A B of a 16 x 16 fp16 tile A (four words) and a 16 x 8 tile B (two words in 64 bits), c four float32 (8.0 or newer)."""
        halves = [builder.trunc(word, _I32), builder.trunc(builder.lshr(word, ir.Constant(_I64, 32)), _I32)]
        return multiply_words_into(builder, a, halves, c, "f16")

    def multiply_words_into(builder, a, b, c, kind):
        """The same with B as two words, and of numbers of `kind` "f16" or "bf16"."""
        text = f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {{$0,$1,$2,$3}},{{$4,$5,$6,$7}},{{$8,$9}},{{$10,$11,$12,$13}};"
        kinds = (*[uint32] * 6, *[float32] * 4)
        return _assembly(builder, text, [float32] * 4, [*a, *b, *c], kinds, whole_warp=True)

    def load_into(builder, address, kind, count):
        """Emit the load of `count` (2 or 4) consecutive uint32 or float32 from an address (uint64) in global memory.

        It stays where it stands: it is not moved out of loops, though it reads the same again.
        """
        places = ",".join(f"${index}" for index in range(count))
        text = f"ld.global.v{count}.{'f32' if kind == float32 else 'u32'} {{{places}}}, [${count}];"
        return _assembly(builder, text, [kind] * count, [address], [uint64], volatile=True)

    def some_sync_into(builder, barrier, threads):
        """Emit `some_sync` of constants."""
        text = _SYNC.replace("$0", str(barrier)).replace("$1", str(threads))
        _assembly(builder, text, [], [], [], volatile=True)

    def load_four_into(builder, address):
        """Emit the load of four uint32 from an address (uint64) in global memory, read-only for the whole kernel."""
        return _assembly(builder, "ld.global.nc.v4.u32 {$0,$1,$2,$3}, [$4];", [uint32] * 4, [address], [uint64])

    def _address(context, builder, array, arguments):
        """Of element arguments[1] of the C-contiguous array arguments[0]."""
        base = context.make_array(array)(context, builder, arguments[0]).data
        return builder.ptrtoint(builder.gep(base, [arguments[1]]), _I64)

    @intrinsic
    def post(typingctx, array, index, value):
        """array[index] = value, one int64 that other blocks see whole and soon."""

        def codegen(context, builder, signature, arguments):
            address = _address(context, builder, array, arguments)
            _assembly(builder, "st.relaxed.gpu.global.s64 [$0], $1;", [], [address, arguments[2]], [uint64, types.int64], volatile=True)
            return context.get_dummy_value()

        return types.void(array, types.int64, types.int64), codegen

    @intrinsic
    def read_post(typingctx, array, index):
        """array[index] as it is now, an int64 that other blocks may be writing."""

        def codegen(context, builder, signature, arguments):
            address = _address(context, builder, array, arguments)
            return _assembly(builder, "ld.relaxed.gpu.global.s64 $0, [$1];", [types.int64], [address], [uint64], volatile=True)[0]

        return types.int64(array, types.int64), codegen

    def _load(array, text, result, *, volatile=False):
        """Vector load of consecutive elements of a C-contiguous array from element `index` on, read-only for the whole kernel."""
        signature = types.UniTuple(result[0], len(result))(array, types.int64)

        def codegen(context, builder, signature, arguments):
            address = _address(context, builder, array, arguments)
            found = _assembly(builder, text, result, [address], [uint64], volatile=volatile)
            return context.make_tuple(builder, signature.return_type, found)

        return signature, codegen

    @intrinsic
    def _load_two(typingctx, array, index):
        """Elements index and index + 1 of a float64 array in global memory, likewise; index a multiple of 2. It stays where it stands."""
        return _load(array, "ld.global.nc.v2.f64 {$0,$1}, [$2];", [float64] * 2, volatile=True)

    @device
    def prices_of(prices, bar):
        """(open, high, low, close) of a bar, asked for at this place, not where they are first used."""
        first = _load_two(prices, types.int64(bar) * 4)
        second = _load_two(prices, types.int64(bar) * 4 + 2)
        return first[0], first[1], second[0], second[1]

    @device
    def largest(value):
        """Maximum of a float32 over the warp by one instruction: floats that compare as integers (NaN the largest)."""
        key = float_bits(value)
        key = largest_int(key ^ ((key >> int32(31)) & int32(0x7FFFFFFF)))
        return bits_float(key ^ ((key >> int32(31)) & int32(0x7FFFFFFF)))
