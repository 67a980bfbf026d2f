"""Admins, certificates that follow each other, signed receipts, the audit chain."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from coordinator.store.schema import Instant

revision = "0002"
down_revision = "0001"

_GENESIS = "0" * 64


def upgrade() -> None:
    """Keeps every silo, token and ballot of the first release."""
    op.create_table(
        "admins",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("registered_at", Instant, nullable=False),
    )
    op.create_table(
        "certificates",
        sa.Column("fingerprint", sa.String(64), primary_key=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("key_hash", sa.String(64), nullable=False, unique=True),
        sa.Column("pem", sa.Text, nullable=False),
        sa.Column("expires_at", Instant, nullable=False),
        sa.Column("issued", sa.BigInteger, nullable=False),
        sa.Column("withdrawn", sa.Boolean, nullable=False),
        sa.UniqueConstraint("role", "name", "issued"),
    )
    _carry_certificates()
    with op.batch_alter_table("silos") as silos:
        silos.drop_column("certificate_fingerprint")
        silos.drop_column("certificate_expires_at")
    _rebuild_tokens()
    # Ballots of the first release have no signature; an empty one says so.
    # SQLite takes '' for text, even in a column of bytes; PostgreSQL takes X'' for bits.
    no_bytes = sa.text("X''" if op.get_bind().dialect.name == "sqlite" else "''")
    with op.batch_alter_table("ballots") as ballots:
        ballots.add_column(sa.Column("signer", sa.String(64), nullable=False, server_default=""))
        ballots.add_column(
            sa.Column("signature", sa.LargeBinary, nullable=False, server_default=no_bytes)
        )
    op.create_table(
        "audit",
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", Instant, nullable=False),
        sa.Column("actor", sa.String(128), nullable=False),
        sa.Column("act", sa.String(32), nullable=False),
        sa.Column("subject", sa.String(128), nullable=False),
        sa.Column("details", sa.JSON, nullable=False),
        sa.Column("previous", sa.String(64), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
    )
    head = op.create_table(
        "audit_head",
        sa.Column("only", sa.Boolean, primary_key=True),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
    )
    op.create_table(
        "signers",
        sa.Column("fingerprint", sa.String(64), primary_key=True),
        sa.Column("pem", sa.Text, nullable=False),
    )
    op.bulk_insert(head, [{"only": True, "sequence": 0, "hash": _GENESIS}])


def _carry_certificates() -> None:
    """Every silo's current certificate becomes its first row; a revoked silo's is withdrawn."""
    connection = op.get_bind()
    rows = connection.execute(
        sa.text(
            "SELECT s.name, s.status, s.certificate_fingerprint, s.certificate_expires_at, "
            "t.redeemed_by, t.certificate_pem FROM silos s JOIN join_tokens t ON t.silo = s.name "
            "WHERE t.redeemed_by IS NOT NULL AND s.certificate_fingerprint IS NOT NULL"
        )
    ).all()
    for name, status, fingerprint, expires_at, key_hash, pem in rows:
        withdrawn = status == "revoked"
        # Raw SQL reads the stored microseconds, so they are written back raw too.
        connection.execute(
            sa.text(
                "INSERT INTO certificates (fingerprint, role, name, key_hash, pem, expires_at, "
                "issued, withdrawn) VALUES (:f, 'silo', :n, :k, :p, :e, 0, :w)"
            ),
            {
                "f": fingerprint,
                "n": name,
                "k": key_hash,
                "p": pem,
                "e": expires_at,
                "w": withdrawn,
            },
        )


def _rebuild_tokens() -> None:
    op.create_table(
        "join_tokens_new",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.Column("expires_at", Instant, nullable=False),
        sa.Column("redeemed_by", sa.String(64)),
    )
    op.execute(
        "INSERT INTO join_tokens_new (id, role, name, secret_hash, expires_at, redeemed_by) "
        "SELECT id, 'silo', silo, secret_hash, expires_at, redeemed_by FROM join_tokens"
    )
    op.drop_table("join_tokens")
    op.rename_table("join_tokens_new", "join_tokens")
