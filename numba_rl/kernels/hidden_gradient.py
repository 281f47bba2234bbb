"""Backward through a layer and the ReLU below it in one launch, for batches so small that two launches are mostly waiting.

gradient = (above W) where hidden > 0, else 0, and its column sums, which are the gradient of the lower layer's biases. above uint32
[M, K / 2], weight uint32 [K, N / 2], hidden and gradient uint32 [M, N / 2]: bf16 pairs; partial float32 [G >= ceil(M / 32), B]: row r
gets the column sums of rows 32 r and on, from column `offset` on; other rows are left alone. Sums are float32, those of the columns
before the gradient is rounded to bf16, and in a fixed order.

Products are bf16 on tensor cores (mma.sync m16n8k16). A block makes 32 x 32 numbers: all that it multiplies comes to shared memory by
asynchronous copies at once, then each of its four warps makes 16 x 16 of them. Rows of shared memory are an odd number of 16 bytes
apart, which keeps its banks apart. Cost: latency; every block reads 32 rows of `above` and 32 columns of the weights from the L2.
K and N must be multiples of 8, K at most 304, compute capability 8.0 or newer; there is no twin for the simulator, where a product and
kernels.relu_grad do the same.
"""

from functools import lru_cache

from numpy import float32

from numba_rl.gpu import SIMULATED, blocks_for, cuda, int32, int64, jit, uint32
from numba_rl.kernel_cache import cached
from numba_rl.kernels.bf16 import pack
from numba_rl.kernels.ptx import converge
from numba_rl.kernels.settled import specialised
from numba_rl.kernels.staging import CHUNK

SIDE = 32  # rows and columns of a block
LANES, WARPS = 32, 4
THREADS = LANES * WARPS
TILE = SIDE // 2  # rows and columns of a warp
SIDE_CHUNKS = SIDE // 8
WEIGHT_PITCH = CHUNK * (SIDE_CHUNKS + 1)  # bytes from row to row
MOST_INNER = 304
WAVES = 2  # blocks a multiprocessor: beyond them the larger tiles of a library read less


def fits(inner: int, columns: int) -> bool:
    """Whether a product over `inner` numbers, of so many columns, can be made here."""
    return not SIMULATED and inner % 8 == 0 and columns % 8 == 0 and 0 < inner <= MOST_INNER


def pays(rows: int, columns: int, multiprocessors: int) -> bool:
    """Whether that is faster than a library's product and kernels.relu_grad (on an H200, over 256 numbers and 256 columns, in us: 256 rows
    3.0 and 4.7, 1,024 rows 4.7 and 5.0, 2,048 rows 7.2 and 5.3)."""
    return blocks_for(rows, SIDE) * blocks_for(columns, SIDE) <= WAVES * multiprocessors


