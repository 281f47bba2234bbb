"""Tiles of bf16 numbers on their way from global memory through shared memory into tensor cores: PTX that Numba has no names for.

Copies are asynchronous (`cp.async`, 16 bytes each), a thread waits for the groups of copies that it has committed, and `ldmatrix` hands
the words of four tiles of 8 x 8 numbers to the lanes that multiply them. Compute capability 8.0 or newer; there is no twin for the simulator.
"""

from numba_rl.gpu import SIMULATED

CHUNK = 16  # bytes of a copy, eight numbers

if not SIMULATED:
    from llvmlite import ir
    from numba import types

    from numba_rl.gpu import intrinsic

    I32, I64, F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()

    def emit(builder, text, result, constraints, arguments, *, memory=True):
        """Emit one PTX statement; memory: it reads or writes shared memory, and stays where it stands."""
        function = ir.FunctionType(result, [argument.type for argument in arguments])
        code = ir.InlineAsm(function, text, ",".join([*constraints, *["~{memory}"] * memory]), side_effect=memory)
        return builder.call(code, arguments, attrs=("convergent", "nounwind") if memory else ("nounwind",))

    def data(context, builder, signature, arguments, index):
        """The pointer to the first element of an array argument."""
        return context.make_array(signature.args[index])(context, builder, arguments[index]).data

    def shared_address(context, builder, signature, arguments, index, offset):
        """The address within shared memory, as instructions take it, of byte `offset` of an array."""
        pointer = data(context, builder, signature, arguments, index)
        return builder.add(builder.ptrtoint(builder.addrspacecast(pointer, ir.IntType(8).as_pointer(3)), I32), offset)

    def four(builder, address, offset, *, turned):
        """Emit the load of four tiles of 8 x 8 at byte `offset` (a constant) of `address`: lane l names row l % 8 of tile l / 8.

        A word holds two neighbours of a row; turned: of a column, the upper one in the low half.
        """
        text = f"ldmatrix.sync.aligned.m8n8.x4{'.trans' if turned else ''}.shared.b16 {{$0,$1,$2,$3}}, [$4];"
        place = builder.add(address, ir.Constant(I32, offset))
        found = emit(builder, text, ir.LiteralStructType([I32] * 4), ["=r"] * 4 + ["r"], [place])
        return [builder.extract_value(found, i) for i in range(4)]

    @intrinsic
    def copy(typingctx, staged, at, source, index, size):
        """Copy 16 bytes from element `index` of a uint32 array in global memory to byte `at` of shared memory; size 0: zeros instead."""

        def codegen(context, builder, signature, arguments):
            target = shared_address(context, builder, signature, arguments, 0, arguments[1])
            offset = builder.mul(arguments[3], ir.Constant(I64, 4))
            origin = builder.add(builder.ptrtoint(data(context, builder, signature, arguments, 2), I64), offset)
            emit(builder, "cp.async.cg.shared.global [$0], [$1], 16, $2;", ir.VoidType(), ["r", "l", "r"], [target, origin, arguments[4]])
            return context.get_dummy_value()

        return types.void(staged, types.int32, source, types.int64, types.int32), codegen

    def _statement(text):
        def statement(typingctx):
            def codegen(context, builder, signature, arguments):
                emit(builder, text, ir.VoidType(), [], [])
                return context.get_dummy_value()

            return types.void(), codegen

        return intrinsic(statement)

    commit = _statement("cp.async.commit_group;")

    def make_wait(left: int):
        """A device function that waits until at most `left` of the thread's groups of copies are still on their way."""
        return _statement(f"cp.async.wait_group {left};")
