"""News: what has changed, told to everyone who waits on this replica and on all others of the same database.

Bells ring within a process; between processes PostgreSQL carries a message (LISTEN and NOTIFY). A message may
get lost, with a connection or with the replica that should have sent it, so everyone also looks by themselves
from time to time: lost news costs seconds, never a round.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Final

import structlog

from coordinator.bell import Bell
from coordinator.store import CHANNEL, Store
from coordinator.store_thread import StoreThread
from wire.errors import COORDINATOR_STOPPING, Refusal

log = structlog.get_logger()

POLL_SECONDS: Final = 5.0
_RECONNECT_SECONDS = 1.0


class Topic(StrEnum):
    """What may have changed."""

    TASKS = "tasks"
    """Silos have something new to hear: a task's state, or that they are shut out."""
    BALLOTS = "ballots"
    """A ballot came, a silo came or went, an admin acted: rounds must be looked at."""


class News:
    """Two bells per replica. `announce` after the change is committed, never before."""

    def __init__(self, store: Store, in_store: StoreThread) -> None:
        self._store = store
        self._in_store = in_store
        self._origin = secrets.token_hex(8)
        self._unsent: set[Topic] = set()
        self._sending = asyncio.Event()
        self._ended = False
        self.tasks = Bell()
        """Rung for `Topic.TASKS`."""
        self.ballots = Bell()
        """Rung for `Topic.BALLOTS`."""

    def announce(self, *topics: Topic) -> None:
        """Rings here at once and on every other replica as soon as the database has passed it on."""
        self._ring(*topics)
        if self._store.shared:
            self._unsent.update(topics)
            self._sending.set()

    def end(self) -> None:
        """This replica is about to stop: wakes everyone who waits here, for the last time."""
        self._ended = True
        self._ring(*Topic)

    def require_more(self) -> None:
        """COORDINATOR_STOPPING if there will be no more news here: one should wait elsewhere."""
        if self._ended:
            raise Refusal(COORDINATOR_STOPPING)

    async def run(self) -> None:
        """Exchanges news with the other replicas until cancelled; returns at once if there can be none."""
        if self._store.shared:
            await asyncio.gather(self._send(), self._listen(), self._poll())

    def _ring(self, *topics: Topic) -> None:
        for topic in topics:
            {Topic.TASKS: self.tasks, Topic.BALLOTS: self.ballots}[topic].ring()

    async def _send(self) -> None:
        """One message for everything announced since the last one."""
        while True:
            await self._sending.wait()
            self._sending.clear()
            topics, self._unsent = self._unsent, set()
            message = " ".join([self._origin, *sorted(topics)])
            try:
                await self._in_store(self._store.notify, message)
            except Exception as error:
                log.warning("news_not_sent", kind=type(error).__name__)

    async def _listen(self) -> None:
        """Rings for what others announce; after every pause for everything, as something may be missed."""
        import psycopg

        while True:
            try:
                async for message in self._messages():
                    origin, *topics = message.split()
                    if origin != self._origin:
                        self._ring(*(topic for topic in Topic if topic in topics))
            except (psycopg.Error, OSError) as error:
                log.warning("news_interrupted", kind=type(error).__name__)
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _messages(self) -> AsyncIterator[str]:
        """What arrives on one connection; the first message is our own invention."""
        import psycopg

        arguments = self._store.connect_arguments()
        async with await psycopg.AsyncConnection.connect(
            **arguments, autocommit=True
        ) as connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            log.info("news_connected")
            yield " ".join(["reconnected", *Topic])
            async for notification in connection.notifies():
                yield notification.payload

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self._ring(*Topic)
