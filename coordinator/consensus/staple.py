"""STAPLE, after Dawid and Skene: how reliable each silo is, and what is true, estimated from one another.

A silo has a confusion matrix: how often it votes v where c is true. A class has a prevalence. Starting from the
majority, EM takes turns: the matrices that the labels so far make likely, then the labels that the matrices make
likely. A silo that guesses then counts little, one that always says the same nothing, one that exchanges classes
is read the other way round. An abstention says nothing.

Priors keep it sound where there is little to learn from: `STRENGTH` rows of every class in which the silo was right
`EXPERT` of the time and else voted as it does on the whole. A class it never votes for gets no such credit: it votes
there as everywhere, which says little against that class. `SPREAD` bounds what one vote can say. A class nobody voted
for on a row is not published there.

Log-likelihoods are whole numbers of 1/GRAIN nat, so sums do not depend on the order of silos, ties are exact, and EM
has converged when no number moves by more than one. It learns from at most `SAMPLE` rows, drawn by the ballots themselves: a
silo cannot know before it votes on which rows it will be judged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from coordinator.consensus.majority import majority
from coordinator.consensus.poll import Poll
from coordinator.consensus.tally import ROW_BLOCK
from coordinator.consensus.ties import TieKey
from wire.ballot import ABSTAIN, BallotShape, Labels, class_planes, digest, unpack

Shares: TypeAlias = npt.NDArray[np.float64]
"""Probabilities."""
LogTable: TypeAlias = npt.NDArray[np.int32]
"""Log-likelihoods in grains."""

STRENGTH: Final = 5.0
EXPERT: Final = 0.8
"""As in `noise_weights`: how often an expert is assumed to be right; public and the same for every silo."""
SPREAD: Final = 0.05
"""So much of a silo's votes may be anything."""
GRAIN: Final = 4096
SAMPLE: Final = 16_384
"""Rows that reliability is learned from at most; a share is then known to a third of a percent."""
SAMPLE_CELLS: Final = 1 << 22
"""Rows times classes of the sample at most."""
ITERATIONS: Final = 100


@dataclass(frozen=True, eq=False)
class Reliability:
    """What was learned of silos and classes."""

    tables: tuple[LogTable, ...] = field(repr=False)
    """Per silo (classes + 1, classes): what a vote (first axis) says for each true class; the last row, an
    abstention, says nothing."""
    prevalence: LogTable
    """(classes,)"""
    iterations: int

    def confusion(self, silo: int) -> Shares:
        """(true, voted) probabilities of a silo by its number."""
        shares: Shares = np.exp(self.tables[silo][:-1].T / GRAIN)
        return shares


