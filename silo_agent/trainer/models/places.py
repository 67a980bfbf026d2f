"""Which shard, fold or place in a batch a patient has: by the patient's own number and nothing else.

Were places dealt in the order of the file, a patient who is left out, added or exchanged would move others, and what was
proved for one would have to hold for all of them. So a place is a hash of the number that stands for the patient
(`silo_agent.trainer.data.unit_keys`) under a public key: groups are of about equal size, not of exactly equal size.

Not for what must hide which group a patient is in, or where the patient who comes must take the place of the one who
went: there draw in secret, for all alike (`mechanisms/teacher_votes.py`).
"""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Integers: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]


def places(patients: Integers, groups: int, key: str) -> Integers:
    """(n,) 0 … groups − 1 for each patient; another key deals anew."""
    first, second = _words(key)
    # The remainder favours small groups by one in 2⁶⁴ / groups; no guarantee rests on that.
    return (mixed(mixed(patients.astype(np.uint64) ^ first) ^ second) % np.uint64(groups)).astype(
        np.int64
    )


def mixed(words: Words) -> Words:
    """A bijection of 64-bit words that looks random (Steele, Lea and Flood 2014: SplitMix)."""
    with np.errstate(over="ignore"):
        words = words + np.uint64(0x9E3779B97F4A7C15)
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(words ^ (words >> np.uint64(31)), dtype=np.uint64)


def _words(text: str) -> Words:
    digest = hashlib.sha256(f"consilium/places/v1\n{text}".encode()).digest()
    return np.frombuffer(digest[:16], dtype="<u8").astype(np.uint64)
