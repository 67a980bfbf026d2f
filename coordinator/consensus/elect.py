"""Forms the consensus of one round from its ballots, by the rule the task names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from coordinator.consensus.agreement import Agreement, agreements
from coordinator.consensus.label_view import labels_for
from coordinator.consensus.party_noise import NoisyRule, PartyRelease, release_of
from coordinator.consensus.per_class_threshold import PerClassThreshold
from coordinator.consensus.poll import BallotSource, Poll
from coordinator.consensus.rules import counts_certainties, form_consensus, rule_for
from coordinator.consensus.staple import staple
from coordinator.consensus.ties import TieKey
from coordinator.consensus.trimmed import Trimmed
from coordinator.consensus.weights import weights_of
from wire.ballot import ABSTAIN, BallotShape, Labels, pack
from wire.privacy.declaration import Declaration
from wire.privacy.randomness import Bits, SecureBits
from wire.task.consensus_policy import RuleName
from wire.task.definition import TaskDefinition

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
    round_number: int,
    declared: Mapping[str, Declaration],
    ballots: BallotSource,
    bits: Bits = _SECURE,
) -> Outcome:
    """What the ballots of round `round_number` publish. `declared` names every silo that voted and no other.

    To preview another rule, give the task with another policy.
    """
    poll = Poll(
        shape=task.shape,
        ballots=ballots,
        weights=weights_of(task, declared),
        key=TieKey.of(task.digest, round_number),
        known=task.label_space,
    )
    release, shape = release_of(task), task.consensus_shape
    payload = _consensus_payload(task, poll, release, bits)
    agreement = agreements(poll, payload, shape) if release is None else {}
    return Outcome(payload, shape, len(declared), agreement, release)


def _consensus_payload(
    task: TaskDefinition, poll: Poll, release: PartyRelease | None, bits: Bits
) -> bytes:
    """What the rule makes of a poll, packed. Three rules read the ballots themselves; all others count them."""
    policy, shape = task.consensus, task.consensus_shape
    match policy.rule:
        case RuleName.PER_CLASS_THRESHOLD:
            return PerClassThreshold(policy.threshold_permille)(poll)
        case RuleName.STAPLE:
            return pack(staple(poll), shape)
        case RuleName.TRIMMED:
            return pack(Trimmed(policy.trim_permille)(poll), shape)
        case (
            RuleName.MAJORITY
            | RuleName.QUALIFIED_MAJORITY
            | RuleName.WEIGHTED
            | RuleName.CERTAINTY_WEIGHTED
        ):
            rule = rule_for(policy)
            if release is not None:
                rule = NoisyRule(rule, release, bits)
            tally = poll.tally(certainties=counts_certainties(policy.rule))
            return pack(form_consensus(tally, rule, poll.key), shape)
