"""The advantages of a Q-network on tensor cores: eight warps evaluate 16, 32 or 64 states at once, weights read from the L2 cache.

Products are bf16 with float32 sums (mma.sync m16n8k16). About 120,000 weights, 240 KB, do not fit a multiprocessor, so every
warp reads its share of them anew for each step, eight 16-byte words ahead of the products and across layers: the first words
of the next step are on their way while the game is played. Each weight that arrives serves all tiles of 16 states of a block.

Activations lie in shared memory as the A fragments of the next layer, [tile of 16 states][step of 16 inputs][lane] of four
words: the C tile that a lane computes is its own part of them, and reading takes one 16-byte word. A layer overwrites the
activations that it read, between two barriers of the eight warps.

Inputs come from a table of features in bf16 (see kernels.q_layout) and the account. The next bar's row is fetched ahead, on the
guess that the episode goes on. Compute capability 8.0 or newer.
"""

from numba_rl.gpu import SIMULATED, device, float32, int32, uint32
from numba_rl.kernels.q_layout import LANES, PLACES, WARPS, QLayout, as_float, rounded, unpacked

ROWS = 4 if SIMULATED else 16  # states of a tile
THREADS = 2 if SIMULATED else WARPS * LANES  # that evaluate
NETWORK_BARRIER = 1
AHEAD = 8  # words on their way


def ahead_of(layout: QLayout) -> int:
    """16-byte words that a lane has on their way."""
    return min(AHEAD, sum(layout.chunks))


def barriers_of(layout: QLayout) -> int:
    """Barriers of the eight warps alone in an evaluation."""
    return 0 if SIMULATED else 2 * len(layout.units) - 1


