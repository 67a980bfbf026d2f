"""The notice board: task states and consensuses for silos, read from the store once and shared by all."""

from __future__ import annotations

import asyncio

from coordinator.bell import Bell
from coordinator.store import Store
from coordinator.store.records import ClosedRound, MemberStatus, TaskRecord
from coordinator.store_thread import StoreThread
from coordinator.translation import task_message
from wire.consilium.v1 import task_pb2
from wire.errors import SILO_REVOKED, SILO_SUSPENDED, Refusal


class Board:
    """Started tasks, oldest change first."""

    def __init__(self, store: Store, in_store: StoreThread, changes: Bell) -> None:
        self._store = store
        self._in_store = in_store
        self._changes = changes
        self._seen: asyncio.Event | None = None
        self._reading = asyncio.Lock()
        self._notices: list[tuple[TaskRecord, task_pb2.TaskState]] = []
        self._standing: dict[str, MemberStatus] = {}
        self._fetching = asyncio.Lock()
        self._fetched: tuple[str, ClosedRound, bytes] | None = None

    async def notices(self, silo: str, after_revision: int) -> list[task_pb2.TaskState]:
        """What `silo` has not heard of since `after_revision`."""
        await self._refresh()
        return [
            message
            for record, message in self._notices
            if record.revision > after_revision
            and (not record.definition.silos or silo in record.definition.silos)
        ]

    async def require_standing(self, silo: str) -> None:
        """Raises the refusal that ends the streams of a silo shut out since they were opened."""
        await self._refresh()
        status = self._standing.get(silo)
        if status is MemberStatus.REVOKED:
            raise Refusal(SILO_REVOKED, name=silo)
        if status is MemberStatus.SUSPENDED:
            raise Refusal(SILO_SUSPENDED, name=silo)

    async def _refresh(self) -> None:
        """Reads the store if something changed since it was last read."""
        async with self._reading:
            ticket = self._changes.ticket()
            if ticket is self._seen:
                return
            records = await self._in_store(self._store.tasks.changed_since, 0)
            silos = await self._in_store(self._store.silos.all)
            self._notices = [(record, task_message(record)) for record in records]
            self._standing = {silo.name: silo.status for silo in silos}
            self._seen = ticket

    async def task(self, name: str) -> TaskRecord:
        """The task's definition and digest, which never change once it is on the board."""
        for record, _ in self._notices:
            if record.name == name:
                return record
        return await self._in_store(self._store.tasks.get, name)

    async def consensus(self, name: str, number: int) -> tuple[ClosedRound, bytes]:
        """The consensus of a round, 0 for the latest. The last one read is kept: all silos want the same."""
        async with self._fetching:
            held = self._fetched
            if held is None or (held[0], held[1].number) != (name, number):
                closed, payload = await self._in_store(self._store.tasks.consensus, name, number)
                held = self._fetched = (name, closed, payload)
        return held[1], held[2]
