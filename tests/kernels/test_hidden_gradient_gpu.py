"""A layer's backward with the ReLU below it in one launch, on a GPU at real sizes: against float64 and itself."""

import pytest
import torch

from numba_rl.gpu import stream, view
from numba_rl.kernels import hidden_gradient

pytestmark = pytest.mark.gpu


def numbers(*shape):
    random = torch.Generator("cuda").manual_seed(sum(shape))
    return torch.randn(shape, device="cuda", generator=random).bfloat16()


def pairs(tensor):
    return view(tensor.view(torch.int32).view(torch.uint32))


@pytest.mark.parametrize(("rows", "inner", "columns"), [
    (256, 48, 256), (1024, 256, 256), (2048, 56, 256), (1000, 304, 72), (1, 8, 8), (4097, 48, 256),
])  # fmt: skip
def test_the_gradient_and_its_sums(rows, inner, columns):
    above, weight, hidden = numbers(rows, inner), numbers(inner, columns), numbers(rows, columns).relu()
    wanted = torch.where(hidden > 0, above.double() @ weight.double(), 0.0)
    groups, found = -(-rows // hidden_gradient.SIDE), []
    for _ in range(2):
        gradient, partial = torch.full_like(hidden, torch.nan), torch.zeros(groups, columns + 2, device="cuda")
        parts = map(pairs, (above, weight, hidden, gradient))
        handle = stream(torch.cuda.current_stream().cuda_stream)
        hidden_gradient.launch(hidden_gradient.make_kernel(inner), *parts, view(partial), 2, handle)
        found.append((gradient, partial))
    torch.cuda.synchronize()
    assert (found[0][0].double() - wanted).norm() < 3e-3 * wanted.norm()
    assert (found[0][1][:, 2:].double().sum(0) - wanted.sum(0)).norm() < 1e-4 * wanted.norm()
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
