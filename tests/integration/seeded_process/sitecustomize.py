"""Processes started with this folder on their path draw noise from CONSILIUM_TEST_BITS, as only a test may ask.

Every source begins anew with the seed, as `experiments.seeded.SeededBits` does.
"""

from __future__ import annotations

import os

import numpy as np

from wire.privacy.randomness import SecureBits, Words

_generators: dict[int, np.random.Generator] = {}


def _words(self: SecureBits, count: int) -> Words:
    seed = int(os.environ["CONSILIUM_TEST_BITS"])
    generator = _generators.setdefault(id(self), np.random.default_rng(seed))
    return generator.integers(0, 2**64, size=count, dtype=np.uint64)


SecureBits.words = _words  # type: ignore[method-assign]
