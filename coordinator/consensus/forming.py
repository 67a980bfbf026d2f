"""Forming a consensus: a rule applied to a tally, block by block, and how much it changed."""

from __future__ import annotations

from typing import Final

import numpy as np

from coordinator.consensus.rules import Rule
from coordinator.consensus.tally import Tally
from coordinator.consensus.ties import TieKey
from wire.ballot import Labels

ROW_BLOCK: Final = 65_536
"""Rows whose counts are held unpacked at one time."""


def form_consensus(tally: Tally, rule: Rule, key: TieKey) -> Labels:
    """(rows,) labels by `rule`, ABSTAIN where it publishes none."""
    labels = np.empty(tally.shape.rows, dtype=np.int32)
    for start in range(0, tally.shape.rows, ROW_BLOCK):
        stop = min(start + ROW_BLOCK, tally.shape.rows)
        labels[start:stop] = rule(tally.counts(start, stop), start, key)
    return labels


def changed_rows(previous: Labels | None, current: Labels) -> int:
    """Rows whose label, abstention included, differs; all rows if nothing was published before."""
    if previous is None:
        return current.size
    if previous.shape != current.shape:
        raise ValueError(f"{previous.size} and {current.size} rows are not of one public set")
    return int(np.count_nonzero(previous != current))
