"""Everything the coordinator must not forget: members, public sets, tasks, ballots, and who did what."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import text

from coordinator.store.audit import AuditStore
from coordinator.store.ballots import BallotStore
from coordinator.store.engine import POSTGRES, connect_arguments, open_database
from coordinator.store.extractors import ExtractorStore
from coordinator.store.holdings import HoldingStore
from coordinator.store.members import MemberStore
from coordinator.store.party_releases import PartyLedger
from coordinator.store.public_sets import PublicSetStore
from coordinator.store.signers import SignerStore
from coordinator.store.silos import SiloStore
from coordinator.store.tasks import TaskStore
from coordinator.store.turns import closing_turn

__all__ = ["Store"]

CHANNEL = "consilium"
"""Where replicas on one PostgreSQL notify each other."""


class Store:
    """One database. Methods block; the service calls them from its store threads."""

    def __init__(self, url: str) -> None:
        self._engine = open_database(url)
        self.members = MemberStore(self._engine)
        self.silos = SiloStore(self._engine)
        self.public_sets = PublicSetStore(self._engine)
        self.extractors = ExtractorStore(self._engine)
        self.tasks = TaskStore(self._engine)
        self.ballots = BallotStore(self._engine)
        self.signers = SignerStore(self._engine)
        self.audit = AuditStore(self._engine)
        self.holdings = HoldingStore(self._engine)
        self.party_ledger = PartyLedger(self._engine)

    @property
    def shared(self) -> bool:
        """True if other replicas may work on the same database."""
        return self._engine.dialect.name == POSTGRES

    def closing_turn(self, task: str, number: int) -> AbstractContextManager[bool]:
        """True inside the block if it is this replica's turn to close the round."""
        return closing_turn(self._engine, task, number)

    def notify(self, message: str) -> None:
        """Sends a short message to everyone who listens to a shared database."""
        with self._engine.begin() as tx:
            tx.execute(
                text("SELECT pg_notify(:channel, :message)"),
                {"channel": CHANNEL, "message": message},
            )

    def connect_arguments(self) -> dict[str, Any]:
        """What psycopg needs for a connection of one's own to a shared database."""
        return connect_arguments(self._engine)

    def close(self) -> None:
        """Returns every connection."""
        self._engine.dispose()
