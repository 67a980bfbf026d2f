"""How many GPUs the NVIDIA driver of this machine reports; asks no learner's library."""

from __future__ import annotations

import ctypes


def cuda_devices() -> int:
    """The number of CUDA devices; 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    devices = ctypes.c_int(0)
    # 0 is CUDA_SUCCESS in both calls.
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(devices)) != 0:
        return 0
    return devices.value
