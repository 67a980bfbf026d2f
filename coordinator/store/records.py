"""What the store returns: immutable values, no rows, no sessions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from coordinator.consensus import Agreement, PartyRelease
from coordinator.round_engine import ClosedBy, Round
from wire.identity.identity import Role
from wire.privacy.declaration import Declaration
from wire.task.definition import TaskDefinition, TaskStatus


class MemberStatus(StrEnum):
    """Whether a silo or an admin may take part."""

    INVITED = "invited"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    REVOKED = "revoked"


@dataclass(frozen=True)
class SiloRecord:
    """A silo as the coordinator knows it."""

    name: str
    status: MemberStatus
    registered_at: datetime
    certificate_expires_at: datetime | None
    """When its newest certificate expires; None before it has joined."""
    lease_instance: str | None
    lease_until: datetime | None
    last_seen_at: datetime | None
    activity: int
    agent_version: str

    def connected(self, now: datetime) -> bool:
        """True while its lease runs."""
        return self.lease_until is not None and now < self.lease_until


@dataclass(frozen=True)
class AdminRecord:
    """An admin as the coordinator knows it."""

    name: str
    status: MemberStatus
    registered_at: datetime
    certificate_expires_at: datetime | None


@dataclass(frozen=True)
class TokenRecord:
    """A join token without its secret."""

    id: str
    role: Role
    name: str
    secret_hash: str
    expires_at: datetime


@dataclass(frozen=True)
class IssuedCertificate:
    """A certificate the authority has signed."""

    pem: str
    fingerprint: str
    expires_at: datetime


@dataclass(frozen=True)
class PublicSetRecord:
    """A published public set; `schema` is the JSON form of `wire.schema.SetSchema`."""

    name: str
    version: int
    digest: str
    rows: int
    size_bytes: int
    schema: dict[str, object]
    added_at: datetime


@dataclass(frozen=True)
class ExtractorRecord:
    """An extractor published with a public set, which `public_set` names by its digest."""

    digest: str
    public_set: str
    kind: str
    dimensions: int
    size_bytes: int
    added_at: datetime


@dataclass(frozen=True)
class BallotRecord:
    """A stored ballot without its bits."""

    task: str
    round: int
    silo: str
    digest: str
    accepted_at: datetime
    signer: str
    signature: bytes
    already_held: bool
    declaration: Declaration = field(default_factory=Declaration)
    """What its silo said of its privacy."""
    consensuses_seen: tuple[str, ...] = ()
    """Digests of consensuses of this round that its silo was sent before the coordinator was restored."""


@dataclass(frozen=True)
class SiloDeclaration:
    """What a silo said of its latest ballot in a task."""

    silo: str
    round: int
    declaration: Declaration


@dataclass(frozen=True)
class Consensus:
    """What a closed round published, packed as the task's `consensus_shape`."""

    payload: bytes
    digest: str
    changed_rows: int
    abstained_rows: int
    ballots: int
    release: PartyRelease | None = None
    """What it costs to publish, if its counts were noisy."""
    agreement: Mapping[str, Agreement] = field(default_factory=dict)
    """How far each silo agrees with it."""


@dataclass(frozen=True)
class ClosedRound:
    """A closed round without its bits."""

    number: int
    opened_at: datetime
    closed_at: datetime
    closed_by: ClosedBy
    digest: str
    size_bytes: int
    changed_rows: int
    abstained_rows: int
    ballots: int
    voted: tuple[str, ...]
    agreement: Mapping[str, Agreement] = field(default_factory=dict)
    """By silo; empty behind party-level noise, and of rounds that nobody compared."""


@dataclass(frozen=True)
class TaskAgreement:
    """How far silos agree with a task's latest consensus."""

    task: str
    silos: Mapping[str, Agreement]


@dataclass(frozen=True)
class VotingState:
    """What decides whether a ballot for a task is taken."""

    status: TaskStatus
    quorum: int
    open_round: Round | None


@dataclass(frozen=True)
class TaskRecord:
    """A task as it stands."""

    definition: TaskDefinition
    digest: str
    status: TaskStatus
    reason: str
    revision: int
    open_round: Round | None
    latest: ClosedRound | None

    @property
    def name(self) -> str:
        """The task's unique name."""
        return self.definition.name

    def invites(self, silo: str) -> bool:
        """True if the definition lets a silo take part: it names this one, or none."""
        return not self.definition.silos or silo in self.definition.silos

    @property
    def stalled(self) -> bool:
        """True if the coordinator paused it for want of ballots and no admin has paused it since."""
        return (
            self.status is TaskStatus.PAUSED
            and self.open_round is not None
            and self.open_round.extensions > self.definition.rounds.max_extensions
        )
