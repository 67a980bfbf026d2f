"""Party-level noise (FedKT-L1): Laplace noise on every count before a label is chosen, and what that costs.

Neighbours are two rounds in which one silo's ballot is exchanged for any other, an empty one included. That moves
the counts of a row by at most `sensitivity` in L1, so counts + Laplace(1/γ) are γ · sensitivity differentially
private per row, and everything made from them is post-processing: the label, churn, abstentions, the end of a task.
Rounds compose adaptively: what others vote later depends on this silo only through what was published.

What it does not hide: that a silo took part and when, and anything from the coordinator itself, which counts ballots
before it adds noise. All ballots count alike here, since a weight that follows from one silo's declaration would
change the influence of another's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from typing import Final

import numpy as np

from coordinator.consensus.rules import Rule, counts_certainties
from coordinator.consensus.tally import Counts
from coordinator.consensus.ties import TieKey
from wire.ballot import BEST_SCORE, BallotShape, Encoding, Labels
from wire.privacy.declaration import MICRO
from wire.privacy.events import Laplace
from wire.privacy.randomness import Bits
from wire.task.definition import TaskDefinition

GRAINS: Final = 256
"""Steps of the grid that noise is drawn on, per vote; fixed in advance."""
_PREFIX: Final = "party_"
_CELLS: Final = 1 << 20
"""Counts whose noise is held at one time."""


@dataclass(frozen=True)
class PartyRelease:
    """What a round's published consensus says of a silo at most: `rows` answers, each with Laplace noise."""

    sensitivity: int
    """How far one silo can move the counts of a row, in L1 and votes."""
    gamma_micros: int
    """γ of the Laplace(1/γ) noise, in millionths."""
    rows: int
    draws: int = 1
    """Consensuses of this round that became known: a coordinator restored from a backup draws noise anew."""

    def audit_details(self) -> dict[str, int]:
        """What the audit chain says of it, beside the consensus."""
        return {_PREFIX + name: value for name, value in vars(self).items()}

    @classmethod
    def in_audit(cls, details: object) -> PartyRelease | None:
        """The release that the details of an audit entry speak of, if they do."""
        if not isinstance(details, Mapping):
            return None
        said = {
            field.name: details.get(_PREFIX + field.name, field.default) for field in fields(cls)
        }
        return None if MISSING in said.values() else cls(**said)

    @property
    def answers(self) -> int:
        """Rows, counted once per draw."""
        return self.draws * self.rows

    @property
    def event(self) -> Laplace:
        """For the accountant; the unit of privacy is a whole silo."""
        scale = MICRO / self.gamma_micros
        return Laplace(sensitivity=self.sensitivity, scale=scale, count=self.answers)

    @property
    def pure_epsilon(self) -> float:
        """ε at δ = 0: answers · sensitivity · γ. Such costs add up."""
        return self.answers * self.sensitivity * self.gamma_micros / MICRO


@dataclass(frozen=True)
class PartyEntry:
    """An entry of the coordinator's own ledger."""

    task: str
    round: int
    released_at: datetime
    release: PartyRelease


def sensitivity(shape: BallotShape, *, certainties: bool = False, votes: int = 1) -> int:
    """How far one ballot exchanged for another moves the counts of a row, in L1.

    INDEX and SCORED: a vote leaves one class for another; where certainties count, it takes the highest along.
    ONE_HOT: any pattern of ones may become its opposite. A ballot that counts `votes` times moves so much more.
    """
    match shape.encoding:
        case Encoding.ONE_HOT:
            return votes * shape.classes
        case Encoding.INDEX | Encoding.SCORED:
            return votes * 2 * (BEST_SCORE if certainties else 1)


def release_of(task: TaskDefinition) -> PartyRelease | None:
    """What one consensus of a task costs; None if the task has no party-level noise."""
    gamma = task.privacy.party_gamma
    if gamma is None:
        return None
    moved = sensitivity(
        task.shape,
        certainties=counts_certainties(task.consensus.rule),
        votes=task.votes_per_ballot,
    )
    return PartyRelease(moved, round(gamma * MICRO), task.rows)


@dataclass(frozen=True)
class NoisyRule:
    """A rule that sees counts only behind noise.

    It is given counts in units of 1/GRAINS vote; those that noise made negative are 0, so that a row may still
    be left without a label. Qualified shares are of noisy counts too.
    """

    rule: Rule
    release: PartyRelease
    bits: Bits

    def __call__(self, counts: Counts, first_row: int, key: TieKey) -> Labels:
        """Labels of a block of rows; every call draws anew. See `rules.Rule`."""
        step = max(1, _CELLS // counts.shape[1])
        labels = [
            self.rule(self._noisy(counts[start : start + step]), first_row + start, key)
            for start in range(0, len(counts), step)
        ]
        return np.concatenate(labels)

    def _noisy(self, counts: Counts) -> Counts:
        # Brings scipy along, which a coordinator without party noise never needs.
        from wire.privacy import noise

        exact = counts.T.astype(np.int64) * GRAINS
        drawn = noise.laplace(GRAINS * MICRO / self.release.gamma_micros, exact.shape, self.bits)
        noisy: Counts = np.maximum(exact + drawn, 0).astype(np.uint64).T
        return noisy
