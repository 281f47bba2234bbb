"""How the advantages' part of a Q-network lies in memory for tensor cores: bf16 weights as B fragments of mma.sync m16n8k16.

Eight warps share a layer: warp w has the w-th eighth of its outputs, in tiles of 8, and reads its weights as one stream of
16-byte words, neighbouring lanes side by side. Such a word is one lane's part of two 16 x 8 tiles, one after the other along
the inputs. Outputs are padded to a multiple of 64 and inputs to what the layer before gives, with zeros.

A row of the table of features is `width` bf16 numbers: the market features in their order, zeros, and in the last four places
equity, share, spread and 0 of the account. In memory bf16 numbers come in pairs, one uint32, the first in the low half.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

WARPS = 8  # that share a layer
LANES = 32
ACCOUNT = 3  # features of the account
PLACES = 4  # that a row of the table keeps for them
MOST_SUMS = 16  # tiles of sums that a warp can hold in registers


class QLayout(NamedTuple):
    """The layers features + 3 - units[0] - ... - units[-1]: hidden layers, the advantages' stream, the advantages."""

    features: int
    units: tuple[int, ...]

    @property
    def width(self) -> int:
        """Numbers of a row of the table of features, a multiple of 32."""
        return -(-(self.features + PLACES) // 32) * 32

    @property
    def padded(self) -> tuple[int, ...]:
        """Outputs of each layer with their padding, a multiple of 64."""
        return tuple(-(-units // (8 * WARPS)) * 8 * WARPS for units in self.units)

    @property
    def inner(self) -> tuple[int, ...]:
        """Steps of 16 inputs of each layer, an even number."""
        return tuple(inputs // 16 for inputs in (self.width, *self.padded[:-1]))

    @property
    def tiles(self) -> tuple[int, ...]:
        """Tiles of 8 outputs that a warp has in each layer."""
        return tuple(outputs // (8 * WARPS) for outputs in self.padded)

    @property
    def chunks(self) -> tuple[int, ...]:
        """16-byte words that a lane reads in each layer."""
        return tuple(inner // 2 * tiles for inner, tiles in zip(self.inner, self.tiles, strict=True))

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each layer's weights start, and their number, in uint32 (pairs)."""
        return (0, *accumulate(4 * LANES * WARPS * chunks for chunks in self.chunks))

    @property
    def bias_starts(self) -> tuple[int, ...]:
        """Where each layer's biases start, and their number, in float32."""
        return (0, *accumulate(self.padded))

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the weights [out, in] and biases [out] in order."""
        sizes = (self.features + ACCOUNT, *self.units)
        return [shape for inputs, outputs in pairwise(sizes) for shape in ((outputs, inputs), (outputs,))]


def packing(layout: QLayout) -> tuple[np.ndarray, np.ndarray]:
    """Where packed weights and biases come from, int64: indices into all weights and biases flat, one after the other, and then a 0.

    The first has two indices for each uint32, of its low and its high half; the second one for each bias.
    """
    sizes = [int(np.prod(shape)) for shape in layout.shapes]
    begins = [0, *accumulate(sizes)]
    zero = begins[-1]
    words, biases = [], []
    for layer, units in enumerate(layout.units):
        inputs = layout.shapes[2 * layer][1]
        warp, pair, tile, lane, word, half = np.ogrid[
            :WARPS, : layout.inner[layer] // 2, : layout.tiles[layer], :LANES, :4, :2
        ]  # fmt: skip
        column = 32 * pair + 8 * word + 2 * (lane % 4) + half
        if layer == 0:
            place = column - (layout.width - PLACES)
            source = np.where(place >= 0, layout.features + place, np.where(column < layout.features, column, inputs))
        else:
            source = column
        row = 8 * (warp * layout.tiles[layer] + tile) + lane // 4
        inside = (row < units) & (source < inputs)
        words.append(np.where(inside, begins[2 * layer] + row * inputs + source, zero).ravel())
        unit = np.arange(layout.padded[layer])
        biases.append(np.where(unit < units, begins[2 * layer + 1] + unit, zero))
    return np.concatenate(words), np.concatenate(biases)


def as_float(pairs: np.ndarray) -> np.ndarray:
    """bf16 pairs uint32 [..., C] as float32 [..., 2 C]."""
    halves = np.stack([pairs << np.uint32(16), pairs & np.uint32(0xFFFF0000)], -1)
    return halves.view(np.float32).reshape(*pairs.shape[:-1], -1)


def rounded(values: np.ndarray) -> np.ndarray:
    """float32 to the nearest bf16 (even of two), as float32; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    up = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(values), np.float32(np.nan), up.view(np.float32))


def as_pairs(values: np.ndarray) -> np.ndarray:
    """float32 [..., 2 C] rounded to bf16 pairs uint32 [..., C]."""
    halves = rounded(values).view(np.uint32) >> np.uint32(16)
    return halves[..., 0::2] | halves[..., 1::2] << np.uint32(16)


def packed(layout: QLayout, layers: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Weights uint32 and biases float32 as the kernel reads them, from float32 weights [out, in] and biases in order."""
    words, biases = packing(layout)
    flat = np.concatenate([*(np.asarray(layer, np.float32).ravel() for layer in layers), np.zeros(1, np.float32)])
    return as_pairs(flat[words]), flat[biases]


def unpacked(layout: QLayout, words: np.ndarray) -> list[np.ndarray]:
    """The float32 matrices [padded outputs, padded inputs] in packed weights; the first one's columns are those of the table."""
    matrices = []
    for layer, start in enumerate(layout.starts[:-1]):
        inner, tiles = layout.inner[layer], layout.tiles[layer]
        block = as_float(words[start : layout.starts[layer + 1]]).reshape(WARPS, inner // 2, tiles, 8, 4, 4, 2)
        matrices.append(block.transpose(0, 2, 3, 1, 5, 4, 6).reshape(8 * WARPS * tiles, 16 * inner))
    return matrices


def q_layout(features: int, hidden: Sequence[int], head: int, actions: int) -> QLayout:
    """The layout of a dueling network's advantages: features + 3 - hidden - head - actions."""
    return QLayout(features, (*hidden, head, actions))
