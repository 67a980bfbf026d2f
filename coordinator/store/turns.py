"""Whose turn it is to close a round: one replica at a time; if it dies, the turn is free again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import Engine, text

from coordinator.store.engine import POSTGRES
from wire.errors import Refusal


@contextmanager
def closing_turn(engine: Engine, task: str, number: int) -> Iterator[bool]:
    """True for the one replica whose turn it is while the block runs, False for all others.

    The turn saves double work; that a round has one consensus is guarded by the task's row. SQLite has one
    replica, whose turn it always is.
    """
    if engine.dialect.name != POSTGRES:
        yield True
        return
    key = int.from_bytes(
        hashlib.sha256(f"close {task} {number}".encode()).digest()[:8], signed=True
    )
    # A session's lock: PostgreSQL frees it when the connection ends, however that comes about.
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as session:
        mine = session.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": key}).scalar_one()
        try:
            yield bool(mine)
        except BaseException:
            # Whatever went wrong, the pool must not get a connection that holds a lock.
            session.invalidate()
            raise
        if mine:
            # A connection that is gone has given the turn back already.
            with suppress(Refusal):
                session.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": key})
