"""Pairs of bfloat16 in one uint32, the form in which kernels see bf16 tensors (`tensor.view(torch.int32)`).

Numba has no bf16 arrays, so a row of 2 C bf16 numbers is passed as C uint32, the even column in the low half.
"""

import numpy as np

from numba_rl.gpu import SIMULATED, cuda, device, float32, int64, intrinsic, uint32

if SIMULATED:

    @cuda.jit(device=True)
    def low(pair):
        """The even column of a pair, as float32."""
        return np.uint32((int(pair) << 16) & 0xFFFFFFFF).view(np.float32)

    @cuda.jit(device=True)
    def high(pair):
        """The odd column of a pair, as float32."""
        return np.uint32(int(pair) & 0xFFFF0000).view(np.float32)

    @cuda.jit(device=True)
    def pack(even, odd):
        """Two float32 rounded to nearest even bf16, as a pair."""
        halves = [int(np.float32(value).view(np.uint32)) for value in (even, odd)]
        rounded = [((half + 0x7FFF + ((half >> 16) & 1)) >> 16) & 0xFFFF for half in halves]
        return np.uint32(rounded[0] | (rounded[1] << 16))

    @cuda.jit(device=True)
    def pack_word(word):
        """The two float32 of a 64-bit word, the even column in its low half, rounded to nearest even bf16, as a pair."""
        halves = [np.uint32((int(word) >> shift) & 0xFFFFFFFF).view(np.float32) for shift in (0, 32)]
        return pack(halves[0], halves[1])

else:
    from llvmlite import ir

    @intrinsic
    def _as_float(typingctx, word):
        def codegen(context, builder, signature, arguments):
            return builder.bitcast(arguments[0], ir.FloatType())

        return float32(uint32), codegen

    @intrinsic
    def _round_pair(typingctx, even, odd):
        def codegen(context, builder, signature, arguments):
            kind = ir.FunctionType(ir.IntType(32), [ir.FloatType()] * 2)
            instruction = ir.InlineAsm(kind, "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", side_effect=False)
            return builder.call(instruction, arguments)

        return float32_pair_signature, codegen

    float32_pair_signature = uint32(float32, float32)

    @device
    def low(pair):
        """The even column of a pair, as float32."""
        return _as_float(uint32(uint32(pair) << uint32(16)))

    @device
    def high(pair):
        """The odd column of a pair, as float32."""
        return _as_float(uint32(uint32(pair) & uint32(0xFFFF0000)))

    @device
    def pack(even, odd):
        """Two float32 rounded to nearest even bf16, as a pair (compute capability 8.0 or newer)."""
        return _round_pair(float32(even), float32(odd))

    @device
    def pack_word(word):
        """The two float32 of a 64-bit word, the even column in its low half, rounded to nearest even bf16, as a pair (see `pack`)."""
        return _round_pair(_as_float(uint32(word)), _as_float(uint32(word >> int64(32))))
