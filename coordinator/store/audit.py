"""The audit chain: one entry per act, written in the same transaction as the act itself."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from sqlalchemy import (
    BigInteger,
    Connection,
    Engine,
    RowMapping,
    Text,
    cast,
    insert,
    select,
    type_coerce,
    update,
)

from coordinator.store.actors import Actor, TokenHolder
from coordinator.store.engine import snapshot
from coordinator.store.schema import audit, audit_head
from wire.runtime.chain import Head, Link, append

_PAGE = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Needed with every act, hence built once.
_LOCKED_HEAD = select(audit_head).with_for_update()
_APPEND = insert(audit)
_MOVE_HEAD = update(audit_head)


class Act(StrEnum):
    """What can be done to a consortium."""

    MEMBER_REGISTERED = "member_registered"
    MEMBER_JOINED = "member_joined"
    ADMIN_ADMITTED = "admin_admitted"
    CERTIFICATE_RENEWED = "certificate_renewed"
    SILO_SUSPENDED = "silo_suspended"
    SILO_RESUMED = "silo_resumed"
    MEMBER_REVOKED = "member_revoked"
    AUTHORITY_ROTATION_BEGUN = "authority_rotation_begun"
    AUTHORITY_ROTATION_FINISHED = "authority_rotation_finished"
    BALLOT_DROPPED = "ballot_dropped"
    PUBLIC_SET_PUBLISHED = "public_set_published"
    EXTRACTOR_PUBLISHED = "extractor_published"
    TASK_CREATED = "task_created"
    TASK_STARTED = "task_started"
    TASK_PAUSED = "task_paused"
    ROUND_EXTENDED = "round_extended"
    BALLOT_ACCEPTED = "ballot_accepted"
    CONSENSUS_PUBLISHED = "consensus_published"


@dataclass(frozen=True)
class AuditRecord:
    """One entry: who did what to which thing, and when. Digests and counts, never labels."""

    at: datetime
    actor: str
    act: Act
    subject: str
    details: dict[str, str | int]

    def entry(self) -> dict[str, object]:
        """What is hashed; `at` to the microsecond, in UTC."""
        return {
            "at": self.at.isoformat(timespec="microseconds"),
            "actor": self.actor,
            "act": str(self.act),
            "subject": self.subject,
            "details": self.details,
        }


def record(
    tx: Connection,
    at: datetime,
    by: Actor | TokenHolder,
    act: Act,
    subject: str,
    **details: str | int,
) -> None:
    """Appends an act within the transaction that performs it."""
    # The head row is the chain's lock: replicas append one after the other.
    last = _head(tx.execute(_LOCKED_HEAD).mappings().one())
    audited = AuditRecord(at, str(by), act, subject, dict(details))
    link = append(last, audited.entry())
    head = {"sequence": link.sequence, "hash": link.hash}
    tx.execute(_APPEND, {**vars(audited), **head, "previous": link.previous})
    tx.execute(_MOVE_HEAD, head)


class AuditStore:
    """Reads the chain as it stands, whatever someone did to it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def head(self) -> Head:
        """Where the chain ends according to the row that every append updates."""
        with snapshot(self._engine) as tx:
            return _head(tx.execute(select(audit_head)).mappings().one())

    def page(self, after: int = 0) -> list[Link]:
        """The next links behind `after` by number; empty at the end."""
        # As plain text and number: a value that was tampered with must not keep the rest from being read.
        columns = [column for column in audit.c if column.name not in ("at", "details")]
        query = (
            select(
                *columns,
                type_coerce(audit.c.at, BigInteger).label("at"),
                cast(audit.c.details, Text).label("details"),
            )
            .where(audit.c.sequence > after)
            .order_by(audit.c.sequence)
            .limit(_PAGE)
        )
        with snapshot(self._engine) as tx:
            rows = tx.execute(query).mappings().all()
        return [_link(row) for row in rows if isinstance(row["sequence"], int)]


def _head(row: RowMapping) -> Head:
    return Head(row["sequence"], row["hash"])


def _link(row: RowMapping) -> Link:
    entry: dict[str, object] = {name: str(row[name]) for name in ("actor", "act", "subject")}
    entry |= {"at": _moment(row["at"]), "details": _details(row["details"])}
    return Link(row["sequence"], entry, str(row["previous"]), str(row["hash"]))


def _moment(stored: object) -> str:
    try:
        moment = _EPOCH + timedelta(microseconds=int(str(stored)))
    except (ValueError, OverflowError):
        return str(stored)
    return moment.isoformat(timespec="microseconds")


def _details(stored: object) -> object:
    try:
        return json.loads(str(stored))
    except ValueError:
        return str(stored)
