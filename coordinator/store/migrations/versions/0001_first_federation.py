"""Silos, tokens, public sets, tasks, rounds, ballots."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from coordinator.store.schema import Instant

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Creates every table of the first release."""
    op.create_table(
        "silos",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("registered_at", Instant, nullable=False),
        sa.Column("certificate_fingerprint", sa.String(64)),
        sa.Column("certificate_expires_at", Instant),
        sa.Column("lease_instance", sa.String(64)),
        sa.Column("lease_until", Instant),
        sa.Column("last_seen_at", Instant),
        sa.Column("activity", sa.Integer, nullable=False),
        sa.Column("agent_version", sa.String(32), nullable=False),
    )
    op.create_table(
        "join_tokens",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("silo", sa.String(63), sa.ForeignKey("silos.name"), nullable=False),
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.Column("expires_at", Instant, nullable=False),
        sa.Column("redeemed_by", sa.String(64)),
        sa.Column("certificate_pem", sa.Text),
    )
    op.create_table(
        "public_sets",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("schema", sa.JSON, nullable=False),
        sa.Column("added_at", Instant, nullable=False),
        sa.UniqueConstraint("name", "digest"),
    )
    op.create_table(
        "tasks",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("definition", sa.Text, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
    )
    op.create_table(
        "rounds",
        sa.Column("task", sa.String(63), sa.ForeignKey("tasks.name"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("opened_at", Instant, nullable=False),
        sa.Column("closes_at", Instant, nullable=False),
        sa.Column("expected", sa.JSON, nullable=False),
        sa.Column("quorum_at", Instant),
        sa.Column("extensions", sa.Integer, nullable=False),
        sa.Column("closing", sa.String(32)),
        sa.Column("closed_at", Instant),
        sa.Column("ballots", sa.Integer),
        sa.Column("consensus", sa.LargeBinary),
        sa.Column("consensus_digest", sa.String(64)),
        sa.Column("consensus_bytes", sa.BigInteger),
        sa.Column("changed_rows", sa.BigInteger),
        sa.Column("abstained_rows", sa.BigInteger),
    )
    op.create_table(
        "ballots",
        sa.Column("task", sa.String(63), primary_key=True),
        sa.Column("round", sa.Integer, primary_key=True),
        sa.Column("silo", sa.String(63), sa.ForeignKey("silos.name"), primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.Column("accepted_at", Instant, nullable=False),
        sa.ForeignKeyConstraint(["task", "round"], ["rounds.task", "rounds.number"]),
    )
    revisions = op.create_table(
        "revisions",
        sa.Column("only", sa.Boolean, primary_key=True),
        sa.Column("value", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(revisions, [{"only": True, "value": 0}])
