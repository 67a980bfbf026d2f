"""How far each silo agrees with a consensus, and the extractors published with public sets."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from coordinator.store.schema import Instant

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Nobody compared older rounds: NULL says so."""
    op.add_column("rounds", sa.Column("agreement", sa.JSON))
    op.create_table(
        "extractors",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("public_set", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("dimensions", sa.Integer, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("added_at", Instant, nullable=False),
    )
