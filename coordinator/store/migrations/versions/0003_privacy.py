"""What silos declare of their ballots' privacy, and the coordinator's own ledger of noisy consensuses."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from coordinator.store.schema import Instant

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Older ballots declared nothing: NULL says so."""
    op.add_column("ballots", sa.Column("privacy", sa.JSON))
    op.create_table(
        "party_releases",
        sa.Column("task", sa.String(63), primary_key=True),
        sa.Column("round", sa.Integer, primary_key=True),
        sa.Column("released_at", Instant, nullable=False),
        sa.Column("sensitivity", sa.Integer, nullable=False),
        sa.Column("gamma_micros", sa.BigInteger, nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["task", "round"], ["rounds.task", "rounds.number"]),
    )
