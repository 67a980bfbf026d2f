"""Random bits. A deployment has one source, the operating system's; nothing here can be seeded."""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]


class Bits(Protocol):
    """Where noise comes from. Tests and experiments bring a source of their own that repeats itself."""

    def words(self, count: int) -> Words:
        """`count` independent, uniform 64-bit words."""
        ...


class SecureBits:
    """The operating system's cryptographically secure generator."""

    def words(self, count: int) -> Words:
        """`count` independent, uniform 64-bit words."""
        return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
