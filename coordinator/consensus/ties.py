"""The tie rule: a keyed hash of task, round, row and class picks among classes with equal votes.

All arithmetic is modulo 2**64 and fixed for good: every implementation gives the same answer.

    text             = "consilium/tie/v1", digest and round, each followed by a line feed
    key              = first 8 bytes, big-endian, of SHA-256(text)
    mix(z)           = the finaliser of SplitMix64
    rank(row, class) = mix(mix(key + (row + 1) * G) + (class + 1) * G)    G = 0x9E3779B97F4A7C15

Of the tied classes the one of highest rank wins. Within a row no two ranks are equal, as mix is a
bijection. The key is fixed before a ballot is cast; only another task definition changes it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Ranks: TypeAlias = npt.NDArray[np.uint64]

_DOMAIN: Final = "consilium/tie/v1"
_G: Final = 0x9E3779B97F4A7C15
_WORD: Final = (1 << 64) - 1


@dataclass(frozen=True)
class TieKey:
    """What makes ties fall differently in every task and round: a 64-bit key."""

    value: int

    @classmethod
    def of(cls, task_digest: str, round_number: int) -> TieKey:
        """The key of one round; `task_digest` is the definition's, in lower-case hexadecimal."""
        text = f"{_DOMAIN}\n{task_digest}\n{round_number}\n"
        return cls(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))

    def row_seeds(self, rows: npt.NDArray[np.integer]) -> Ranks:
        """One seed per row number, to be given to `ranks` for every class."""
        steps = (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(_G)
        return _mix(steps + np.uint64(self.value))


def ranks(row_seeds: Ranks, class_index: int) -> Ranks:
    """The rank of one class in each row; the tied class of highest rank wins."""
    return _mix(row_seeds + np.uint64((class_index + 1) * _G & _WORD))


def _mix(words: Ranks) -> Ranks:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
