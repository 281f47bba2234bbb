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

Launch: a block of 4 warps for each 128 outputs (x) of each group (y). Cost: memory-bound, 4 M F bytes; x is read for each 128 outputs,
from the L2 but for the first time; the parts are 8 G F I bytes in the L2. M G must be below 2^36.
F and I must be multiples of 8, I at most 64, compute capability 8.0 or newer; there is no twin for the simulator.
"""

from functools import lru_cache

from numba import uint64
from numpy import float32

from numba_rl.gpu import SIMULATED, blocks_for, cuda, int32, int64, jit, uint32
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
    thread = uint32(cuda.threadIdx.x)
    warp = uint32(thread // uint32(LANES))
    lane = uint32(thread % uint32(LANES))
    pairs = uint32(gradient.shape[1])
    first = uint32(2 * pairs)
    rows = uint32(gradient.shape[0])
    groups = uint32(parts.shape[0])
    group = uint32(cuda.blockIdx.y)
    column = uint32(cuda.blockIdx.x * BLOCK_OUTPUTS)
    steps = uint32(uint32(rows + (STEP - 1)) // uint32(STEP))
    begin = uint32(uint32(steps * group) // groups)
    count = uint32(uint32(steps * group + steps) // groups - begin)
    stop = uint32(min(uint32((begin + count) * STEP), rows))

    if thread < uint32(STAGES * STEP):  # behind the inputs a one and zeros, which no copy overwrites
        start = uint32((thread // uint32(STEP) * STAGE + X_AT + thread % uint32(STEP) * X_PITCH) // uint32(8))
        for word in range(INPUTS // 4, 4 * TILES):
            staged[uint32(start + word)] = int64(ONE) if word == INPUTS // 4 else int64(0)

    # A thread copies one chunk of two rows of gradient and hidden, and one of x.
    own = uint32(column + thread % uint32(ROW_CHUNKS) * 8)
    own_row = uint32(begin * STEP + thread // uint32(ROW_CHUNKS))
    own_stop = stop if own < first else uint32(0)
    own_pair = uint32(uint32(min(own, uint32(first - 8))) // uint32(2))
    own_at = uint32(thread // uint32(ROW_CHUNKS) * OUTPUT_PITCH + thread % uint32(ROW_CHUNKS) * CHUNK)
    x_chunk = uint32(thread % uint32(INPUTS // 8))
    x_place = uint32(thread // uint32(INPUTS // 8))
    x_row = uint32(begin * STEP + x_place)
    x_at = uint32(X_AT + x_place * X_PITCH + x_chunk * CHUNK)
    # Lane l names row l % 8 of the l / 8-th of the four tiles of 8 x 8 that `ldmatrix` takes.
    upper = uint32(lane // uint32(8) % uint32(2))
    right = uint32(lane // uint32(16))
    gradient_at = uint32((lane % uint32(8) + 8 * upper) * OUTPUT_PITCH + (4 * warp + right) * CHUNK)
    inputs_at = uint32(X_AT + (lane % uint32(8) + 8 * right) * X_PITCH + upper * CHUNK)

    sums = cuda.local.array(SUMS, float32)
    for i in range(SUMS):
        sums[i] = float32(0.0)
    ahead = uint32(0)  # the step whose copies begin; the one before the last STAGES - 1 of them is in use
    while ahead < uint32(count + (STAGES - 1)):
        if ahead >= uint32(STAGES - 1):
            wait()
            cuda.syncthreads()  # this step is there for all, and all are done with the one before
        if ahead < count:
            place = uint32(ahead % uint32(STAGES) * STAGE)
            for half in range(2):
                row = uint32(own_row + ahead * STEP + ROWS_AT_ONCE * half)
                index = uint64(uint32(min(row, uint32(stop - 1)))) * uint64(pairs) + uint64(own_pair)
                size = CHUNK if row < own_stop else 0  # of 0 nothing is read, and zeros are written
                at = uint32(place + own_at + ROWS_AT_ONCE * OUTPUT_PITCH * half)
                copy(staged, int32(at), gradient, int64(index), size)
                copy(staged, int32(at + HIDDEN_AT), hidden, int64(index), size)
            if x_place < uint32(STEP):
                row = uint32(x_row + ahead * STEP)
                index = uint64(uint32(min(row, uint32(stop - 1)))) * uint64(INPUTS // 2) + uint64(uint32(x_chunk * 4))
                copy(staged, int32(place + x_at), x, int64(index), CHUNK if row < stop else 0)
        commit()
        converge()
        if ahead >= uint32(STAGES - 1):
            place = uint32(uint32(ahead + 1) % uint32(STAGES) * STAGE)
            add_step(staged, int32(place + gradient_at), int32(place + inputs_at), sums)
        ahead = uint32(ahead + 1)

    g = uint32(lane // uint32(4))
    output = uint32(column + warp * OUTPUTS + lane % uint32(4) * 2)
    # Places within the array as a whole: what follows is a constant away, and no store needs an address of its own.
    at = uint64(uint32(group * first + output)) * uint64(INPUTS) + uint64(g)
    tail = uint64(group) * uint64(partial.shape[1]) + uint64(offset) + uint64(output)
    for n in range(OUTPUTS // 8):
        if uint32(output + 8 * n) < first:
            for c in range(2):
                for i in range(INPUTS // 8):
                    parts[0, 0, at + uint64((8 * n + c) * INPUTS + 8 * i)] = sums[16 * (i // 2) + 4 * n + 2 * (i % 2) + c]
                if g == uint32(0):
                    partial[0, tail + uint64(8 * n + c)] = sums[16 * (INPUTS // 16) + 4 * n + 2 * (INPUTS // 8 % 2) + c]


def total(parts, weight):
    """parts float32 [G, F, I], weight float32 [F, I]. Launch: a block of STRANDS x LANES threads for each LANES weights."""
    sums = cuda.shared.array((STRANDS, LANES), float32)
    thread = uint32(cuda.threadIdx.x)
    lane = uint32(thread % uint32(LANES))
    strand = uint32(thread // uint32(LANES))
    place = uint32(cuda.blockIdx.x * LANES + lane)  # within all weights as one row
    groups = uint32(parts.shape[0])
    inside = place < uint32(weight.shape[0] * weight.shape[1])
    value = float32(0.0)
    if inside:
        found = cuda.local.array(ASKED, float32)
        group = strand
        while group < groups:  # (a step of blockDim keeps the compiler from unrolling: small code starts sooner)
            for k in range(ASKED):  # past the end, the last group is read again: no branch between the reads
                found[k] = parts[uint32(min(uint32(group + k * STRANDS), uint32(groups - 1))), 0, place]
            for k in range(ASKED):
                if uint32(group + k * STRANDS) < groups:
                    value += found[k]
            group = uint32(group + cuda.blockDim.x // uint32(LANES) * ASKED)
    sums[strand, lane] = value
    cuda.syncthreads()
    if strand == uint32(0) and inside:
        value = float32(0.0)
        for other in range(STRANDS):
            value += sums[other, lane]
        weight[0, place] = value


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
    kernels[0][(blocks_for(first, BLOCK_OUTPUTS), groups), THREADS, stream](gradient, hidden, x, parts, partial, offset)
    kernels[1][blocks_for(first * inputs, LANES), LANES * STRANDS, stream](parts, weight)
