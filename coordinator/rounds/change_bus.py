"""Publishes that something changed to everyone who waits, on this replica and on all others of the same database.

Within a process a `ChangeSignal` wakes waiters; between processes PostgreSQL carries a notification (LISTEN and
NOTIFY). A notification may get lost, with a connection or with the replica that should have sent it, so every replica
also polls: a lost notification costs seconds, never a round.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Final

import structlog

from coordinator.rounds.change_signal import ChangeSignal
from coordinator.store import CHANNEL, Store
from coordinator.store.executor import StoreExecutor
from wire.errors import COORDINATOR_STOPPING, Refusal

log = structlog.get_logger()

POLL_SECONDS: Final = 5.0
_RECONNECT_SECONDS = 1.0


class Topic(StrEnum):
    """What may have changed."""

    TASKS = "tasks"
    """A task's state, or whether a silo may take part: silos that watch must be sent it."""
    BALLOTS = "ballots"
    """A ballot was stored, a silo connected or left, an admin acted: the scheduler must look at rounds."""
    MEMBERS = "members"
    """A member was shut out or a certificate withdrawn: calls under way must be judged again."""


class ChangeBus:
    """One signal per topic and replica. Call `announce` after the change is committed, never before."""

    def __init__(self, store: Store, in_store: StoreExecutor) -> None:
        self._store = store
        self._in_store = in_store
        self._origin = secrets.token_hex(8)
        self._unsent: set[Topic] = set()
        self._sending = asyncio.Event()
        self._closed = False
        self.tasks = ChangeSignal()
        """Fires for `Topic.TASKS`."""
        self.ballots = ChangeSignal()
        """Fires for `Topic.BALLOTS`."""
        self.members = ChangeSignal()
        """Fires for `Topic.MEMBERS`."""

    def announce(self, *topics: Topic) -> None:
        """Fires the signals here at once, and on every other replica when the database has delivered it."""
        self._fire(*topics)
        if self._store.shared:
            self._unsent.update(topics)
            self._sending.set()

    def close(self) -> None:
        """This replica is about to stop: wakes everyone who waits here, for the last time."""
        self._closed = True
        self._fire(*Topic)

    def require_open(self) -> None:
        """COORDINATOR_STOPPING after `close`: callers should watch another replica."""
        if self._closed:
            raise Refusal(COORDINATOR_STOPPING)

    async def run(self) -> None:
        """Exchanges notifications with other replicas until cancelled; returns at once on a store of one's own."""
        if self._store.shared:
            await asyncio.gather(self._send(), self._listen(), self._poll())

    def _fire(self, *topics: Topic) -> None:
        for topic in topics:
            self._signal(topic).fire()

    def _signal(self, topic: Topic) -> ChangeSignal:
        match topic:
            case Topic.TASKS:
                return self.tasks
            case Topic.BALLOTS:
                return self.ballots
            case Topic.MEMBERS:
                return self.members

    async def _send(self) -> None:
        """Sends one notification for everything announced since the last one."""
        while True:
            await self._sending.wait()
            self._sending.clear()
            topics, self._unsent = self._unsent, set()
            message = " ".join([self._origin, *sorted(topics)])
            try:
                await self._in_store(self._store.notify, message)
            except Exception as error:
                log.warning("change_notify_failed", kind=type(error).__name__)

    async def _listen(self) -> None:
        """Fires for what others announce; after every reconnection for all topics, as something may be missed."""
        import psycopg

        while True:
            try:
                async for message in self._messages():
                    origin, *topics = message.split()
                    if origin != self._origin:
                        self._fire(*(topic for topic in Topic if topic in topics))
            except (psycopg.Error, OSError) as error:
                log.warning("change_listen_interrupted", kind=type(error).__name__)
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _messages(self) -> AsyncIterator[str]:
        """The notifications of one connection, after a first message of our own that names every topic."""
        import psycopg

        arguments = self._store.connect_arguments()
        async with await psycopg.AsyncConnection.connect(
            **arguments, autocommit=True
        ) as connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            log.info("change_listen_connected")
            yield " ".join(["reconnected", *Topic])
            async for notification in connection.notifies():
                yield notification.payload

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self._fire(*Topic)
