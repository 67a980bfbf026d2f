"""How many GPUs the NVIDIA driver of this machine reports, and how many are in use; asks no learner's library."""

from __future__ import annotations

import ctypes
import os

_LIBRARY = "libcuda.so.1"
# What every call answers that went well.
_CUDA_SUCCESS = 0


def cuda_devices() -> int:
    """The number of CUDA devices; 0 without a driver."""
    try:
        driver = ctypes.CDLL(_LIBRARY)
    except OSError:
        return 0
    return _counted(driver) if driver.cuInit(0) == _CUDA_SUCCESS else 0


def gpus_in_use() -> int:
    """On how many of them this process has begun to compute: torch and XGBoost then keep a context there.

    Starts no driver to find out: what nobody has loaded, nobody uses.
    """
    try:
        driver = ctypes.CDLL(_LIBRARY, mode=os.RTLD_NOLOAD)
    except OSError:
        return 0
    return sum(_has_context(driver, number) for number in range(_counted(driver)))


def _counted(driver: ctypes.CDLL) -> int:
    devices = ctypes.c_int(0)
    counted = driver.cuDeviceGetCount(ctypes.byref(devices)) == _CUDA_SUCCESS
    return devices.value if counted else 0


def _has_context(driver: ctypes.CDLL, number: int) -> bool:
    # Devices are numbered from 0, and to the driver a device is its number.
    flags, active = ctypes.c_uint(0), ctypes.c_int(0)
    asked = driver.cuDevicePrimaryCtxGetState(number, ctypes.byref(flags), ctypes.byref(active))
    return bool(asked == _CUDA_SUCCESS and active.value)
