"""Polyak averaging in one kernel: torch's lerp, the bf16 shadow, and not a bit changed after a step that was left out."""

import numpy as np
import pytest
import torch

from numba_rl.gpu import SIMULATED, view
from numba_rl.kernels.polyak import launch_polyak

DEVICE = "cpu" if SIMULATED else "cuda"


@pytest.mark.parametrize("rate", [0.005, 0.5, 1.0])
@pytest.mark.parametrize("left_out", [0.0, 1.0])
def test_polyak(rate, left_out):
    random = torch.Generator().manual_seed(0)
    weights, target = (torch.randn(22, generator=random).to(DEVICE) for _ in range(2))
    target[3] = -0.0
    shadow = torch.full((22,), 7.0, dtype=torch.bfloat16, device=DEVICE)
    before = target.clone(), shadow.clone()
    pairs = view(shadow.view(torch.int32).view(torch.uint32))
    launch_polyak(view(weights), view(torch.tensor([left_out], device=DEVICE)), rate, view(target), pairs, threads=4)
    if left_out:
        assert np.array_equal(target.view(torch.int32).cpu(), before[0].view(torch.int32).cpu()), "negative zeros as well"
        assert torch.equal(shadow, before[1])
        return
    torch.testing.assert_close(target, before[0].lerp(weights, rate))
    assert rate < 1 or torch.equal(target, weights)
    assert torch.equal(shadow, target.bfloat16())