def staged_of(layout: QLayout, groups: int) -> int:
    """Fragments of the input that a warp brings to shared memory: of `groups` tiles of states."""
    return -(-groups * layout.inner[0] // WARPS)


if SIMULATED:
    import numpy as np

    def make_network(layout: QLayout, groups: int, stride: int):
        """See below; every simulated thread evaluates every second state."""

        def begin(words, thread, ahead, coming, held):
            pass

        def evaluate(words, biases, table, bar_of, account_of, activations, values, thread, ahead, coming, held):
            weights = unpacked(layout, np.positive(words))
            shifts = np.split(np.positive(biases), layout.bias_starts[1:-1])
            for row in range(thread, ROWS * groups, THREADS):
                x = as_float(np.array([table[bar_of[row], column] for column in range(layout.width // 2)], np.uint32))
                x[-PLACES:] = *rounded(np.asarray(account_of[row], np.float32)), 0.0
                for layer, (weight, shift) in enumerate(zip(weights, shifts, strict=True)):
                    x = weight @ x + shift
                    if layer + 1 < len(weights):
                        x = rounded(np.where(x < 0, np.float32(0), x))
                values[row, : layout.units[-1]] = x[: layout.units[-1]]

        return begin, evaluate

else:
    from llvmlite import ir
    from numba import types

    from numba_rl.gpu import intrinsic
    from numba_rl.kernels.bf16 import pack
    from numba_rl.kernels.ptx import converge, half_pair_into, load_into, multiply_words_into, some_sync, some_sync_into

    I32, I64, F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()

    class Stream:
        """The order in which a warp reads its weights, step after step, and the code that keeps `depth` words ahead."""

        def __init__(self, layout, builder, words, warp, lane):
            self.builder = builder
            lane_at = builder.add(words, builder.mul(builder.zext(lane, I64), ir.Constant(I64, 16)))
            self.bases = []
            for start, chunks in zip(layout.starts, layout.chunks, strict=False):
                share = builder.mul(builder.zext(warp, I64), ir.Constant(I64, 16 * LANES * chunks))
                self.bases.append(builder.add(builder.add(lane_at, share), ir.Constant(I64, 4 * start)))
            self.order = [(layer, chunk) for layer, chunks in enumerate(layout.chunks) for chunk in range(chunks)]
            self.place, self.coming = 0, []

        def fetch(self):
            """Ask for the next word."""
            layer, chunk = self.order[self.place % len(self.order)]
            address = self.builder.add(self.bases[layer], ir.Constant(I64, 16 * LANES * chunk))
            self.coming.append(load_into(self.builder, address, uint32, 4))
            self.place += 1

        def take(self):
            """The oldest word that was asked for; another one is."""
            found = self.coming.pop(0)
            self.fetch()
            return found

    def make_begin(layout: QLayout):
        """first_words(words, warp, lane, ahead): ask for the first words of a step, into `ahead` uint32 [4 x words] (local)."""

        @intrinsic
        def first_words(typingctx, words, warp, lane, ahead):
            signature = types.void(words, warp, lane, ahead)

            def codegen(context, builder, signature, arguments):
                data = [context.make_array(kind)(context, builder, argument).data for kind, argument in
                        ((signature.args[0], arguments[0]), (signature.args[3], arguments[3]))]  # fmt: skip
                stream = Stream(layout, builder, builder.ptrtoint(data[0], I64), arguments[1], arguments[2])
                for _ in range(ahead_of(layout)):
                    stream.fetch()
                _keep(builder, stream, data[1])
                return context.get_dummy_value()

            return signature, codegen

        return first_words

    def _keep(builder, stream, ahead):
        """Put what is on its way into a local array, where registers hold it until the next step."""
        for index, value in enumerate(value for word in stream.coming for value in word):
            builder.store(value, builder.gep(ahead, [ir.Constant(I64, index)], inbounds=True, source_etype=I32))

    def make_layers(layout: QLayout, groups: int, stride: int):
        """layers(words, biases, activations, values, warp, lane, ahead): all layers for the states staged in `activations`.

        words uint32 and biases float32 (global), activations uint32 and values float32 [states, stride] (shared). The code is
        laid out here, product after product, since a loop would cost as many moves as products.
        """
        tiles_of, inner_of, last = layout.tiles, layout.inner, len(layout.units) - 1
        shown = -(-layout.units[-1] // 8)  # tiles of the last layer that are no padding

        @intrinsic
        def layers(typingctx, words, biases, activations, values, warp, lane, ahead):
            signature = types.void(words, biases, activations, values, warp, lane, ahead)

            def codegen(context, builder, signature, arguments):
                kinds = signature.args
                words, biases, activations, values, ahead = (
                    context.make_array(kinds[i])(context, builder, arguments[i]).data for i in (0, 1, 2, 3, 6)
                )
                warp, lane = arguments[4], arguments[5]

                def number(value):
                    return ir.Constant(I32, value)

                def times(value, factor):
                    return builder.mul(value, number(factor))

                def shared(base, index, kind, seen_as=None):
                    place = builder.gep(base, [builder.zext(index, I64)], inbounds=True, source_etype=kind)
                    return place if seen_as is None else builder.bitcast(place, seen_as.as_pointer())

                q = builder.and_(lane, number(3))
                g = builder.lshr(lane, number(2))
                mine = times(lane, 4)
                stream = Stream(layout, builder, builder.ptrtoint(words, I64), warp, lane)
                for word in range(ahead_of(layout)):
                    places = (builder.gep(ahead, [ir.Constant(I64, 4 * word + i)], inbounds=True, source_etype=I32) for i in range(4))
                    stream.coming.append([builder.load(place, typ=I32) for place in places])
                    stream.place += 1

                def fragment(layer, group, k):
                    """The A fragment of 16 states and 16 inputs."""
                    place = builder.add(mine, number(4 * LANES * (group * inner_of[layer] + k)))
                    four = builder.load(shared(activations, place, I32, ir.VectorType(I32, 4)), align=16)
                    return [builder.extract_element(four, number(i)) for i in range(4)]

                def shift(layer, tile):
                    """The biases of a lane's two columns."""
                    column = builder.add(times(builder.add(times(warp, tiles_of[layer]), number(tile)), 8), times(q, 2))
                    at = builder.add(builder.ptrtoint(biases, I64), ir.Constant(I64, 4 * layout.bias_starts[layer]))
                    return load_into(builder, builder.add(at, builder.mul(builder.zext(column, I64), ir.Constant(I64, 4))), float32, 2)

                def products(layer):
                    """The sums of a layer, [group][tile] of four float32; where few, in two halves that need not wait for each other."""
                    tiles, inner = tiles_of[layer], inner_of[layer]
                    shifts = [shift(layer, tile) for tile in range(tiles)]
                    halves = 2 if groups * tiles <= 2 else 1
                    sums = [[[[ir.Constant(F32, 0.0)] * 4 for _ in range(halves)] for _ in range(tiles)] for _ in range(groups)]
                    for k in range(0, inner, 2):
                        inputs = [[fragment(layer, group, k + step) for step in range(2)] for group in range(groups)]
                        for tile in range(tiles):
                            weights = stream.take()
                            for step in range(2):
                                for group in range(groups):
                                    parts = sums[group][tile]
                                    parts[step % halves] = multiply_words_into(
                                        builder, inputs[group][step], weights[2 * step : 2 * step + 2], parts[step % halves], "bf16"
                                    )
                    for group in range(groups):
                        for tile in range(tiles):
                            parts = sums[group][tile]
                            whole = parts[0] if halves == 1 else [builder.fadd(a, b) for a, b in zip(*parts, strict=True)]
                            sums[group][tile] = [builder.fadd(value, shifts[tile][c % 2]) for c, value in enumerate(whole)]
                    return sums

                def hand_on(layer, sums):
                    """Rectified sums become the activations of the next layer."""
                    for tile in range(tiles_of[layer]):
                        column = builder.add(times(warp, tiles_of[layer]), number(tile))
                        step = times(builder.lshr(column, number(1)), 4 * LANES)
                        place = builder.add(builder.add(step, mine), times(builder.and_(column, number(1)), 2))
                        for group in range(groups):
                            four = sums[group][tile]
                            pair = ir.Constant(ir.VectorType(I32, 2), ir.Undefined)
                            for i in range(2):
                                word = half_pair_into(builder, four[2 * i], four[2 * i + 1], True, "bf16")
                                pair = builder.insert_element(pair, word, number(i))
                            at = builder.add(place, number(4 * LANES * group * inner_of[layer + 1]))
                            builder.store(pair, shared(activations, at, I32, pair.type), align=8)

                def show(sums):
                    """Sums of the last layer become the values."""
                    for tile in range(tiles_of[last]):
                        column = builder.add(times(warp, tiles_of[last]), number(tile))
                        with builder.if_then(builder.icmp_unsigned("<", column, number(shown))):
                            first = builder.add(times(g, stride), builder.add(times(column, 8), times(q, 2)))
                            for group in range(groups):
                                for c, value in enumerate(sums[group][tile]):
                                    offset = stride * (16 * group + 8 * (c // 2)) + c % 2
                                    builder.store(value, shared(values, builder.add(first, number(offset)), F32))

                for layer in range(last):
                    sums = products(layer)
                    some_sync_into(builder, NETWORK_BARRIER, THREADS)
                    hand_on(layer, sums)
                    some_sync_into(builder, NETWORK_BARRIER, THREADS)
                show(products(last))
                _keep(builder, stream, ahead)
                return context.get_dummy_value()

            return signature, codegen

        return layers

    def make_network(layout: QLayout, groups: int, stride: int):
        """(begin, evaluate), device functions that all `THREADS` threads call: once a launch, and once a step.

        begin(words, thread, ahead, coming, held)
        evaluate(words, biases, table, bar_of, account_of, activations, values, thread, ahead, coming, held)

        words uint32 and biases float32: packed (kernels.q_layout); table uint32 [bars, width / 2]; bar_of int32 [states] and
        account_of float32 [states, 3]: what the states are made of, shared; activations uint32 [as many as the widest layer has],
        values float32 [states, stride]: shared, written. ahead, coming and held (local) keep what is under way between calls.
        """
        inner, staged, width = layout.inner[0], staged_of(layout, groups), layout.width // 2
        first_words, layers = make_begin(layout), make_layers(layout, groups, stride)

        def begin(words, thread, ahead, coming, held):
            first_words(words, uint32(thread // LANES), uint32(thread % LANES), ahead)
            for i in range(2 * staged):
                held[i] = int32(-2)  # its successor is no bar
                coming[2 * i] = uint32(0)
                coming[2 * i + 1] = uint32(0)

        def evaluate(words, biases, table, bar_of, account_of, activations, values, thread, ahead, coming, held):
            warp = uint32(thread // LANES)
            lane = uint32(thread % LANES)
            q = uint32(lane & 3)
            for i in range(staged):
                place = uint32(warp + WARPS * i)
                if place < groups * inner:
                    k = uint32(place % inner)
                    for upper in range(2):
                        row = uint32(16 * (place // inner) + (lane >> 2) + 8 * upper)
                        bar = bar_of[row]
                        if bar != held[2 * i + upper] + 1:
                            coming[4 * i + upper] = table[uint32(bar), uint32(8 * k + q)]
                            coming[4 * i + 2 + upper] = table[uint32(bar), uint32(8 * k + 4 + q)]
                        held[2 * i + upper] = bar
                        second = coming[4 * i + 2 + upper]
                        if 8 * k + 4 + q == width - 2:
                            second = pack(account_of[row, 0], account_of[row, 1])
                        elif 8 * k + 4 + q == width - 1:
                            second = pack(account_of[row, 2], float32(0.0))
                        at = uint32(4 * (LANES * place + lane) + upper)
                        activations[at] = coming[4 * i + upper]
                        activations[uint32(at + 2)] = second
            converge()
            some_sync(NETWORK_BARRIER, THREADS)
            layers(words, biases, activations, values, warp, lane, ahead)
            for i in range(staged):
                place = uint32(warp + WARPS * i)
                if place < groups * inner:
                    k = uint32(place % inner)
                    for upper in range(2):
                        bar = uint32(held[2 * i + upper] + 1)
                        coming[4 * i + upper] = table[bar, uint32(8 * k + q)]
                        coming[4 * i + 2 + upper] = table[bar, uint32(8 * k + 4 + q)]

        return device(begin), device(evaluate)
