"""Backward of ReLU and the gradients of a layer's weights and biases in one pass, where nothing below wants the masked gradient.

weight = (gradient where hidden > 0)^T x, and its column sums, which are the gradient of the biases. gradient, hidden uint32
[M, F / 2]: bf16 pairs, F outputs of a ReLU layer, read once; x uint32 [M, I / 2]: bf16 pairs, the layer's input; parts float32
[G, F, I]: sums over each of G groups of neighbouring rows; partial float32 [G' >= G, B]: row g gets the column sums of group g, from
column `offset` on, rows from G on are left alone. A second kernel adds the parts in order into weight float32 [F, I] (no atomics).

Products are bf16 with float32 sums on tensor cores (mma.sync m16n8k16): a warp has 32 outputs and all inputs, whose sums stay in
registers, and samples are what is summed over. Rows come to shared memory by asynchronous copies, 16 at a time and three times 16 on
their way, since the compiler waits for all loads of a loop at once; `ldmatrix` turns them, so that neighbouring samples share a word.
Rows of shared memory are an odd number of 16 bytes apart, which keeps its banks apart. Behind the inputs x has a column of ones there,
for the column sums.

Launch: a block of 4 warps for each 128 outputs of each group. Cost: memory-bound, 4 M F bytes; x is read for each 128 outputs, from the
L2 but for the first time; the parts are 8 G F I bytes in the L2.
F and I must be multiples of 8, I at most 64, compute capability 8.0 or newer; there is no twin for the simulator.
"""

from functools import lru_cache

from numpy import float32

from numba_rl.gpu import SIMULATED, blocks_for, cuda, int64, jit
from numba_rl.kernel_cache import cached
from numba_rl.kernels.ptx import converge
from numba_rl.kernels.settled import specialised
from numba_rl.kernels.staging import CHUNK

LANES = 32
WARPS = 4
THREADS = WARPS * LANES
OUTPUTS = 32  # of a warp
BLOCK_OUTPUTS = WARPS * OUTPUTS
MOST_INPUTS = 64
STEP = 16  # rows of a product
STAGES = 4  # steps in shared memory, one of them in use; a power of two
RESIDENT = 2  # blocks of a multiprocessor
FEWEST_ROWS = 512  # of a group: its parts, written and read, are about a fifth of what it reads
STRANDS = 8  # threads that share a sum of the parts
ASKED = 4  # parts that a thread has on their way

ROW_CHUNKS = BLOCK_OUTPUTS // 8
OUTPUT_PITCH = CHUNK * (ROW_CHUNKS + 1)  # bytes from row to row of gradient and hidden
ROWS_AT_ONCE = THREADS // ROW_CHUNKS
HIDDEN_AT = STEP * OUTPUT_PITCH
X_AT = 2 * HIDDEN_AT
ONE = 0x3F80  # in bf16


def fits(first: int, inputs: int) -> bool:
    """Whether a layer of these sizes can go through the kernel here."""
    return not SIMULATED and first % 8 == 0 and inputs % 8 == 0 and 0 < inputs <= MOST_INPUTS


