"""The service silos call: watch, heartbeat, vote, fetch the consensus."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import structlog
from pydantic import ValidationError

from coordinator.api.interceptor import caller
from coordinator.api.translation import consensus_header, duration, receipt_message, timestamp
from coordinator.api.upload import opening
from coordinator.context import ServiceContext
from coordinator.rounds.ballot_check import announced_shape, check_ballot, require_privacy
from coordinator.rounds.change_bus import Topic
from coordinator.store.records import BallotRecord
from wire import __version__
from wire.ballot import MOST_SEEN, BallotShape
from wire.chunks import chunks
from wire.consilium.v1 import ballot_pb2, rounds_pb2, rounds_pb2_grpc
from wire.errors import BALLOT_TOO_LARGE, MESSAGE_MALFORMED, Refusal
from wire.privacy.declaration import Declaration
from wire.receipts import Statement
from wire.runtime.crash_points import crash_point
from wire.runtime.files import is_digest
from wire.version_policy import VERSION_KEY, require_served

log = structlog.get_logger()


class RoundsServicer(rounds_pb2_grpc.RoundsServiceServicer):
    """Called by silos only, as the admission interceptor makes sure."""

    def __init__(self, service: ServiceContext) -> None:
        self._service = service

    async def Watch(
        self, request: rounds_pb2.WatchRequest, context: Any
    ) -> AsyncIterator[rounds_pb2.WatchResponse]:
        """Takes the lease, then yields every task state this silo has not seen."""
        service, silo = self._service, caller().name
        if not request.instance:
            raise Refusal(MESSAGE_MALFORMED, why="an agent must name its instance")
        require_served(silo, request.agent_version, __version__)
        await service.in_store(
            service.store.silos.take_lease,
            caller(),
            request.instance,
            request.agent_version[:32],
            service.clock(),
            service.lease,
        )
        # Tells the agent that it holds the lease, even if there is no task to send yet.
        await context.send_initial_metadata(((VERSION_KEY, __version__),))
        service.change_bus.announce(Topic.BALLOTS)
        log.info("silo_watching", silo=silo, after_revision=request.after_revision)
        # A lower bound is all a silo needs to notice that its ledger is an old copy.
        held = await service.in_store(service.store.ballots.number_held, silo)
        revision = request.after_revision
        while True:
            service.change_bus.require_open()
            waiter = service.change_bus.tasks.waiter()
            await service.task_cache.require_admitted(silo)
            for task in await service.task_cache.task_states(silo, revision):
                revision = task.revision
                yield rounds_pb2.WatchResponse(task=task, ballots_held=held)
            await waiter.wait()

    async def Heartbeat(
        self, request: rounds_pb2.HeartbeatRequest, context: Any
    ) -> rounds_pb2.HeartbeatResponse:
        """Prolongs the lease."""
        service = self._service
        until = await service.in_store(
            service.store.silos.renew_lease,
            caller(),
            request.instance,
            int(request.activity),
            service.clock(),
            service.lease,
        )
        return rounds_pb2.HeartbeatResponse(
            lease_until=timestamp(until),
            next_after=duration(service.lease / 3),
            coordinator_time=timestamp(service.clock()),
            authority=service.authority.fingerprint,
        )

    async def Leave(
        self, request: rounds_pb2.LeaveRequest, context: Any
    ) -> rounds_pb2.LeaveResponse:
        """Ends the lease."""
        service = self._service
        await service.in_store(
            service.store.silos.release_lease, caller(), request.instance, service.clock()
        )
        service.change_bus.announce(Topic.BALLOTS)
        return rounds_pb2.LeaveResponse()

    async def CastBallot(
        self, request_iterator: AsyncIterator[rounds_pb2.CastBallotRequest], context: Any
    ) -> rounds_pb2.CastBallotResponse:
        """Checks a ballot bit by bit, stores it, and only then gives the receipt.

        What the silo declares of its privacy is judged before a bit of the ballot is read.
        """
        service, silo = self._service, caller().name
        header: ballot_pb2.BallotHeader = await opening(request_iterator, "a ballot")
        task = await service.task_cache.task(header.task)
        shape = announced_shape(task, header.task_digest, header.encoding, header.size_bytes)
        declaration, seen = _declaration(header), _consensuses_seen(header)
        require_privacy(task, declaration)
        payload = await _payload(request_iterator, shape)
        check_ballot(task, silo, payload, header.digest)
        signed = self._signed(header, silo, declaration, seen)
        ballot = await service.in_store(service.store.ballots.accept, caller(), signed, payload)
        crash_point("ballot-accepted")
        if not ballot.already_held:
            service.metrics.tasks.ballot_stored(header.task, len(payload))
            service.change_bus.announce(Topic.BALLOTS)
        log.info(
            "ballot_accepted",
            task=header.task,
            round=header.round,
            silo=silo,
            bytes=len(payload),
            digest=header.digest,
            mechanism=str(ballot.declaration.mechanism),
            consensuses_seen=len(ballot.consensuses_seen),
            already_held=ballot.already_held,
        )
        return rounds_pb2.CastBallotResponse(receipt=receipt_message(ballot))

    async def GetReceipt(
        self, request: rounds_pb2.GetReceiptRequest, context: Any
    ) -> rounds_pb2.GetReceiptResponse:
        """The receipt the caller was given, once more."""
        service = self._service
        ballot = await service.in_store(
            service.store.ballots.held, request.task, request.round, caller().name
        )
        return rounds_pb2.GetReceiptResponse(receipt=receipt_message(ballot))

    async def FetchConsensus(
        self, request: rounds_pb2.FetchConsensusRequest, context: Any
    ) -> AsyncIterator[rounds_pb2.FetchConsensusResponse]:
        """The header, then the bits; for those who take part, in the classes they know."""
        task_cache = self._service.task_cache
        task = await task_cache.task(request.task)
        closed, payload = await task_cache.consensus_for(caller().name, task, request.round)
        yield rounds_pb2.FetchConsensusResponse(header=consensus_header(request.task, closed))
        for data in chunks(payload):
            yield rounds_pb2.FetchConsensusResponse(data=data)

    def _signed(
        self,
        header: ballot_pb2.BallotHeader,
        silo: str,
        declaration: Declaration,
        seen: tuple[str, ...],
    ) -> BallotRecord:
        """What will be stored if the ballot is admitted, receipt's signature included."""
        service = self._service
        accepted_at = service.clock()
        statement = Statement(
            service.settings.consortium,
            header.task,
            header.round,
            silo,
            header.digest,
            accepted_at,
        )
        return BallotRecord(
            task=header.task,
            round=header.round,
            silo=silo,
            digest=header.digest,
            accepted_at=accepted_at,
            signer=service.signer.fingerprint,
            signature=service.signer.sign(statement),
            already_held=False,
            declaration=declaration,
            consensuses_seen=seen,
        )


