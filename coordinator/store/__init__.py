"""The coordinator's database: members, public sets, tasks, ballots, and the audit chain."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from coordinator.store.audit import AuditStore
from coordinator.store.ballots import BallotStore
from coordinator.store.close_lock import CloseLock, try_close_lock
from coordinator.store.engine import POSTGRES, connect_arguments, open_database
from coordinator.store.extractors import ExtractorStore
from coordinator.store.members import MemberStore
from coordinator.store.outstanding import OutstandingStore
from coordinator.store.party_releases import PartyLedger
from coordinator.store.public_sets import PublicSetStore
from coordinator.store.signers import SignerStore
from coordinator.store.silos import SiloStore
from coordinator.store.tasks import TaskStore

__all__ = ["Store"]

CHANNEL = "consilium"
"""Where replicas on one PostgreSQL notify each other."""


class Store:
    """One database. Methods block; services call them through a `StoreExecutor`."""

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
        self.outstanding = OutstandingStore(self._engine)
        self.party_ledger = PartyLedger(self._engine)

    @property
    def shared(self) -> bool:
        """True if other replicas may work on the same database."""
        return self._engine.dialect.name == POSTGRES

    def try_close_lock(self, task: str, round_number: int) -> CloseLock | None:
        """The lock on closing a round, to be released; None if another holds it."""
        return try_close_lock(self._engine, task, round_number)

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