def staple(poll: Poll) -> Labels:
    """(rows,) labels, ABSTAIN where nobody voted. Three passes over the ballots; 4 bytes per row and class,
    4 per silo and pair of classes."""
    shape = poll.shape
    seen = np.zeros((shape.classes, shape.plane_bytes), dtype=np.uint8)
    digests = []
    for _, payload in poll.ballots:
        seen |= class_planes(payload, shape)
        digests.append(digest(payload))
    rows = _sample(seen, shape, digests)
    learned = learn([unpack(data, shape)[rows] for _, data in poll.ballots], shape.classes)
    likely = np.tile(learned.prevalence, (shape.rows, 1))
    for table, (_, payload) in zip(learned.tables, poll.ballots, strict=True):
        labels = unpack(payload, shape)
        for start in range(0, shape.rows, ROW_BLOCK):
            likely[start : start + ROW_BLOCK] += table[labels[start : start + ROW_BLOCK]]
    labels = np.empty(shape.rows, dtype=np.int32)
    for start in range(0, shape.rows, ROW_BLOCK):
        stop = min(start + ROW_BLOCK, shape.rows)
        voted = np.unpackbits(seen[:, start // 8 : (stop + 7) // 8], axis=1, count=stop - start)
        labels[start:stop] = _likeliest(likely[start:stop], voted.T, start, poll.key)
    return labels


def learn(votes: Sequence[Labels], classes: int) -> Reliability:
    """Reliability of every silo by EM from the majority; the silos' votes on the same rows, each voted on by one at least."""
    rows = len(votes[0]) if votes else 0
    counts = np.zeros((rows, classes))
    for labels in votes:
        cast = np.flatnonzero(labels != ABSTAIN)
        counts[cast, labels[cast]] += 1
    leading = counts == counts.max(axis=1, keepdims=True)
    truth: Shares = leading / leading.sum(axis=1, keepdims=True)
    priors = [_prior(labels, classes) for labels in votes]
    before: Reliability | None = None
    for iteration in range(1, ITERATIONS + 1):
        learned = Reliability(
            tuple(
                _table(labels, truth, prior) for labels, prior in zip(votes, priors, strict=True)
            ),
            _grains((truth.sum(axis=0) + 1) / (truth.sum() + classes)),
            iteration,
        )
        if before is not None and _settled(before, learned):
            break
        before = learned
        truth = _truth(votes, learned, rows)
    return learned


def _truth(votes: Sequence[Labels], learned: Reliability, rows: int) -> Shares:
    """(rows, classes) how likely each class is on each row."""
    likely = np.tile(learned.prevalence, (rows, 1))
    for labels, table in zip(votes, learned.tables, strict=True):
        likely += table[labels]
    likely -= likely.max(axis=1, keepdims=True)
    shares: Shares = np.exp(likely / GRAIN)
    shares /= shares.sum(axis=1, keepdims=True)
    return shares


def _table(labels: Labels, truth: Shares, prior: Shares) -> LogTable:
    """What a silo's votes say, given how likely the classes are; see `Reliability.tables`."""
    classes = truth.shape[1]
    # Votes in the first place, so that an abstention, -1, is the last of them.
    cells = (labels % (classes + 1))[:, None] * classes + np.arange(classes)
    seen = np.bincount(cells.ravel(), truth.ravel(), (classes + 1) * classes)
    expected = seen.reshape(classes + 1, classes)[:-1] + prior
    shares = expected / np.maximum(expected.sum(axis=0), np.finfo(float).tiny)
    table = np.zeros((classes + 1, classes), dtype=np.int32)
    table[:-1] = _grains((1 - SPREAD) * shares + SPREAD / classes)
    return table


def _prior(labels: Labels, classes: int) -> Shares:
    """(voted, true) rows assumed of a silo before anything is learned of it."""
    cast = np.bincount(labels[labels != ABSTAIN], minlength=classes)
    usual = (cast / max(1, cast.sum()))[:, None]
    right = EXPERT * np.eye(classes) + (1 - EXPERT) * usual
    prior: Shares = STRENGTH * np.where(cast > 0, right, usual)
    return prior


def _likeliest(
    likely: LogTable, voted: npt.NDArray[np.uint8], first_row: int, key: TieKey
) -> Labels:
    """The likeliest class that has a vote; ties by the tie rule."""
    above = likely.astype(np.int64) - likely.min(axis=1, keepdims=True) + 1
    return majority((above * voted).astype(np.uint64), first_row, key)


def _sample(
    seen: npt.NDArray[np.uint8], shape: BallotShape, digests: Sequence[str]
) -> npt.NDArray[np.intp]:
    """Rows with a vote, in ascending order; so many as are learned from, drawn by all ballots together."""
    rows = np.flatnonzero(np.unpackbits(np.bitwise_or.reduce(seen, axis=0), count=shape.rows))
    most = min(SAMPLE, max(1, SAMPLE_CELLS // shape.classes))
    if len(rows) <= most:
        return rows
    drawn = hashlib.sha256("\n".join(sorted(digests)).encode()).digest()
    ranks = TieKey(int.from_bytes(drawn[:8], "big")).row_seeds(rows)
    return np.sort(rows[np.argpartition(ranks, most)[:most]])


def _grains(shares: Shares) -> LogTable:
    grains: LogTable = np.rint(GRAIN * np.log(shares)).astype(np.int32)
    return grains


def _settled(before: Reliability, after: Reliability) -> bool:
    """Whether nothing moved by more than a grain: rounding may sway between two neighbours for ever."""
    pairs = zip((before.prevalence, *before.tables), (after.prevalence, *after.tables), strict=True)
    return all(np.abs(one - other).max() <= 1 for one, other in pairs)
