"""Figures on their way to the host: all numbers exact, by name, those that were sent last."""

import pytest
import torch

from numba_rl.trainer.readback import Readback


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_what_is_sent_arrives_under_its_name(device):
    readback = Readback(torch.device(device))
    figures = {"counts": torch.tensor([2**40 + 1, 3]), "norm": torch.tensor(0.1), "finished": torch.tensor([[1.5, 2.0]])}
    figures = {name: tensor.to(device) for name, tensor in figures.items()}
    readback.pack(figures)
    readback.send()
    figures["norm"].fill_(9.0)
    readback.pack(figures)
    assert readback.read() == {"counts": [2**40 + 1, 3], "norm": [pytest.approx(0.1)], "finished": [1.5, 2.0]}, "packed, but not sent yet"
    readback.send()
    assert readback.read()["norm"] == [9.0]
    readback.pack({"other": torch.zeros(5, device=device)})
    readback.send()
    assert readback.read() == {"other": [0.0] * 5}
