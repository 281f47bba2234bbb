"""Where a measurement runs."""

import torch

from numba_rl import gpu
from numba_rl.errors import UserError


def measured_device(wanted: str) -> torch.device:
    """The device of "auto", "cuda" or "cpu". UserError: the GPU was asked for and cannot be used, or only a simulated one is there."""
    if wanted == "cpu":
        return torch.device("cpu")
    if not gpu.SIMULATED and torch.cuda.is_available() and gpu.available():
        return torch.device("cuda")
    if wanted == "auto":
        return torch.device("cpu")
    why = (
        "the CUDA simulator is on, which is not worth timing; unset NUMBA_ENABLE_CUDASIM" if gpu.SIMULATED else "`rltrain doctor` says why"
    )
    raise UserError(
        f"--device cuda: there is no GPU that torch and numba-cuda can both use: {why}, or measure the CPU path by --device cpu"
    )
