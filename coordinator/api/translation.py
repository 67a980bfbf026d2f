"""The store's records as the wire's messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from coordinator.consensus import Agreement
from coordinator.consensus.party_noise import PartyEntry
from coordinator.store.records import (
    AdminRecord,
    BallotRecord,
    ClosedRound,
    ExtractorRecord,
    MemberStatus,
    PublicSetRecord,
    SiloDeclaration,
    SiloRecord,
    TaskRecord,
)
from wire.consilium.v1 import (
    admin_pb2,
    ballot_pb2,
    identity_pb2,
    registry_pb2,
    rounds_pb2,
    task_pb2,
)
from wire.identity.identity import Role
from wire.runtime.chain import Link
from wire.schema import SetSchema
from wire.task.definition import TaskStatus


def timestamp(moment: datetime | None) -> Timestamp | None:
    """A moment; None stays unset."""
    if moment is None:
        return None
    message = Timestamp()
    message.FromDatetime(moment)
    return message


def duration(length: timedelta) -> Duration:
    """A length of time."""
    message = Duration()
    message.FromTimedelta(length)
    return message


def role_message(role: Role) -> identity_pb2.MemberRole.ValueType:
    """What a member may do; ValueError for the coordinator, which is no member."""
    match role:
        case Role.SILO:
            return identity_pb2.MEMBER_ROLE_SILO
        case Role.ADMIN:
            return identity_pb2.MEMBER_ROLE_ADMIN
        case Role.COORDINATOR:
            raise ValueError("the coordinator is no member")


def member_status_message(status: MemberStatus) -> admin_pb2.MemberStatus.ValueType:
    """Whether a member may take part."""
    match status:
        case MemberStatus.INVITED:
            return admin_pb2.MEMBER_STATUS_INVITED
        case MemberStatus.ACTIVE:
            return admin_pb2.MEMBER_STATUS_ACTIVE
        case MemberStatus.SUSPENDED:
            return admin_pb2.MEMBER_STATUS_SUSPENDED
        case MemberStatus.REVOKED:
            return admin_pb2.MEMBER_STATUS_REVOKED


def admin_message(admin: AdminRecord) -> admin_pb2.Admin:
    """An admin."""
    return admin_pb2.Admin(
        name=admin.name,
        status=member_status_message(admin.status),
        registered_at=timestamp(admin.registered_at),
        certificate_expires_at=timestamp(admin.certificate_expires_at),
    )


def audit_message(link: Link) -> admin_pb2.ListAuditResponse:
    """An entry of the audit chain; a time that is none stays unset."""
    entry = link.entry
    try:
        at = timestamp(datetime.fromisoformat(str(entry["at"])))
    except ValueError:
        at = None
    return admin_pb2.ListAuditResponse(
        sequence=link.sequence,
        at=at,
        actor=str(entry["actor"]),
        act=str(entry["act"]),
        subject=str(entry["subject"]),
        details=json.dumps(entry["details"], sort_keys=True, separators=(",", ":")),
        previous=link.previous,
        hash=link.hash,
    )


def silo_message(silo: SiloRecord, now: datetime) -> admin_pb2.Silo:
    """A silo; whether it is connected follows from its lease at `now`."""
    return admin_pb2.Silo(
        name=silo.name,
        status=member_status_message(silo.status),
        registered_at=timestamp(silo.registered_at),
        certificate_expires_at=timestamp(silo.certificate_expires_at),
        last_seen_at=timestamp(silo.last_seen_at),
        connected=silo.connected(now),
        activity=rounds_pb2.Activity.ValueType(silo.activity),
        agent_version=silo.agent_version,
    )


def public_set_message(record: PublicSetRecord) -> registry_pb2.PublicSet:
    """A public set."""
    return registry_pb2.PublicSet(
        digest=record.digest,
        name=record.name,
        version=record.version,
        rows=record.rows,
        size_bytes=record.size_bytes,
        schema=SetSchema.model_validate(record.schema).to_proto(),
        added_at=timestamp(record.added_at),
    )


def extractor_message(record: ExtractorRecord) -> registry_pb2.Extractor:
    """An extractor."""
    return registry_pb2.Extractor(
        digest=record.digest,
        public_set=record.public_set,
        kind=record.kind,
        dimensions=record.dimensions,
        size_bytes=record.size_bytes,
        added_at=timestamp(record.added_at),
    )


def consensus_header(task: str, closed: ClosedRound) -> ballot_pb2.ConsensusHeader:
    """A consensus without its bits."""
    return ballot_pb2.ConsensusHeader(
        task=task,
        round=closed.number,
        size_bytes=closed.size_bytes,
        digest=closed.digest,
        changed_rows=closed.changed_rows,
        abstained_rows=closed.abstained_rows,
        ballots=closed.ballots,
    )


def task_message(task: TaskRecord) -> task_pb2.TaskState:
    """A task as it stands."""
    message = task_pb2.TaskState(
        revision=task.revision,
        definition=task.definition.to_proto(),
        digest=task.digest,
        status=task.status.to_proto(),
        reason=task.reason,
    )
    current = task.open_round
    if current is not None and task.status is TaskStatus.RUNNING:
        message.open_round.CopyFrom(
            task_pb2.OpenRound(
                number=current.number,
                opened_at=timestamp(current.opened_at),
                closes_at=timestamp(current.closes_at),
                expected=sorted(current.expected),
                voted=sorted(current.voted),
                extensions=current.extensions,
            )
        )
    if task.latest is not None:
        message.consensus.CopyFrom(consensus_header(task.name, task.latest))
    return message


def history_message(task: str, closed: ClosedRound) -> admin_pb2.ClosedRound:
    """A closed round."""
    return admin_pb2.ClosedRound(
        consensus=consensus_header(task, closed),
        opened_at=timestamp(closed.opened_at),
        closed_at=timestamp(closed.closed_at),
        closed_by=str(closed.closed_by),
        voted=closed.voted,
        agreement=agreement_messages(closed.agreement),
    )


def agreement_messages(agreement: Mapping[str, Agreement]) -> list[admin_pb2.SiloAgreement]:
    """How far each silo agrees, by name."""
    return [
        admin_pb2.SiloAgreement(silo=silo, compared_rows=rows.compared, agreeing_rows=rows.same)
        for silo, rows in sorted(agreement.items())
    ]


def declaration_message(declared: SiloDeclaration) -> admin_pb2.SiloDeclaration:
    """What a silo said of its latest ballot."""
    return admin_pb2.SiloDeclaration(
        silo=declared.silo, round=declared.round, privacy=declared.declaration.to_proto()
    )


def party_release_message(entry: PartyEntry) -> admin_pb2.ListPartyReleasesResponse:
    """An entry of the coordinator's own privacy ledger."""
    return admin_pb2.ListPartyReleasesResponse(
        task=entry.task,
        round=entry.round,
        released_at=timestamp(entry.released_at),
        sensitivity=entry.release.sensitivity,
        gamma_micros=entry.release.gamma_micros,
        rows=entry.release.rows,
        draws=entry.release.draws,
    )


def receipt_message(ballot: BallotRecord) -> ballot_pb2.Receipt:
    """The proof a silo keeps."""
    return ballot_pb2.Receipt(
        task=ballot.task,
        round=ballot.round,
        silo=ballot.silo,
        digest=ballot.digest,
        accepted_at=timestamp(ballot.accepted_at),
        already_held=ballot.already_held,
        signer=ballot.signer,
        signature=ballot.signature,
    )
