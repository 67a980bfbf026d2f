"""Qualified majority: the winner must hold a minimum share of the votes cast on the row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coordinator.consensus.majority import majority
from coordinator.consensus.tally import Counts
from coordinator.consensus.ties import TieKey
from wire.ballot import ABSTAIN, Labels


@dataclass(frozen=True)
class QualifiedMajority:
    """The majority's label where it has at least `min_share_permille` / 1000 of the row's votes.

    Every one in a ballot is a vote cast; abstaining silos do not count. Integers throughout, so
    a share that is met exactly is met.
    """

    min_share_permille: int

    def __post_init__(self) -> None:
        if not 1 <= self.min_share_permille <= 1000:
            raise ValueError(f"a share is 1 to 1000 thousandths, not {self.min_share_permille}")

    def __call__(self, counts: Counts, first_row: int, key: TieKey) -> Labels:
        """Labels of a block of rows from its (rows, classes) votes; see `rules.Rule`."""
        labels = majority(counts, first_row, key)
        most = counts.max(axis=1).astype(np.int64)
        cast = counts.sum(axis=1, dtype=np.int64)
        labels[most * 1000 < cast * self.min_share_permille] = ABSTAIN
        return labels