def groups_for(rows: int, first: int, multiprocessors: int) -> int:
    """Groups of rows: all blocks run at once, and a group has rows enough for its parts to be a small share of the traffic."""
    return max(1, min(RESIDENT * multiprocessors // blocks_for(first, BLOCK_OUTPUTS), rows // FEWEST_ROWS))


def pays(rows: int, first: int, multiprocessors: int) -> bool:
    """Whether there are rows enough for every multiprocessor to have a block."""
    return groups_for(rows, first, multiprocessors) * blocks_for(first, BLOCK_OUTPUTS) >= multiprocessors


def tiles_of(inputs: int) -> int:
    """Tiles of 16 inputs, the column of ones included."""
    return inputs // 16 + 1


def pitch_of(inputs: int) -> int:
    """Bytes from row to row of x."""
    return CHUNK * (2 * tiles_of(inputs) + 1)


# Bound anew for each number of inputs (see `functions`).
INPUTS = TILES = SUMS = X_PITCH = STAGE = STAGED = 8
add_step = None


def first_gradient(gradient, hidden, x, parts, partial, offset):
    staged = cuda.shared.array(STAGED, int64, 16)
    thread = cuda.threadIdx.x
    warp = thread // LANES
    lane = thread % LANES
    pairs = gradient.shape[1]
    first = 2 * pairs
    rows = gradient.shape[0]
    blocks = (first + BLOCK_OUTPUTS - 1) // BLOCK_OUTPUTS
    group = cuda.blockIdx.x // blocks
    column = cuda.blockIdx.x % blocks * BLOCK_OUTPUTS
    steps = (rows + STEP - 1) // STEP
    begin = steps * group // parts.shape[0]
    count = steps * (group + 1) // parts.shape[0] - begin
    stop = min((begin + count) * STEP, rows)

    if thread < STAGES * STEP:  # behind the inputs a one and zeros, which no copy overwrites
        start = (thread // STEP * STAGE + X_AT + thread % STEP * X_PITCH) // 8
        for word in range(INPUTS // 4, 4 * TILES):
            staged[start + word] = int64(ONE) if word == INPUTS // 4 else int64(0)

    # A thread copies one chunk of two rows of gradient and hidden, and one of x.
    own = column + thread % ROW_CHUNKS * 8
    own_row = thread // ROW_CHUNKS
    own_stop = stop if own < first else 0
    own_at = own_row * OUTPUT_PITCH + thread % ROW_CHUNKS * CHUNK
    x_chunk = thread % (INPUTS // 8)
    x_row = thread // (INPUTS // 8)
    x_at = X_AT + x_row * X_PITCH + x_chunk * CHUNK
    # Lane l names row l % 8 of the l / 8-th of the four tiles of 8 x 8 that `ldmatrix` takes.
    upper = lane // 8 % 2
    right = lane // 16
    gradient_at = (lane % 8 + 8 * upper) * OUTPUT_PITCH + (4 * warp + right) * CHUNK
    inputs_at = X_AT + (lane % 8 + 8 * right) * X_PITCH + upper * CHUNK

    sums = cuda.local.array(SUMS, float32)
    for i in range(SUMS):
        sums[i] = float32(0.0)
    for step in range(1 - STAGES, count):
        if step >= 0:
            wait()
            cuda.syncthreads()  # this step is there for all, and all are done with the one before
        ahead = step + STAGES - 1
        if ahead < count:
            place = ahead % STAGES * STAGE
            for half in range(2):
                row = (begin + ahead) * STEP + own_row + ROWS_AT_ONCE * half
                index = min(row, stop - 1) * pairs + min(own, first - 8) // 2
                size = CHUNK if row < own_stop else 0  # of 0 nothing is read, and zeros are written
                at = place + own_at + ROWS_AT_ONCE * OUTPUT_PITCH * half
                copy(staged, at, gradient, index, size)
                copy(staged, at + HIDDEN_AT, hidden, index, size)
            if x_row < STEP:
                row = (begin + ahead) * STEP + x_row
                index = min(row, stop - 1) * (INPUTS // 2) + x_chunk * 4
                copy(staged, place + x_at, x, index, CHUNK if row < stop else 0)
        commit()
        converge()
        if step >= 0:
            place = step % STAGES * STAGE
            add_step(staged, place + gradient_at, place + inputs_at, sums)

    g = lane // 4
    column += warp * OUTPUTS + lane % 4 * 2
    for n in range(OUTPUTS // 8):
        output = column + 8 * n
        if output < first:
            for c in range(2):
                for i in range(INPUTS // 8):
                    parts[group, output + c, 8 * i + g] = sums[16 * (i // 2) + 4 * n + 2 * (i % 2) + c]
                if g == 0:
                    partial[group, offset + output + c] = sums[16 * (INPUTS // 16) + 4 * n + 2 * (INPUTS // 8 % 2) + c]


def total(parts, weight):
    """parts float32 [G, F, I], weight float32 [F, I]. Launch: a block of STRANDS x LANES threads for each LANES weights."""
    sums = cuda.shared.array((STRANDS, LANES), float32)
    lane = cuda.threadIdx.x % LANES
    strand = cuda.threadIdx.x // LANES
    place = cuda.blockIdx.x * LANES + lane
    groups = parts.shape[0]
    output = place // weight.shape[1]
    column = place % weight.shape[1]
    value = float32(0.0)
    if output < weight.shape[0]:
        found = cuda.local.array(ASKED, float32)
        for group in range(strand, groups, ASKED * STRANDS):
            for k in range(ASKED):  # past the end, the last group is read again: no branch between the reads
                found[k] = parts[min(group + k * STRANDS, groups - 1), output, column]
            for k in range(ASKED):
                if group + k * STRANDS < groups:
                    value += found[k]
    sums[strand, lane] = value
    cuda.syncthreads()
    if strand == 0 and output < weight.shape[0]:
        value = float32(0.0)
        for other in range(STRANDS):
            value += sums[other, lane]
        weight[output, column] = value


if not SIMULATED:
    from llvmlite import ir
    from numba import types

    from numba_rl.gpu import intrinsic
    from numba_rl.kernels.ptx import multiply_words_into
    from numba_rl.kernels.staging import F32, I32, I64, commit, copy, data, emit, four, make_wait, shared_address

    SIGNS = 0xBB99  # makes `prmt` fill each half of a word with its sign
    wait = make_wait(STAGES - 2)

    def masked(builder, word, output):
        """A pair with the halves zeroed whose output is zero. Outputs of a ReLU are +0 or positive: a zero half was cut."""
        number = ir.Constant(I32, 0x7FFF7FFF)
        signs = builder.add(builder.and_(output, number), number)  # the sign bit of a half is set unless it was zero
        text = f"prmt.b32 $0, $1, 0, {SIGNS:#x};"
        return builder.and_(word, emit(builder, text, I32, ["=r", "r"], [signs], memory=False))

    def make_step(inputs):
        """add_step(staged, gradient_at, inputs_at, sums): add the products of a step, whose rows lie in shared memory.

        gradient_at, inputs_at int32: bytes of the rows that a lane names; sums float32 [16 x tiles] (local), changed.
        """

        @intrinsic
        def step(typingctx, staged, gradient_at, inputs_at, sums):
            def codegen(context, builder, signature, arguments):
                gradient, x = (shared_address(context, builder, signature, arguments, 0, arguments[i]) for i in (1, 2))
                base = data(context, builder, signature, arguments, 3)

                def turned(address, offset):
                    return four(builder, address, offset, turned=True)

                outputs = []  # of 8 columns each: rows 0 to 7, rows 8 to 15
                for pair in range(OUTPUTS // 16):
                    words, kept = (turned(gradient, start + 2 * CHUNK * pair) for start in (0, HIDDEN_AT))
                    words = [masked(builder, word, output) for word, output in zip(words, kept, strict=True)]
                    outputs += [words[:2], words[2:]]
                for tile in range(tiles_of(inputs)):
                    a = turned(x, 2 * CHUNK * tile)
                    for n, b in enumerate(outputs):
                        places = [
                            builder.gep(base, [ir.Constant(I64, 16 * tile + 4 * n + c)], inbounds=True, source_etype=F32) for c in range(4)
                        ]
                        before = [builder.load(place, typ=F32) for place in places]
                        for value, place in zip(multiply_words_into(builder, a, b, before, "bf16"), places, strict=True):
                            builder.store(value, place)
                return context.get_dummy_value()

            return types.void(staged, types.int32, types.int32, sums), codegen

        return step


def functions(inputs: int):
    """The plain functions of both kernels, (first_gradient, total), the first under a name of its own."""
    tiles, pitch, stage = tiles_of(inputs), pitch_of(inputs), X_AT + STEP * pitch_of(inputs)
    names = {
        "INPUTS": inputs, "TILES": tiles, "SUMS": 16 * tiles, "X_PITCH": pitch, "STAGE": stage, "STAGED": STAGES * stage // 8,
        "add_step": make_step(inputs),
    }  # fmt: skip
    return specialised(first_gradient, names, inputs), total


@lru_cache
def make_kernels(inputs: int):
    """(first_gradient, total) kernels for so many inputs."""
    products, add = functions(inputs)
    return cached(jit(products)), cached(jit(add))


def launch(kernels, gradient, hidden, x, parts, partial, offset, weight, stream=0):
    """Both kernels, arguments (views of arrays) as above; weight float32 [F, I]."""
    groups, first, inputs = parts.shape
    kernels[0][groups * blocks_for(first, BLOCK_OUTPUTS), THREADS, stream](gradient, hidden, x, parts, partial, offset)
    kernels[1][blocks_for(first * inputs, LANES), LANES * STRANDS, stream](parts, weight)
