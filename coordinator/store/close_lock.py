"""The lock on closing a round: one replica at a time holds it, and a replica that dies gives it up.

It saves double work and nothing else: that a round has one consensus is guarded by the task's row.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, text

from coordinator.store.engine import POSTGRES
from wire.errors import Refusal


@dataclass(frozen=True)
class CloseLock:
    """Held until `release`; on PostgreSQL also no longer than its connection, which occupies no thread."""

    session: Connection | None
    """The connection that holds the advisory lock; None on SQLite, which has one replica only."""
    key: int

    def release(self) -> None:
        """Frees the lock and returns its connection. A connection that was lost has freed it already."""
        if self.session is None:
            return
        with self.session as session, suppress(Refusal):
            try:
                session.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": self.key})
            except BaseException:
                # The pool must not get back a connection that may still hold the lock.
                session.invalidate()
                raise


def try_close_lock(engine: Engine, task: str, round_number: int) -> CloseLock | None:
    """The lock on closing a round; None while another replica, or another closer of this one, holds it."""
    content = f"close {task} {round_number}".encode()
    key = int.from_bytes(hashlib.sha256(content).digest()[:8], signed=True)
    if engine.dialect.name != POSTGRES:
        return CloseLock(None, key)
    # A lock of the session: PostgreSQL frees it when the connection ends, however that comes about.
    session = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    try:
        taken = session.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": key})
        if taken.scalar_one():
            return CloseLock(session, key)
    except BaseException:
        session.invalidate()
        session.close()
        raise
    session.close()
    return None
