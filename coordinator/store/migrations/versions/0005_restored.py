"""What silos remember and a coordinator restored from a backup does not: consensuses of rounds held again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Nobody was asked before: ballots say nothing, and every release counts as one draw."""
    op.add_column("ballots", sa.Column("consensuses_seen", sa.JSON))
    op.add_column(
        "party_releases", sa.Column("draws", sa.Integer, nullable=False, server_default="1")
    )
