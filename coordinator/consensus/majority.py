"""Majority: the class with most votes, ties by the tie rule, rows without a vote abstain."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coordinator.consensus.tally import Counts
from coordinator.consensus.ties import TieKey, ranks
from wire.ballot import ABSTAIN, Labels


def majority(counts: Counts, first_row: int, key: TieKey) -> Labels:
    """Labels of a block of rows from its (rows, classes) votes; see `rules.Rule`."""
    most = counts.max(axis=1)
    # Class numbers from 1 in the narrowest type: several times faster than writing labels by mask.
    leader = np.zeros(len(counts), dtype=np.min_scalar_type(counts.shape[1]))
    tied = np.zeros(len(counts), dtype=np.bool_)
    for number, votes in enumerate(counts.T, start=1):
        leads = votes == most
        tied |= leads & (leader > 0)
        np.maximum(leader, leads * leader.dtype.type(number), out=leader)
    labels = leader.astype(np.int32) - 1
    tied &= most > 0
    if tied.any():
        _break_ties(labels, np.flatnonzero(tied), counts, most, first_row, key)
    labels[most == 0] = ABSTAIN
    return labels


def _break_ties(
    labels: Labels,
    tied: npt.NDArray[np.intp],
    counts: Counts,
    most: npt.NDArray[np.unsignedinteger],
    first_row: int,
    key: TieKey,
) -> None:
    """Sets the labels of the rows `tied`; class by class, so as to hold one rank per row only."""
    needed = most[tied]
    seeds = key.row_seeds(tied + first_row)
    highest = np.zeros(len(tied), dtype=np.uint64)
    for index, votes in enumerate(counts.T):
        leading = np.flatnonzero(votes[tied] == needed)
        rank = ranks(seeds[leading], index)
        higher = rank >= highest[leading]
        winning = leading[higher]
        highest[winning] = rank[higher]
        labels[tied[winning]] = index
