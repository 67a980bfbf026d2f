"""What admins read of consensuses: what another rule would have published, and what was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import structlog
from pydantic import ValidationError

from coordinator.desk import Desk
from coordinator.gate import caller
from coordinator.preview import preview, require_previewable
from coordinator.translation import agreement_messages, consensus_header
from wire.chunks import chunks
from wire.configuration import explain
from wire.consensus_policy import ConsensusPolicy
from wire.consilium.v1 import admin_pb2, admin_pb2_grpc
from wire.errors import PREVIEW_REFUSED, Refusal

log = structlog.get_logger()


class ConsensusReading(admin_pb2_grpc.AdminServiceServicer):
    """The part of the admin's service that looks at consensuses and changes nothing."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        # Counting is work: one preview after the other, so that rounds need not wait for them all.
        self._counting = asyncio.Lock()

    async def PreviewConsensus(
        self, request: admin_pb2.PreviewConsensusRequest, context: Any
    ) -> admin_pb2.PreviewConsensusResponse:
        """Counts the ballots of a closed round by another policy, in a thread of its own."""
        desk = self._desk
        task = await desk.board.task(request.task)
        try:
            policy = ConsensusPolicy.from_proto(request.policy)
        except ValidationError as error:
            why = explain(error, ConsensusPolicy)
            raise Refusal(PREVIEW_REFUSED, task=task.name, why=why) from None
        closed, published = await desk.in_store(
            desk.store.tasks.consensus, task.name, request.round
        )
        require_previewable(task.definition, policy, closed.voted)
        declared = await desk.in_store(desk.store.ballots.declarations, task.name, closed.number)
        ballots = RoundBallots(desk, task.name, closed.number, closed.voted)
        async with self._counting:
            found = await asyncio.to_thread(
                preview, task.definition, policy, closed.number, declared, ballots, published
            )
        log.info(
            "consensus_previewed",
            task=task.name,
            round=closed.number,
            rule=str(policy.rule),
            admin=caller().name,
        )
        return admin_pb2.PreviewConsensusResponse(
            round=closed.number,
            rows=task.definition.rows,
            abstained_rows=found.abstained_rows,
            differing_rows=found.differing_rows,
            labelled_rows=found.labelled_rows,
            agreement=agreement_messages(found.agreement),
        )

    async def ExportConsensus(
        self, request: admin_pb2.ExportConsensusRequest, context: Any
    ) -> AsyncIterator[admin_pb2.ExportConsensusResponse]:
        """The header, then the bits, as one sees them who knows all classes."""
        task = await self._desk.board.task(request.task)
        everything = tuple(range(len(task.definition.labels)))
        closed, payload = await self._desk.board.consensus(task, request.round, everything)
        yield admin_pb2.ExportConsensusResponse(header=consensus_header(task.name, closed))
        for data in chunks(payload):
            yield admin_pb2.ExportConsensusResponse(data=data)


@dataclass(frozen=True)
class RoundBallots:
    """The ballots of a closed round for a thread that counts: one at a time, each a short call to the store."""

    desk: Desk
    task: str
    number: int
    silos: tuple[str, ...]

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        for silo in self.silos:
            payload = self.desk.store.ballots.payload
            yield silo, self.desk.in_store.from_thread(payload, self.task, self.number, silo)
