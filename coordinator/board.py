"""The notice board: task states and consensuses for silos, read from the store once and shared by all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from coordinator.bell import Bell
from coordinator.consensus import labels_for
from coordinator.store import Store
from coordinator.store.records import ClosedRound, MemberStatus, TaskRecord
from coordinator.store_thread import StoreThread
from coordinator.translation import task_message
from wire.ballot import ABSTAIN, BallotShape, Encoding, digest, pack
from wire.consilium.v1 import task_pb2
from wire.errors import SILO_REVOKED, SILO_SUSPENDED, Refusal

View = tuple[ClosedRound, bytes]
"""A consensus as someone sees it: its header and its bits, packed as INDEX."""


@dataclass
class _Published:
    """A consensus as it is stored, and what was made of it for those who know the same classes."""

    task: str
    closed: ClosedRound
    payload: bytes
    views: dict[tuple[int, ...], View] = field(default_factory=dict)

    def is_round(self, task: str, number: int) -> bool:
        """True if it is that task's and that round's."""
        return (self.task, self.closed.number) == (task, number)


class Board:
    """Started tasks, oldest change first."""

    def __init__(self, store: Store, in_store: StoreThread, changes: Bell) -> None:
        self._store = store
        self._in_store = in_store
        self._changes = changes
        self._seen: asyncio.Event | None = None
        self._reading = asyncio.Lock()
        self._notices: dict[str, tuple[TaskRecord, task_pb2.TaskState]] = {}
        self._revision = 0
        self._standing: dict[str, MemberStatus] = {}
        self._fetching = asyncio.Lock()
        self._fetched: _Published | None = None

    async def notices(self, silo: str, after_revision: int) -> list[task_pb2.TaskState]:
        """What `silo` has not heard of since `after_revision`."""
        await self._refresh()
        return [
            message
            for record, message in self._notices.values()
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
        """Reads what changed in the store since it was last read; tasks that ended long ago cost nothing."""
        async with self._reading:
            ticket = self._changes.ticket()
            if ticket is self._seen:
                return
            changed = await self._in_store(self._store.tasks.changed_since, self._revision)
            silos = await self._in_store(self._store.silos.all)
            for record in changed:
                # Behind all others, which changed before it.
                self._notices.pop(record.name, None)
                self._notices[record.name] = record, task_message(record)
                self._revision = record.revision
            self._standing = {silo.name: silo.status for silo in silos}
            self._seen = ticket

    async def task(self, name: str) -> TaskRecord:
        """The task's definition and digest, which never change once it is on the board."""
        if name in self._notices:
            return self._notices[name][0]
        return await self._in_store(self._store.tasks.get, name)

    async def consensus(self, task: TaskRecord, number: int, known: tuple[int, ...]) -> View:
        """The consensus of a round, 0 for the latest, as one sees it who knows the classes `known`.

        The last one read is kept, and its views: all silos want the same, and many know the same.
        """
        async with self._fetching:
            held = self._fetched
            if held is None or not held.is_round(task.name, number):
                latest = await self._in_store(self._store.tasks.consensus, task.name, number)
                if held is None or not held.is_round(task.name, latest[0].number):
                    held = self._fetched = _Published(task.name, *latest)
            if known not in held.views:
                held.views[known] = await asyncio.to_thread(
                    view, held.closed, held.payload, task.definition.consensus_shape, known
                )
        return held.views[known]


def view(closed: ClosedRound, payload: bytes, shape: BallotShape, known: Sequence[int]) -> View:
    """What one who knows the classes `known` is given of a stored consensus.

    Who knows all gets an INDEX consensus as it is stored, bit by bit.
    """
    if shape.encoding is Encoding.INDEX and len(known) == shape.classes:
        return closed, payload
    labels = labels_for(payload, shape, known)
    seen = pack(labels, shape.as_index())
    header = replace(
        closed,
        digest=digest(seen),
        size_bytes=len(seen),
        abstained_rows=int(np.count_nonzero(labels == ABSTAIN)),
    )
    return header, seen
