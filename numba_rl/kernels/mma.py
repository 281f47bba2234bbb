"""An actor of two hidden layers on tensor cores: a warp evaluates 16 states at once and draws their actions.

Products are fp16 with float32 sums (mma.sync m16n8k16). Activations never leave the registers: two neighbouring C tiles of a
layer are the A fragment of the next. Weights lie in shared memory as B fragments, packed anew from the float32 parameters at
every launch; the market's features are packed once.

A row of the table of features is `width` halves: the market features in their order, zeros, and in the last four places
equity - 1, share, spread and 0 of the account (equity lies near 1: less 1, it keeps its digits). Lane q of four has the q-th
quarter of a row, so that it reads 16 bytes at a time; the first layer's weights are packed in that order. Action
q x 2 tiles + 2 n + c is column 2 q + c of the n-th tile of logits, so that a lane has neighbouring actions; the last layer is
scaled by log2(e), for powers of two.

The error of a log-probability against float32: 2e-4 in the mean, below 5e-3 for weights of usual size.
Shared memory: 256 bytes a tile of 8 x 16 weights, 39 KB for 54-128-64-45. Compute capability 8.0 or newer.
"""

import math
from typing import NamedTuple

from numba import uint64

from numba_rl.gpu import FULL_MASK, SIMULATED, blocks_for, cuda, device, float32, int32, intrinsic, jit, uint32
from numba_rl.kernel_cache import cached
from numba_rl.kernels.ptx import half_pair
from numba_rl.kernels.sampling import draw_row
from numba_rl.rules.actions import ACTIONS

LN2 = float32(math.log(2.0))
LOG2E = float32(1.0 / math.log(2.0))
STATIC_SHARED = 48 * 1024


