"""The tables. Alembic's migrations create them; this module is how the store reads and writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Instant(TypeDecorator[datetime]):
    """A moment in UTC, kept as microseconds so that both engines agree to the last digit."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> int | None:
        """To the database."""
        return None if value is None else (value - _EPOCH) // timedelta(microseconds=1)

    def process_result_value(self, value: Any | None, dialect: Any) -> datetime | None:
        """From the database."""
        return None if value is None else _EPOCH + timedelta(microseconds=value)


def in_order(name: Column[str]) -> ColumnElement[str]:
    """To sort names by: code points on both engines, whatever the database's locale says of hyphens."""
    return name.collate("C")


metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
    }
)

silos = Table(
    "silos",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("status", String(16), nullable=False),
    Column("registered_at", Instant, nullable=False),
    Column("lease_instance", String(64)),
    Column("lease_until", Instant),
    Column("last_seen_at", Instant),
    Column("activity", Integer, nullable=False, default=0),
    Column("agent_version", String(32), nullable=False, default=""),
)

admins = Table(
    "admins",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("status", String(16), nullable=False),
    Column("registered_at", Instant, nullable=False),
)

tokens = Table(
    "join_tokens",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("role", String(16), nullable=False),
    Column("name", String(63), nullable=False),
    Column("secret_hash", String(64), nullable=False),
    Column("expires_at", Instant, nullable=False),
    Column("redeemed_by", String(64)),
)

certificates = Table(
    "certificates",
    metadata,
    Column("fingerprint", String(64), primary_key=True),
    Column("role", String(16), nullable=False),
    Column("name", String(63), nullable=False),
    Column("key_hash", String(64), nullable=False, unique=True),
    Column("pem", Text, nullable=False),
    Column("expires_at", Instant, nullable=False),
    Column("issued", BigInteger, nullable=False),
    Column("withdrawn", Boolean, nullable=False, default=False),
    UniqueConstraint("role", "name", "issued"),
)

public_sets = Table(
    "public_sets",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("schema", JSON, nullable=False),
    Column("added_at", Instant, nullable=False),
    UniqueConstraint("name", "digest"),
)

extractors = Table(
    "extractors",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("public_set", String(64), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("dimensions", Integer, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("added_at", Instant, nullable=False),
)

tasks = Table(
    "tasks",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("definition", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("reason", Text, nullable=False, default=""),
    Column("revision", BigInteger, nullable=False),
    Column("created_at", Instant, nullable=False),
)

rounds = Table(
    "rounds",
    metadata,
    Column("task", ForeignKey("tasks.name"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("opened_at", Instant, nullable=False),
    Column("closes_at", Instant, nullable=False),
    Column("expected", JSON, nullable=False),
    Column("quorum_at", Instant),
    Column("extensions", Integer, nullable=False, default=0),
    Column("closing", String(32)),
    Column("closed_at", Instant),
    Column("ballots", Integer),
    Column("consensus", LargeBinary),
    Column("consensus_digest", String(64)),
    Column("consensus_bytes", BigInteger),
    Column("changed_rows", BigInteger),
    Column("abstained_rows", BigInteger),
    Column("agreement", JSON(none_as_null=True)),
)

ballots = Table(
    "ballots",
    metadata,
    Column("task", String(63), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("silo", ForeignKey("silos.name"), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("accepted_at", Instant, nullable=False),
    Column("signer", String(64), nullable=False),
    Column("signature", LargeBinary, nullable=False),
    Column("privacy", JSON(none_as_null=True)),
    Column("consensuses_seen", JSON(none_as_null=True)),
    ForeignKeyConstraint(["task", "round"], ["rounds.task", "rounds.number"]),
)

party_releases = Table(
    "party_releases",
    metadata,
    Column("task", String(63), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("released_at", Instant, nullable=False),
    Column("sensitivity", Integer, nullable=False),
    Column("gamma_micros", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("draws", Integer, nullable=False, server_default="1"),
    ForeignKeyConstraint(["task", "round"], ["rounds.task", "rounds.number"]),
)

revisions = Table(
    "revisions",
    metadata,
    Column("only", Boolean, primary_key=True),
    Column("value", BigInteger, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Instant, nullable=False),
    Column("actor", String(128), nullable=False),
    Column("act", String(32), nullable=False),
    Column("subject", String(128), nullable=False),
    Column("details", JSON, nullable=False),
    Column("previous", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
)

audit_head = Table(
    "audit_head",
    metadata,
    Column("only", Boolean, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("hash", String(64), nullable=False),
)

signers = Table(
    "signers",
    metadata,
    Column("fingerprint", String(64), primary_key=True),
    Column("pem", Text, nullable=False),
)
