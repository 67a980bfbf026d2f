"""Task states and consensuses for silos: read from the store once after a change, shared by all streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

import numpy as np

from coordinator.consensus import labels_for
from coordinator.rounds.change_signal import ChangeSignal
from coordinator.store import Store
from coordinator.store.executor import StoreExecutor
from coordinator.store.records import ClosedRound, MemberStatus, TaskRecord
from wire.ballot import ABSTAIN, BallotShape, Encoding, digest, pack
from wire.consilium.v1 import task_pb2
from wire.errors import CONSENSUS_UNKNOWN, SILO_REVOKED, SILO_SUSPENDED, Refusal
from wire.task.definition import TaskStatus

ConsensusView = tuple[ClosedRound, bytes]
"""A consensus as one silo sees it: its header and its bits, packed as INDEX."""


@dataclass
class _CachedConsensus:
    """A consensus as it is stored, and its views by the classes that are known."""

    task: str
    closed: ClosedRound
    payload: bytes
    views: dict[tuple[int, ...], ConsensusView] = field(default_factory=dict)

    def is_round(self, task: str, round_number: int) -> bool:
        """True if it is that task's and that round's."""
        return (self.task, self.closed.number) == (task, round_number)


class TaskCache:
    """Started tasks in the order of their last change, and the consensus read last."""

    def __init__(
        self,
        store: Store,
        in_store: StoreExecutor,
        changes: ChangeSignal,
        to_message: Callable[[TaskRecord], task_pb2.TaskState],
    ) -> None:
        self._store = store
        self._in_store = in_store
        self._changes = changes
        self._to_message = to_message
        self._seen: asyncio.Event | None = None
        self._reading = asyncio.Lock()
        self._states: dict[str, tuple[TaskRecord, task_pb2.TaskState]] = {}
        self._revision = 0
        self._member_status: dict[str, MemberStatus] = {}
        self._fetching = asyncio.Lock()
        self._fetched: _CachedConsensus | None = None

    async def task_states(self, silo: str, after_revision: int) -> list[task_pb2.TaskState]:
        """The states of the tasks `silo` may take part in that changed after `after_revision`, oldest change first."""
        await self._refresh()
        return [
            message
            for record, message in self._states.values()
            if record.revision > after_revision and record.invites(silo)
        ]

    async def public_sets(self, silo: str) -> list[str]:
        """Digests of the public sets that running tasks need of `silo`, sorted."""
        await self._refresh()
        tasks = (record for record, _ in self._states.values() if record.invites(silo))
        running = (task for task in tasks if task.status is TaskStatus.RUNNING)
        return sorted({task.definition.public_set for task in running})

    async def require_admitted(self, silo: str) -> None:
        """Raises the refusal that ends the streams of a silo shut out since they were opened."""
        await self._refresh()
        match self._member_status.get(silo):
            case MemberStatus.REVOKED:
                raise Refusal(SILO_REVOKED, name=silo)
            case MemberStatus.SUSPENDED:
                raise Refusal(SILO_SUSPENDED, name=silo)
            case MemberStatus.ACTIVE | MemberStatus.INVITED | None:
                return
            case unknown:
                assert_never(unknown)

    async def _refresh(self) -> None:
        """Reads what changed in the store since it was last read; tasks that ended long ago cost nothing."""
        async with self._reading:
            waiter = self._changes.waiter()
            if waiter is self._seen:
                return
            changed = await self._in_store(self._store.tasks.changed_since, self._revision)
            silos = await self._in_store(self._store.silos.all)
            for record in changed:
                # Behind all others, which changed before it.
                self._states.pop(record.name, None)
                self._states[record.name] = record, self._to_message(record)
                self._revision = record.revision
            self._member_status = {silo.name: silo.status for silo in silos}
            self._seen = waiter

    async def task(self, name: str) -> TaskRecord:
        """A task whose definition and digest are right, as they never change; its state may be older."""
        if name in self._states:
            return self._states[name][0]
        return await self._in_store(self._store.tasks.get, name)

    async def consensus_for(self, silo: str, task: TaskRecord, round_number: int) -> ConsensusView:
        """What `silo` sees of a round's consensus, 0 for the latest; CONSENSUS_UNKNOWN if it does not take part."""
        if not task.invites(silo):
            raise Refusal(CONSENSUS_UNKNOWN, task=task.name, round=round_number or "any")
        return await self.consensus(task, round_number, task.definition.label_space(silo))

    async def consensus(
        self, task: TaskRecord, round_number: int, known: tuple[int, ...]
    ) -> ConsensusView:
        """The consensus of a round, 0 for the latest, as one sees it who knows the classes `known`.

        The last one read is kept, and its views: all silos want the same, and many know the same.
        """
        async with self._fetching:
            held = self._fetched
            if held is None or not held.is_round(task.name, round_number):
                latest = await self._in_store(self._store.tasks.consensus, task.name, round_number)
                if held is None or not held.is_round(task.name, latest[0].number):
                    held = self._fetched = _CachedConsensus(task.name, *latest)
            if known not in held.views:
                held.views[known] = await asyncio.to_thread(
                    view, held.closed, held.payload, task.definition.consensus_shape, known
                )
        return held.views[known]


def view(
    closed: ClosedRound, payload: bytes, shape: BallotShape, known: Sequence[int]
) -> ConsensusView:
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
