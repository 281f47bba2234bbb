"""Runs kernels in the CUDA simulator where there is no GPU, and skips the tests that need one."""

import ctypes
import os

import pytest


def _has_gpu() -> bool:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int(0)
        return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    except OSError:
        return False


GPU = _has_gpu() and os.environ.get("NUMBA_ENABLE_CUDASIM", "0") == "0"
if not GPU:
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # before numba is imported anywhere


def pytest_collection_modifyitems(items):
    for item in items:
        if "gpu" in item.keywords and not GPU:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
