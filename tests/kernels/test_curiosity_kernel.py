"""The curiosity bonus of a rollout in one kernel against the forward model in float64 and against the trainer's."""

import numpy as np
import pytest
import torch
from ptx import arithmetic, compile_ptx

from numba_rl import gpu
from numba_rl.config import Config
from numba_rl.kernels.curiosity import launch_curiosity
from numba_rl.trainer.curiosity import Curiosity


def run(features, bars, actions, layers, ceiling=0.1, threads=4):
    bonus = np.zeros(len(bars), np.float32)
    arrays = [features, bars, actions, *layers, bonus]
    moved = arrays if gpu.SIMULATED else [gpu.cuda.to_device(array) for array in arrays]
    launch_curiosity(*moved[:3], moved[3:7], moved[7], ceiling, threads=threads)
    return bonus if gpu.SIMULATED else moved[7].copy_to_host()


@pytest.mark.parametrize(("width", "samples"), [(5, 7), (40, 6)])
def test_bonus_is_the_models_error_and_the_trainers(width, samples):
    rng = np.random.default_rng(width)
    features = rng.standard_normal((30, width)).astype(np.float32)
    bars, actions = rng.integers(0, 29, samples).astype(np.int32), rng.integers(0, 45, samples).astype(np.int32)
    trainer = Curiosity(Config(), torch.from_numpy(features), torch.Generator().manual_seed(1))
    layers = [part.detach().numpy() for part in trainer.model.parameters()]
    m = min(32, width)
    x = np.concatenate([features[bars, :m], np.stack([actions // 9 / 2 - 1, actions // 3 % 3 - 1, actions % 3 - 1], 1)], 1).astype(np.float64)
    predicted = np.maximum(x @ layers[0].T + layers[1], 0) @ layers[2].T + layers[3]
    errors = ((predicted - features[bars + 1, :m]) ** 2).mean(1)
    np.testing.assert_allclose(run(features, bars, actions, layers, ceiling=1e9), errors, rtol=1e-5)
    capped = run(features, bars, actions, layers)
    np.testing.assert_allclose(capped, np.minimum(errors, 0.1), rtol=1e-5)
    np.testing.assert_allclose(capped, trainer.bonus(torch.from_numpy(bars), torch.from_numpy(actions)).numpy(), rtol=1e-5)


@pytest.mark.parametrize("capability", [(7, 5)])
def test_ptx(capability):
    text = compile_ptx(
        """
        from numba_rl.kernels.curiosity import curiosity_kernel
        floats = array(f32, 2)
        KERNELS = {"curiosity": (curiosity_kernel(32, 64), (floats, array(i32), array(i32), floats, array(f32), floats, array(f32), f32, array(f32)))}
        """,
        capability,
    )["curiosity"]
    assert arithmetic(text, "f64") == set() and ".local" not in text
