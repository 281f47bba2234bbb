"""Products of small batches on a GPU, at real sizes: against float64 and themselves."""

import pytest
import torch

from numba_rl.gpu import stream, view
from numba_rl.kernels import small_products

pytestmark = pytest.mark.gpu

SIZES = [(256, 56, 256), (1024, 256, 256), (2048, 56, 256), (1000, 304, 72), (1, 8, 8), (4097, 48, 256)]


def numbers(*shape):
    random = torch.Generator("cuda").manual_seed(sum(shape))
    return torch.randn(shape, device="cuda", generator=random).bfloat16()


def pairs(tensor):
    return view(tensor.view(torch.int32).view(torch.uint32))


def handle():
    return stream(torch.cuda.current_stream().cuda_stream)


def error(found, wanted):
    return float((found.double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize(("rows", "inner", "columns"), SIZES)
def test_layers(rows, inner, columns):
    x, weight, bias = numbers(rows, inner), numbers(columns, inner), numbers(columns)
    kernels, sums = small_products.make_kernels(inner), x.double() @ weight.double().t()
    found = []
    for _ in range(2):
        out, last = torch.full((rows, columns), torch.nan, device="cuda").bfloat16(), torch.full((rows, columns), torch.nan, device="cuda")
        small_products.launch_dense(kernels, pairs(x), pairs(weight), pairs(bias), pairs(out), handle())
        small_products.launch_last(kernels, pairs(x), pairs(weight), view(last), handle())
        found.append((out, last))
    torch.cuda.synchronize()
    assert error(found[0][0], (sums + bias.double()).relu()) < 3e-3
    assert error(found[0][1], sums) < 1e-5
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize(("rows", "inner", "columns"), SIZES)
def test_the_gradient_below(rows, inner, columns):
    above, weight, hidden = numbers(rows, inner), numbers(inner, columns), numbers(rows, columns).relu()
    wanted = torch.where(hidden > 0, above.double() @ weight.double(), 0.0)
    groups, found = -(-rows // small_products.SIDE), []
    for _ in range(2):
        gradient, partial = torch.full_like(hidden, torch.nan), torch.zeros(groups, columns + 2, device="cuda")
        parts = map(pairs, (above, weight, hidden, gradient))
        small_products.launch_hidden_gradient(small_products.make_kernels(inner), *parts, view(partial), 2, handle())
        found.append((gradient, partial))
    torch.cuda.synchronize()
    assert error(found[0][0], wanted) < 3e-3
    assert (found[0][1][:, 2:].double().sum(0) - wanted.sum(0)).norm() < 1e-4 * wanted.norm()
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
