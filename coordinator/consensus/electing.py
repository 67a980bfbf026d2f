"""An election: the ballots of one round become what is published, by the rule the task names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from coordinator.consensus.agreement import Agreement, agreements
from coordinator.consensus.claims import PerClassThreshold
from coordinator.consensus.credibility import weights_of
from coordinator.consensus.forming import form_consensus
from coordinator.consensus.party_noise import NoisyRule, PartyRelease, release_of
from coordinator.consensus.poll import BallotBox, Poll
from coordinator.consensus.rules import counts_certainties, rule_for
from coordinator.consensus.staple import staple
from coordinator.consensus.ties import TieKey
from coordinator.consensus.trimmed import Trimmed
from coordinator.consensus.views import labels_for
from wire.ballot import ABSTAIN, BallotShape, Labels, pack
from wire.consensus_policy import RuleName
from wire.privacy.declaration import Declaration
from wire.privacy.randomness import Bits, SecureBits
from wire.task import TaskDefinition

_SECURE = SecureBits()


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
    """What the ballots of round `number` publish. `declared` names every silo in the box and no other.

    To preview another rule, give the task with another policy.
    """
    poll = Poll(
        shape=task.shape,
        ballots=ballots,
        weights=weights_of(task, declared),
        key=TieKey.of(task.digest, number),
        known=task.label_space,
    )
    release, published = release_of(task), task.consensus_shape
    payload = _published(task, poll, release, bits)
    agreement = agreements(poll, payload, published) if release is None else {}
    return Outcome(payload, published, len(declared), agreement, release)


def _published(task: TaskDefinition, poll: Poll, release: PartyRelease | None, bits: Bits) -> bytes:
    """What the rule makes of a poll, packed. Three rules read the ballots themselves; all others count them."""
    policy = task.consensus
    match policy.rule:
        case RuleName.PER_CLASS_THRESHOLD:
            return PerClassThreshold(policy.threshold_permille)(poll)
        case RuleName.STAPLE:
            labels = staple(poll)
        case RuleName.TRIMMED:
            labels = Trimmed(policy.trim_permille)(poll)
        case _:
            rule = rule_for(policy)
            if release is not None:
                rule = NoisyRule(rule, release, bits)
            tally = poll.tally(certainties=counts_certainties(policy))
            labels = form_consensus(tally, rule, poll.key)
    return pack(labels, task.consensus_shape)