class Tiles(NamedTuple):
    """The tensor-core form of an actor features + 3 - hidden1 - hidden2 - actions."""

    features: int
    hidden1: int
    hidden2: int
    actions: int
    slope: float

    @property
    def width(self) -> int:
        """Halves of a row of the feature table, a multiple of 32."""
        return -(-(self.features + 4) // 32) * 32

    @property
    def inner(self) -> tuple[int, int, int]:
        """Steps of 16 inputs of each layer."""
        return self.width // 16, -(-self.hidden1 // 16), -(-self.hidden2 // 16)

    @property
    def outer(self) -> tuple[int, int, int]:
        """Tiles of 8 outputs of each layer; the hidden ones in pairs."""
        return 2 * self.inner[1], 2 * self.inner[2], -(-self.actions // 8)

    @property
    def starts(self) -> tuple[int, int, int, int]:
        """Where each layer's words start, and their number: a word is one lane's part of an 8 x 16 tile of weights."""
        sizes = [32 * inner * outer for inner, outer in zip(self.inner, self.outer, strict=True)]
        return 0, sizes[0], sizes[0] + sizes[1], sum(sizes)

    @property
    def words(self) -> int:
        """uint64 words of weights."""
        return self.starts[3]

    @property
    def biases(self) -> int:
        """float32 biases, padded as the outputs are."""
        return 8 * sum(self.outer)

    @property
    def fits(self) -> bool:
        """Whether weights and biases fit static shared memory, and activations the registers."""
        return 8 * self.words + 4 * self.biases <= STATIC_SHARED and self.outer[1] <= 16 and self.outer[2] <= 8 and self.width <= 128


def tiles_of(features, hidden, actions=ACTIONS, slope=0.0) -> Tiles | None:
    """The tensor-core form of an actor, or None where it does not fit: two hidden layers, 48 KB of packed weights, up to 124
    features, a second layer of up to 128, 64 actions."""
    if len(hidden) != 2:
        return None
    tiles = Tiles(features, *hidden, actions, slope)
    return tiles if tiles.fits else None


def pack_actor(
    w1, b1, w2, b2, w3, b3, features, hidden1, hidden2, actions, inner1, inner2, inner3, outer1, outer2, outer3, words, biases
):
    """A thread a word, then a bias: weights float32 [out, in] to words uint64 and biases float32."""
    word = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    total1 = 32 * inner1 * outer1
    total2 = total1 + 32 * inner2 * outer2
    total3 = total2 + 32 * inner3 * outer3
    if word < total3:
        local = word
        layer = 1
        inner = inner1
        if word >= total2:
            local -= total2
            layer = 3
            inner = inner3
        elif word >= total1:
            local -= total1
            layer = 2
            inner = inner2
        lane = local % 32
        k = local // 32 % inner
        n = local // (32 * inner)
        g = lane // 4
        q = lane % 4
        packed = uint64(0)
        for h in range(2):
            pair0 = float32(0.0)
            pair1 = float32(0.0)
            for c in range(2):
                value = float32(0.0)
                if layer == 1:
                    column = q * 4 * inner + 4 * k + 2 * h + c
                    if column >= 16 * inner - 4:  # the account's places
                        column += features - (16 * inner - 4)
                    elif column >= features:
                        column = features + 3
                    row = 8 * n + g
                    if row < hidden1 and column < features + 3:
                        value = w1[row, column]
                elif layer == 2:
                    column = 16 * k + 8 * h + 2 * q + c
                    row = 8 * n + g
                    if row < hidden2 and column < hidden1:
                        value = w2[row, column]
                else:
                    column = 16 * k + 8 * h + 2 * q + c
                    row = g // 2 * 2 * outer3 + 2 * n + g % 2
                    if row < actions and column < hidden2:
                        value = w3[row, column] * LOG2E
                if c == 0:
                    pair0 = value
                else:
                    pair1 = value
            packed = packed | (uint64(half_pair(pair0, pair1)) << uint64(32 * h))
        words[word] = packed
        return
    index = word - total3
    if index < 8 * outer1:
        biases[index] = b1[index] + w1[index, features] if index < hidden1 else float32(0.0)  # equity comes less 1
    elif index < 8 * (outer1 + outer2):
        unit = index - 8 * outer1
        biases[index] = b2[unit] if unit < hidden2 else float32(0.0)
    elif index < 8 * (outer1 + outer2 + outer3):
        column = index - 8 * (outer1 + outer2)
        action = column % 8 // 2 * 2 * outer3 + column // 8 * 2 + column % 2
        biases[index] = b3[action] * LOG2E if action < actions else float32(-math.inf)


pack_kernel = cached(jit(pack_actor))


def launch_pack(tiles: Tiles, layers, words, biases, stream=0, threads=128):
    """Pack an actor's six float32 arrays (w1, b1, w2, b2, w3, b3; weights [out, in]) into words and biases."""
    pack_kernel[blocks_for(tiles.words + tiles.biases, threads), threads, stream](
        *layers, tiles.features, tiles.hidden1, tiles.hidden2, tiles.actions, *tiles.inner, *tiles.outer, words, biases
    )


def unpack(tiles: Tiles, words):
    """The weights in `words` as three float32 matrices in their natural order, padded; for the simulator and for tests."""
    import numpy as np

    halves = np.ascontiguousarray(words).view(np.float16).reshape(-1, 2, 2).astype(np.float32)  # word, h, c
    matrices = []
    for layer, (inner, outer) in enumerate(zip(tiles.inner, tiles.outer, strict=True)):
        block = halves[tiles.starts[layer] : tiles.starts[layer + 1]].reshape(outer, inner, 8, 4, 2, 2)  # n, k, g, q, h, c
        if layer == 0:
            matrix = block.transpose(0, 2, 3, 1, 4, 5)  # columns q, k, h, c
        else:
            matrix = block.transpose(0, 2, 1, 4, 3, 5)  # columns k, h, q, c
        matrix = matrix.reshape(8 * outer, 16 * inner)
        if layer == 2:  # rows n, q, c -> actions q, n, c
            matrix = matrix.reshape(outer, 4, 2, -1).transpose(1, 0, 2, 3).reshape(8 * outer, -1)
        matrices.append(matrix)
    return matrices


if SIMULATED:
    import numpy as np

    def make_act(tiles: Tiles):
        """See below; every simulated thread evaluates its own state."""

        def act(words, biases, table, groups, lane, bar, equity, share, spread, u):
            w1, w2, w3 = unpack(tiles, words)
            b1, b2, b3 = np.split(biases, np.cumsum([8 * outer for outer in tiles.outer])[:2])
            b3 = b3.reshape(-1, 4, 2).transpose(1, 0, 2).reshape(-1)
            x = np.asarray([table[bar, index] for index in range(tiles.width // 2)], np.uint32).view(np.float16).copy()
            x[-4:] = equity - np.float32(1.0), share, spread, 0.0
            for weight, bias in ((w1, b1), (w2, b2)):
                h = weight @ x.astype(np.float32) + bias
                x = np.where(h > 0, h, np.float32(tiles.slope) * h).astype(np.float16)
            logits = (w3 @ x.astype(np.float32) + b3)[None].astype(np.float32)
            return draw_row(logits, 0, tiles.actions, u, np.float32(LN2))

        return act

else:
    from llvmlite import ir
    from numba import types

    from numba_rl.kernels.ptx import exp2_fast, half_pair_into, load_four_into, log2_fast, multiply_into

    def make_forward(tiles: Tiles):
        """forward(words, biases, table, lane, bars, account, logits): the actor for 16 states of a warp.

        words uint64, biases float32: shared; table uint32 [bars, width / 2]; lane uint32. bars: (int32, int32) of rows
        lane / 4 and lane / 4 + 8; account: their four words (both rows' first, then both rows' second), uint32. Fills logits
        float32 [4 x tiles] (local) with the columns of each tile: even and odd of the first row, then of the second.
        The code is laid out here, all products one after the other, since a loop costs as many moves as products.
        """
        inner1, inner2, inner3 = tiles.inner
        _, outer2, outer3 = tiles.outer

        @intrinsic
        def forward(typingctx, words, biases, table, lane, bars, account, logits):
            signature = types.void(words, biases, table, lane, bars, account, logits)

            def codegen(context, builder, signature, arguments):
                i32, i64, f32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
                kinds = signature.args
                words, biases, table, logits = (
                    context.make_array(kinds[i])(context, builder, arguments[i]).data for i in (0, 1, 2, 6)
                )
                lane = arguments[3]
                q = builder.and_(lane, ir.Constant(i32, 3))

                def element(base, index, offset, kind):
                    place = builder.zext(builder.add(index, ir.Constant(i32, offset)), i64)
                    return builder.load(builder.gep(base, [place], inbounds=True, source_etype=kind), typ=kind)

                def tile(layer, n, k):
                    inner = tiles.inner[layer]
                    return element(words, lane, tiles.starts[layer] + 32 * (n * inner + k), i64)

                def bias(layer, n):
                    start = 8 * sum(tiles.outer[:layer]) + 8 * n
                    even, odd = (element(biases, builder.shl(q, ir.Constant(i32, 1)), start + c, f32) for c in range(2))
                    return [even, odd, even, odd]

                def rectified(low, high):
                    if tiles.slope != 0.0:
                        slope, zero = ir.Constant(f32, float(tiles.slope)), ir.Constant(f32, 0.0)
                        low, high = (
                            builder.select(builder.fcmp_ordered(">", x, zero), x, builder.fmul(x, slope)) for x in (low, high)
                        )
                    return half_pair_into(builder, low, high, tiles.slope == 0.0)

                def activations(even, odd):
                    """The A fragment of 16 units from their two C tiles."""
                    return [rectified(even[0], even[1]), rectified(even[2], even[3]), rectified(odd[0], odd[1]), rectified(odd[2], odd[3])]

                rows = []
                for index in range(2):
                    bar = builder.sext(builder.extract_value(arguments[4], index), i64)
                    word = builder.mul(bar, ir.Constant(i64, tiles.width // 2))
                    word = builder.add(word, builder.mul(builder.zext(q, i64), ir.Constant(i64, 2 * inner1)))
                    start = builder.ptrtoint(builder.gep(table, [word], source_etype=i32), i64)
                    rows.append([x for k in range(0, 2 * inner1, 4) for x in load_four_into(builder, builder.add(start, ir.Constant(i64, 4 * k)))])
                last = builder.icmp_unsigned("==", q, ir.Constant(i32, 3))
                for row in range(2):
                    for word in range(2):
                        own = builder.extract_value(arguments[5], 2 * word + row)
                        rows[row][word - 2] = builder.select(last, own, rows[row][word - 2])
                # An `or` with a 0 that the assembler cannot know: else it copies the inputs anew for every product.
                zero = builder.call(ir.InlineAsm(ir.FunctionType(i32, []), "mov.u32 $0, %nctaid.z;", "=r", side_effect=True), [])
                zero = builder.sub(zero, ir.Constant(i32, 1))
                rows = [[builder.or_(x, zero) for x in row] for row in rows]
                inputs = [[rows[0][2 * k], rows[1][2 * k], rows[0][2 * k + 1], rows[1][2 * k + 1]] for k in range(inner1)]

                sums = [bias(1, n) for n in range(outer2)]
                for j in range(inner2):
                    pair = [bias(0, 2 * j), bias(0, 2 * j + 1)]
                    for k in range(inner1):
                        pair = [multiply_into(builder, inputs[k], tile(0, 2 * j + c, k), pair[c]) for c in range(2)]
                    units = activations(*pair)
                    sums = [multiply_into(builder, units, tile(1, n, j), sums[n]) for n in range(outer2)]
                hidden = [activations(sums[2 * k], sums[2 * k + 1]) for k in range(inner3)]
                for n in range(outer3):
                    found = bias(2, n)
                    for k in range(inner3):
                        found = multiply_into(builder, hidden[k], tile(2, n, k), found)
                    for c in range(4):
                        place = builder.gep(logits, [ir.Constant(i64, 4 * n + c)], inbounds=True, source_etype=f32)
                        builder.store(found[c], place)
                return context.get_dummy_value()

            return signature, codegen

        return forward

    @device
    def quad_max(value):
        """Maximum over the four lanes of a row."""
        value = max(value, cuda.shfl_xor_sync(FULL_MASK, value, 1))
        return max(value, cuda.shfl_xor_sync(FULL_MASK, value, 2))

    def make_draw(own):
        """Draw of a row whose logits (base 2) lie `own` neighbouring ones in each of four lanes."""

        def draw(logits, offset, u, q):
            """(action, log-probability) in each of the row's lanes; action -1 where the logits are no distribution."""
            top = logits[offset]
            for i in range(1, own):
                top = max(top, logits[offset + 4 * (i // 2) + i % 2])
            top = quad_max(top)
            mass = cuda.local.array(own, float32)
            mine = float32(0.0)
            for i in range(own):
                mass[i] = exp2_fast(logits[offset + 4 * (i // 2) + i % 2] - top)
                mine += mass[i]
            neighbour = cuda.shfl_xor_sync(FULL_MASK, mine, 1)
            pair = mine + neighbour
            others = cuda.shfl_xor_sync(FULL_MASK, pair, 2)
            total = pair + others
            threshold = u * total
            cumulative = float32(0.0)
            if q & 1:
                cumulative = neighbour
            if q & 2:
                cumulative += others
            action = int32(-1)
            logit = float32(0.0)
            for i in range(own):
                if mass[i] > float32(0.0) and cumulative <= threshold:
                    action = int32(own * q + i)
                    logit = logits[offset + 4 * (i // 2) + i % 2]
                cumulative += mass[i]
            last = max(action, cuda.shfl_xor_sync(FULL_MASK, action, 1))
            last = max(last, cuda.shfl_xor_sync(FULL_MASK, last, 2))
            logit = cuda.shfl_sync(FULL_MASK, logit, (cuda.laneid & 28) | (uint32(last) // uint32(own) & 3))
            if not (total > float32(0.0) and total < float32(math.inf)):
                last = int32(-1)
            return last, (logit - top - log2_fast(total)) * LN2

        return device(draw)

    def make_act(tiles: Tiles):
        """act(words, biases, table, groups, lane, bar, equity, share, spread, u) -> (action, log-probability).

        Called by a whole warp; lane i < 16 groups owns state i: a bar, three portfolio features and a uniform. words and
        biases: shared; table uint32 [bars, width / 2]. Lanes without a state get that of lane i - 16.
        """
        logit_count = 4 * tiles.outer[2]
        forward = make_forward(tiles)
        draw = make_draw(2 * tiles.outer[2])

        def act(words, biases, table, groups, lane, bar, equity, share, spread, u):
            g = lane >> 2
            q = lane & 3
            own_row = lane & 15
            first = int32(half_pair(equity - float32(1.0), share))
            second = int32(half_pair(spread, float32(0.0)))
            action = int32(0)
            log_prob = float32(0.0)
            logits = cuda.local.array(logit_count, float32)
            for group in range(groups):
                low = uint32(16 * group + g)
                high = uint32(low + 8)
                bars = (cuda.shfl_sync(FULL_MASK, bar, low), cuda.shfl_sync(FULL_MASK, bar, high))
                account = (
                    uint32(cuda.shfl_sync(FULL_MASK, first, low)),
                    uint32(cuda.shfl_sync(FULL_MASK, first, high)),
                    uint32(cuda.shfl_sync(FULL_MASK, second, low)),
                    uint32(cuda.shfl_sync(FULL_MASK, second, high)),
                )
                forward(words, biases, table, uint32(lane), bars, account, logits)
                action_low, log_prob_low = draw(logits, 0, cuda.shfl_sync(FULL_MASK, u, low), q)
                action_high, log_prob_high = draw(logits, 2, cuda.shfl_sync(FULL_MASK, u, high), q)
                source = uint32(4 * (own_row & 7))
                found_low = cuda.shfl_sync(FULL_MASK, action_low, source)
                found_high = cuda.shfl_sync(FULL_MASK, action_high, source)
                known_low = cuda.shfl_sync(FULL_MASK, log_prob_low, source)
                known_high = cuda.shfl_sync(FULL_MASK, log_prob_high, source)
                if groups == 1 or group == lane >> 4:
                    action = found_low if own_row < 8 else found_high
                    log_prob = known_low if own_row < 8 else known_high
            return action, log_prob

        return device(act)