def steps_of(inner: int) -> int:
    """Products of 16 that sum over `inner` numbers."""
    return -(-inner // 16)


# Bound anew for each number of inner numbers (see `function`).
INNER = INNER_CHUNKS = PITCH = WEIGHT_AT = STAGED = 8
multiply = None


def hidden_gradient(above, weight, hidden, gradient, partial, offset):
    staged = cuda.shared.array(STAGED, int64, 16)
    column_sums = cuda.shared.array((TILE, SIDE), float32)
    thread = uint32(cuda.threadIdx.x)
    warp = uint32(thread // uint32(LANES))
    lane = uint32(thread % uint32(LANES))
    rows = uint32(above.shape[0])
    pairs = uint32(weight.shape[1])
    columns = uint32(uint32(2) * pairs)
    first_row = uint32(cuda.blockIdx.y * SIDE)
    first_column = uint32(cuda.blockIdx.x * SIDE)

    # Beyond the edges nothing is read, and zeros are written. (Steps of blockDim, which is THREADS, keep the compiler from unrolling: small
    # code starts sooner.)
    place = thread
    while place < uint32(SIDE * INNER_CHUNKS):
        r = uint32(place // uint32(INNER_CHUNKS))
        chunk = uint32(place % uint32(INNER_CHUNKS))
        index = uint32(uint32(min(uint32(first_row + r), uint32(rows - 1))) * uint32(INNER // 2) + min(chunk, uint32(INNER // 8 - 1)) * 4)
        size = CHUNK if uint32(first_row + r) < rows and chunk < uint32(INNER // 8) else 0
        copy(staged, int32(r * PITCH + chunk * CHUNK), above, index, size)
        place = uint32(place + cuda.blockDim.x)
    place = thread
    while place < uint32(8 * INNER_CHUNKS * SIDE_CHUNKS):
        r = uint32(place // uint32(SIDE_CHUNKS))
        chunk = uint32(place % uint32(SIDE_CHUNKS))
        column = uint32(first_column + 8 * chunk)
        index = uint32(uint32(min(r, uint32(INNER - 1))) * pairs + min(column, uint32(columns - 8)) // 2)
        size = CHUNK if r < uint32(INNER) and column < columns else 0
        copy(staged, int32(WEIGHT_AT + r * WEIGHT_PITCH + chunk * CHUNK), weight, index, size)
        place = uint32(place + cuda.blockDim.x)
    commit()

    # Lane l holds numbers 2 (l % 4) and the next of rows l / 4 and l / 4 + 8 of each of two neighbouring tiles of 8 columns.
    top = uint32(warp // uint32(2) * TILE)
    left = uint32(warp % uint32(2) * TILE)
    row = uint32(first_row + top + lane // uint32(4))
    pair = uint32((first_column + left) // uint32(2) + lane % uint32(4))
    outputs = cuda.local.array(4, uint32)
    for half in range(2):
        for tile in range(2):
            outputs[2 * half + tile] = hidden[uint32(min(uint32(row + 8 * half), uint32(rows - 1))), uint32(min(uint32(pair + 4 * tile), uint32(pairs - 1)))]
    sums = cuda.local.array(8, float32)
    arrived()
    cuda.syncthreads()
    converge()
    # Lane l names row l % 8 of the l / 8-th of the four tiles of 8 x 8 that `ldmatrix` takes: left above, left below, right above, right below.
    lower = uint32(lane % uint32(8) + lane // uint32(8) % uint32(2) * 8)
    right = uint32(lane // uint32(16) * CHUNK)
    multiply(staged, int32((top + lower) * PITCH + right), int32(WEIGHT_AT + lower * WEIGHT_PITCH + left * 2 + right), sums)

    for tile in range(2):
        even_sum = float32(0.0)
        odd_sum = float32(0.0)
        for half in range(2):
            output = outputs[2 * half + tile]
            even = sums[4 * tile + 2 * half]
            odd = sums[4 * tile + 2 * half + 1]
            # Outputs of a ReLU are +0, -0 or positive: a zero half was cut.
            if output & uint32(0x7FFF) == uint32(0):
                even = float32(0.0)
            if output & uint32(0x7FFF0000) == uint32(0):
                odd = float32(0.0)
            if uint32(row + 8 * half) < rows and uint32(pair + 4 * tile) < pairs:
                gradient[uint32(row + 8 * half), uint32(pair + 4 * tile)] = pack(even, odd)
            even_sum += even
            odd_sum += odd
        column = uint32(left + 8 * tile + lane % uint32(4) * 2)
        strand = uint32(warp // uint32(2) * 8 + lane // uint32(4))
        column_sums[strand, column] = even_sum
        column_sums[strand, uint32(column + 1)] = odd_sum
    cuda.syncthreads()
    if thread < uint32(SIDE) and uint32(first_column + thread) < columns:
        total = float32(0.0)
        for half in range(TILE):
            total += column_sums[half, thread]
        partial[uint32(cuda.blockIdx.y), uint32(offset + first_column + thread)] = total


if not SIMULATED:
    from llvmlite import ir
    from numba import types

    from numba_rl.gpu import intrinsic
    from numba_rl.kernels.ptx import multiply_words_into
    from numba_rl.kernels.staging import F32, I64, commit, copy, data, four, make_wait, shared_address

    arrived = make_wait(0)

    def make_multiply(inner):
        """multiply(staged, above_at, weight_at, sums): the 16 x 16 numbers of a warp from what lies in shared memory.

        above_at, weight_at int32: bytes of the rows that a lane names; sums float32 [8] (local): written, four of each tile of 8 columns.
        """

        @intrinsic
        def multiply(typingctx, staged, above_at, weight_at, sums):
            def codegen(context, builder, signature, arguments):
                above, weight = (shared_address(context, builder, signature, arguments, 0, arguments[i]) for i in (1, 2))
                base = data(context, builder, signature, arguments, 3)
                found = [[ir.Constant(F32, 0.0)] * 4 for _ in range(2)]
                for step in range(steps_of(inner)):
                    a = four(builder, above, 2 * CHUNK * step, turned=False)
                    b = four(builder, weight, 16 * WEIGHT_PITCH * step, turned=True)
                    found = [multiply_words_into(builder, a, b[2 * tile : 2 * tile + 2], found[tile], "bf16") for tile in range(2)]
                for index, value in enumerate([*found[0], *found[1]]):
                    builder.store(value, builder.gep(base, [ir.Constant(I64, index)], inbounds=True, source_etype=F32))
                return context.get_dummy_value()

            return types.void(staged, types.int32, types.int32, sums), codegen

        return multiply


def function(inner: int):
    """The plain function of the kernel for products over so many numbers, under a name of its own."""
    steps = steps_of(inner)
    pitch = CHUNK * (2 * steps + 1)
    weight_at = SIDE * pitch
    names = {
        "INNER": inner, "INNER_CHUNKS": 2 * steps, "PITCH": pitch, "WEIGHT_AT": weight_at, "STAGED": (weight_at + 16 * steps * WEIGHT_PITCH) // 8,
        "multiply": make_multiply(inner),
    }  # fmt: skip
    return specialised(hidden_gradient, names, inner)


@lru_cache
def make_kernel(inner: int):
    """The kernel for products over so many numbers."""
    return cached(jit(function(inner)))


def launch(kernel, above, weight, hidden, gradient, partial, offset, stream=0):
    """Fill `gradient` and its columns of `partial` (views of arrays, as above)."""
    grid = blocks_for(2 * weight.shape[1], SIDE), blocks_for(above.shape[0], SIDE)
    kernel[grid, THREADS, stream](above, weight, hidden, gradient, partial, offset)
