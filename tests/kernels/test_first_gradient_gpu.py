"""The first layer's backward in one pass on a GPU, at real sizes: against float64, the two steps that it replaces, and itself."""

import pytest
import torch

from numba_rl.gpu import blocks_for, stream, view
from numba_rl.kernels import first_gradient, relu_grad

pytestmark = pytest.mark.gpu

OFFSET = 5
TOLERANCE = 1e-4  # of the norm: float32 sums of tensor cores, which cut rather than round


def words(tensor, kind, unsigned):
    return view(tensor.view(kind).view(unsigned))


class Layer:
    """Gradient, outputs and inputs of a layer on the GPU, and both ways to its gradients."""

    def __init__(self, rows, first, inputs):
        random = torch.Generator("cuda").manual_seed(rows)
        self.gradient, hidden, self.x = (
            torch.randn(rows, size, device="cuda", generator=random).bfloat16() for size in (first, first, inputs)
        )
        self.hidden = hidden.relu()
        self.groups = first_gradient.groups_for(rows, first, torch.cuda.get_device_properties(0).multi_processor_count)
        self.stream = stream(torch.cuda.current_stream().cuda_stream)

    def in_one_pass(self, groups=None):
        """Weight gradient and the rows of the bias gradient."""
        (_, first), inputs, groups = self.gradient.shape, self.x.shape[1], groups or self.groups
        parts = torch.full((groups, first, inputs), torch.nan, device="cuda")
        partial = torch.full((groups + 2, first + 9), 7.0, device="cuda")
        weight = torch.full((first, inputs), torch.nan, device="cuda")
        pairs = [words(part, torch.int32, torch.uint32) for part in (self.gradient, self.hidden, self.x)]
        first_gradient.launch(first_gradient.make_kernels(inputs), *pairs, view(parts), view(partial), OFFSET, view(weight), self.stream)
        torch.cuda.synchronize()
        bias = partial[:groups, OFFSET : OFFSET + first].clone()
        partial[:groups, OFFSET : OFFSET + first] = 7.0
        assert (partial == 7.0).all(), "other rows and columns are left alone"
        return weight, bias

    def in_two_steps(self):
        gradient, partial = self.gradient.clone(), torch.zeros(264, self.gradient.shape[1], device="cuda")
        quads = [words(part, torch.int64, torch.uint64) for part in (gradient, self.hidden)]
        grid = blocks_for(gradient.shape[1] // 4, 32), len(partial)
        relu_grad.make_relu_grad()[grid, 32 * relu_grad.ROWS, self.stream](*quads, view(partial), 0)
        return torch.mm(gradient.t(), self.x, out_dtype=torch.float32), partial.sum(0)

    def exactly(self):
        masked = torch.where(self.hidden > 0, self.gradient, 0).double()
        return masked.t() @ self.x.double(), masked.sum(0)


def error(found, wanted):
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.mark.parametrize(("rows", "first", "inputs"), [
    (1000, 640, 56), (16_000, 640, 56), (131_072, 640, 56), (15_999, 136, 64), (3, 8, 8), (4097, 1032, 24),
])  # fmt: skip
def test_one_pass_gives_what_two_steps_give(rows, first, inputs):
    layer = Layer(rows, first, inputs)
    weight, bias = layer.in_one_pass()
    for wanted_weight, wanted_bias in (layer.exactly(), layer.in_two_steps()):
        assert error(weight, wanted_weight) < TOLERANCE
        assert error(bias.sum(0), wanted_bias) < TOLERANCE


@pytest.mark.parametrize("rows", [1000, 16_000, 131_072])
def test_a_rerun_is_identical(rows):
    layer = Layer(rows, 640, 56)
    for found, again in zip(layer.in_one_pass(), layer.in_one_pass(), strict=True):
        assert torch.equal(found, again)


@pytest.mark.parametrize("groups", [1, 7, 100, 264])
def test_any_number_of_groups_will_do(groups):
    layer = Layer(16_000, 640, 56)
    weight, bias = layer.in_one_pass(groups)
    wanted_weight, wanted_bias = layer.exactly()
    assert error(weight, wanted_weight) < 3 * TOLERANCE and error(bias.sum(0), wanted_bias) < 3 * TOLERANCE