def _declaration(header: ballot_pb2.BallotHeader) -> Declaration:
    """What the silo declares of the ballot's privacy; no declaration says that nothing was done."""
    if not header.HasField("privacy"):
        return Declaration()
    try:
        return Declaration.from_proto(header.privacy)
    except ValidationError:
        why = "what it declares of the ballot's privacy makes no sense"
        raise Refusal(MESSAGE_MALFORMED, why=why) from None


def _consensuses_seen(header: ballot_pb2.BallotHeader) -> tuple[str, ...]:
    """What the silo says it was sent for this round before; refuses what cannot be digests, and too many of them."""
    seen = tuple(header.consensuses_seen)
    if len(seen) > MOST_SEEN or not all(map(is_digest, seen)):
        raise Refusal(MESSAGE_MALFORMED, why="what it says of earlier consensuses makes no sense")
    return seen


async def _payload(parts: AsyncIterator[rounds_pb2.CastBallotRequest], shape: BallotShape) -> bytes:
    """The bits; stops reading as soon as there are too many."""
    payload = bytearray()
    async for part in parts:
        if not part.data:
            raise Refusal(MESSAGE_MALFORMED, why="only data may follow a ballot's header")
        payload += part.data
        if len(payload) > shape.size_bytes:
            raise Refusal(BALLOT_TOO_LARGE, expected=shape.size_bytes)
    return bytes(payload)
