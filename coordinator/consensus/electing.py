"""An election: the ballots of one round become what is published, by the rule the task names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from coordinator.consensus.decoding import ballot_weights
from coordinator.consensus.forming import form_consensus
from coordinator.consensus.party_noise import NoisyRule, PartyRelease, release_of
from coordinator.consensus.rules import rule_for
from coordinator.consensus.tally import Tally
from coordinator.consensus.ties import TieKey
from coordinator.consensus.views import labels_for
from wire.ballot import ABSTAIN, BallotShape, Labels, Packed, pack
from wire.privacy.declaration import Declaration
from wire.privacy.randomness import Bits, SecureBits
from wire.task import TaskDefinition

_SECURE = SecureBits()


class BallotBox(Protocol):
    """The ballots of a round by silo, in a fixed order; may be gone through more than once."""

    def __iter__(self) -> Iterator[tuple[str, Packed]]: ...


@dataclass(frozen=True)
class Agreement:
    """How far a silo's ballot agrees with the consensus."""

    compared: int
    """Rows that have a consensus and the silo's vote."""
    same: int
    """Of these, rows on which both say the same."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a round publishes, and what its ballots say of one another."""

    payload: bytes = field(repr=False)
    shape: BallotShape
    """INDEX, or ONE_HOT where several classes may claim a row."""
    ballots: int
    agreement: Mapping[str, Agreement]
    """By silo; empty behind party-level noise, which it would undo."""
    release: PartyRelease | None
    """What it costs to publish, if its counts were noisy."""

    def labels(self, known: Sequence[int] | None = None) -> Labels:
        """(rows,) labels as a silo that knows these classes sees them; all classes if None."""
        known = range(self.shape.classes) if known is None else known
        return labels_for(self.payload, self.shape, known)

    @property
    def abstained_rows(self) -> int:
        """Rows without a label for one who knows all classes."""
        return int(np.count_nonzero(self.labels() == ABSTAIN))


def elect(
    task: TaskDefinition,
    number: int,
    declared: Mapping[str, Declaration],
    ballots: BallotBox,
    bits: Bits = _SECURE,
) -> Outcome:
    """What the ballots of round `number` publish. `declared` names every silo in the box.

    To preview another rule, give the task with another policy.
    """
    shape = task.shape
    rule = rule_for(task.consensus)
    release = release_of(task)
    weights = dict.fromkeys(declared, 1)
    if release is None:
        each = ballot_weights(list(declared.values()), shape.classes, shape.encoding)
        weights = dict(zip(declared, each, strict=True))
    else:
        rule = NoisyRule(rule, release, bits)
    tally = Tally(shape)
    for silo, payload in ballots:
        tally.add(payload, weights[silo])
    labels = form_consensus(tally, rule, TieKey.of(task.digest, number))
    published = shape.as_index()
    return Outcome(pack(labels, published), published, tally.ballots, {}, release)
