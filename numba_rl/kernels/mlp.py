"""Dense layers of the block form: weights in the registers of a block's threads, activations in shared memory, float32.

A layer's outputs are spread over the threads, `parts` lanes of a warp to each output; a lane holds the weights of every
parts-th group of four inputs, so that it reads four activations at once, and the parts are added by shuffles. Where a block
has fewer threads than outputs x parts, a thread holds several outputs.

The simulator has no shuffles: layers have one part there.
"""

from typing import NamedTuple

from numba_rl.gpu import FULL_MASK, SIMULATED, cuda, device, float32, uint32

LANES = 32


class Layer(NamedTuple):
    """How a layer of `inputs` x `outputs` lies on `threads` threads."""

    inputs: int
    outputs: int
    threads: int
    parts: int

    @property
    def chunks(self) -> int:
        """Groups of four inputs that a lane holds for each of its outputs."""
        return -(-self.inputs // (4 * self.parts))

    @property
    def padded(self) -> int:
        """Inputs with the zeros behind them that the groups of four reach to."""
        return 4 * self.parts * self.chunks

    @property
    def rounds(self) -> int:
        """Outputs that a thread holds."""
        return -(-self.outputs * self.parts // self.threads)

    @property
    def stride(self) -> int:
        """Distance of a thread's outputs."""
        return self.threads // self.parts

    @property
    def registers(self) -> int:
        """Weights that a thread holds."""
        return 4 * self.chunks * self.rounds


def layer_of(inputs, outputs, threads):
    """The layer with as many parts as it has threads for, at most 4."""
    parts = 1
    while not SIMULATED and parts < 4 and outputs * parts * 2 <= threads:
        parts *= 2
    return Layer(inputs, outputs, threads, parts)


def place(thread, parts):
    """(output, part) of a thread: the lanes of a warp are part-major, so that neighbours read the same activations."""
    within = LANES // parts
    lane = thread % LANES
    return thread // LANES * within + lane % within, lane // within


if SIMULATED:

    def sum_parts(value, parts):
        """One part is the sum."""
        return value

else:

    @device
    def sum_parts(value, parts):
        """Sum over the lanes that share an output, in each of them."""
        if parts >= 2:
            value += cuda.shfl_xor_sync(FULL_MASK, value, 16)
        if parts >= 4:
            value += cuda.shfl_xor_sync(FULL_MASK, value, 8)
        return value


def layer_functions(layer: Layer):
    """(load, product) device functions of a layer.

    load(weight, output, part, registers): this lane's weights from `weight` float32 [outputs, >= inputs] into its registers.
    product(registers, k, activations, part): sum of weights x activations (shared, zero-padded) for the k-th own output.
    """
    inputs, outputs, parts, chunks, rounds, stride = layer.inputs, layer.outputs, layer.parts, layer.chunks, layer.rounds, layer.stride

    def load(weight, output, part, registers):
        for k in range(rounds):
            row = uint32(output + k * stride)
            for c in range(chunks):
                for i in range(4):
                    column = uint32(4 * (c * parts + part) + i)
                    value = float32(0.0)
                    if row < outputs and column < inputs:
                        value = weight[row, column]
                    registers[4 * (k * chunks + c) + i] = value

    def product(registers, k, activations, part):
        s0 = float32(0.0)
        s1 = float32(0.0)
        s2 = float32(0.0)
        s3 = float32(0.0)
        for c in range(chunks):
            first = 4 * (c * parts + part)
            own = 4 * (k * chunks + c)
            s0 += registers[own] * activations[uint32(first)]
            s1 += registers[own + 1] * activations[uint32(first + 1)]
            s2 += registers[own + 2] * activations[uint32(first + 2)]
            s3 += registers[own + 3] * activations[uint32(first + 3)]
        return sum_parts((s0 + s1) + (s2 + s3), parts)

    return device(load), device(product)
