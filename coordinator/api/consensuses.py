"""The admin's service: preview another rule on a closed round, export a consensus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import structlog
from pydantic import ValidationError

from coordinator.api.admin_part import AdminPart
from coordinator.api.interceptor import caller
from coordinator.api.translation import agreement_messages, consensus_header
from coordinator.context import ServiceContext
from coordinator.rounds.preview import preview, require_previewable
from coordinator.rounds.stored_ballots import StoredBallots
from wire.chunks import chunks
from wire.consilium.v1 import admin_pb2
from wire.errors import PREVIEW_REFUSED, Refusal
from wire.runtime.configuration import explain
from wire.task.consensus_policy import ConsensusPolicy

log = structlog.get_logger()


class ConsensusReading(AdminPart):
    """The part of the admin's service that reads consensuses."""

    def __init__(self, service: ServiceContext) -> None:
        super().__init__(service)
        # One preview at a time: counting takes a core, which rounds need too.
        self._counting = asyncio.Lock()

    async def PreviewConsensus(
        self, request: admin_pb2.PreviewConsensusRequest, context: Any
    ) -> admin_pb2.PreviewConsensusResponse:
        """Counts the ballots of a closed round by another policy, in a thread of its own."""
        service = self._service
        task = await service.task_cache.task(request.task)
        try:
            policy = ConsensusPolicy.from_proto(request.policy)
        except ValidationError as error:
            why = explain(error, ConsensusPolicy)
            raise Refusal(PREVIEW_REFUSED, task=task.name, why=why) from None
        closed, published = await service.in_store(
            service.store.tasks.consensus, task.name, request.round
        )
        require_previewable(task.definition, policy, closed.voted)
        declared = await service.in_store(
            service.store.ballots.declarations, task.name, closed.number
        )
        ballots = StoredBallots(
            service.store, service.in_store, task.name, closed.number, closed.voted
        )
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
        task = await self._service.task_cache.task(request.task)
        everything = tuple(range(len(task.definition.labels)))
        closed, payload = await self._service.task_cache.consensus(task, request.round, everything)
        yield admin_pb2.ExportConsensusResponse(header=consensus_header(task.name, closed))
        for data in chunks(payload):
            yield admin_pb2.ExportConsensusResponse(data=data)
