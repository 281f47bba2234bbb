"""The number format of matrix products, and where it applies.

- ``float32``: everywhere.
- ``tf32`` (GPU): the critic's products on tensor cores with 10-bit mantissas.
- ``bf16``: the critic's hidden layers in bfloat16 (8-bit mantissas, sums in float32); weights, gradients' sums, moments,
  the critic's last layer and all losses stay float32. On a CPU it needs AMX tiles to pay: there it halves the time of an update.

The actor is always float32: it is a twentieth of the work, and the log-probabilities of collection and update then agree.
``auto`` is bf16 on a CPU with AMX, tf32 on a GPU, float32 elsewhere.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from numba_rl.errors import ConfigError


def has_amx() -> bool:
    """Whether this CPU multiplies bfloat16 tiles."""
    probe = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return bool(probe and probe())


def resolve(setting: str, device: torch.device) -> str:
    """The format used for a setting of train.precision on a device. ConfigError: tf32 without a GPU."""
    if setting == "auto":
        if device.type == "cuda":
            return "tf32"
        return "bf16" if has_amx() else "float32"
    if setting == "tf32" and device.type != "cuda":
        raise ConfigError("train.precision = tf32 needs a GPU; use auto, float32 or bf16")
    return setting


def reduced(precision: str, device: torch.device):
    """A context in which networks run in `precision`; their backward passes follow."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)
    return tf32() if precision == "tf32" else nullcontext()


def tf32():
    """A context in which float32 products run on a GPU's tensor cores with 10-bit mantissas."""
    return _float32_products("tf32")


def exact():
    """A context in which float32 products are float32 on a GPU as well, whatever it is elsewhere."""
    return _float32_products("ieee")


@contextmanager
def _float32_products(precision: str) -> Iterator[None]:
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = precision
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
