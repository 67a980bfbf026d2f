"""The silo's side of a federation: watch, heartbeat, vote, fetch the consensus."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import structlog
from pydantic import ValidationError

from coordinator.desk import Desk
from coordinator.gate import caller
from coordinator.news import Topic
from coordinator.store.records import BallotRecord, TaskRecord
from coordinator.translation import consensus_header, duration, receipt_message, timestamp
from coordinator.upload import opening
from wire import __version__
from wire.ballot import MOST_SEEN, BallotShape, check, class_planes, digest
from wire.chunks import chunks
from wire.consilium.v1 import ballot_pb2, rounds_pb2, rounds_pb2_grpc
from wire.crash_points import crash_point
from wire.errors import (
    BALLOT_DIGEST,
    BALLOT_LABEL_SPACE,
    BALLOT_TOO_LARGE,
    CONSENSUS_UNKNOWN,
    MESSAGE_MALFORMED,
    PRIVACY_TOO_WEAK,
    TASK_CHANGED,
    Refusal,
)
from wire.files import is_digest
from wire.privacy.declaration import Declaration
from wire.receipts import Statement
from wire.releases import VERSION_KEY, require_served

log = structlog.get_logger()


class RoundsServicer(rounds_pb2_grpc.RoundsServiceServicer):
    """Called by silos only; the gate has seen to that."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def Watch(
        self, request: rounds_pb2.WatchRequest, context: Any
    ) -> AsyncIterator[rounds_pb2.WatchResponse]:
        """Takes the lease, then yields every task state this silo has not seen."""
        desk, silo = self._desk, caller().name
        if not request.instance:
            raise Refusal(MESSAGE_MALFORMED, why="an agent must name its instance")
        require_served(silo, request.agent_version, __version__)
        await desk.in_store(
            desk.store.silos.take_lease,
            silo,
            request.instance,
            request.agent_version[:32],
            desk.clock(),
            desk.lease,
        )
        # Tells the agent that the lease is its own, even if there is no task to hear of yet.
        await context.send_initial_metadata(((VERSION_KEY, __version__),))
        desk.news.announce(Topic.BALLOTS)
        log.info("silo_watching", silo=silo, after_revision=request.after_revision)
        # A lower bound is all a silo needs to notice that its ledger is an old copy.
        held = await desk.in_store(desk.store.ballots.number_held, silo)
        revision = request.after_revision
        while True:
            desk.news.require_more()
            ticket = desk.news.tasks.ticket()
            await desk.board.require_standing(silo)
            for task in await desk.board.notices(silo, revision):
                revision = task.revision
                yield rounds_pb2.WatchResponse(task=task, ballots_held=held)
            await ticket.wait()

    async def Heartbeat(
        self, request: rounds_pb2.HeartbeatRequest, context: Any
    ) -> rounds_pb2.HeartbeatResponse:
        """Prolongs the lease."""
        desk = self._desk
        until = await desk.in_store(
            desk.store.silos.renew_lease,
            caller().name,
            request.instance,
            int(request.activity),
            desk.clock(),
            desk.lease,
        )
        return rounds_pb2.HeartbeatResponse(
            lease_until=timestamp(until),
            next_after=duration(desk.lease / 3),
            coordinator_time=timestamp(desk.clock()),
            authority=desk.authority.fingerprint,
        )

    async def Leave(
        self, request: rounds_pb2.LeaveRequest, context: Any
    ) -> rounds_pb2.LeaveResponse:
        """Ends the lease."""
        desk = self._desk
        await desk.in_store(
            desk.store.silos.release_lease, caller().name, request.instance, desk.clock()
        )
        desk.news.announce(Topic.BALLOTS)
        return rounds_pb2.LeaveResponse()

    async def CastBallot(
        self, request_iterator: AsyncIterator[rounds_pb2.CastBallotRequest], context: Any
    ) -> rounds_pb2.CastBallotResponse:
        """Checks a ballot bit by bit, stores it, and only then gives the receipt.

        What the silo declares of its privacy is judged before a bit of the ballot is read.
        """
        desk, silo = self._desk, caller().name
        header: ballot_pb2.BallotHeader = await opening(request_iterator, "a ballot")
        task = await desk.board.task(header.task)
        shape = _expected_shape(task, header)
        declaration = _sufficient_privacy(task, header)
        seen = _consensuses_seen(header)
        payload = await _payload(request_iterator, shape)
        check(payload, shape)
        if digest(payload) != header.digest:
            raise Refusal(BALLOT_DIGEST)
        _require_known_classes(payload, task, silo)
        signed = self._signed(header, silo, declaration, seen)
        ballot = await desk.in_store(desk.store.ballots.accept, signed, payload)
        crash_point("ballot-accepted")
        if not ballot.already_held:
            desk.metrics.tasks.ballot_stored(header.task, len(payload))
            desk.news.announce(Topic.BALLOTS)
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
        desk = self._desk
        ballot = await desk.in_store(
            desk.store.ballots.held, request.task, request.round, caller().name
        )
        return rounds_pb2.GetReceiptResponse(receipt=receipt_message(ballot))

    async def FetchConsensus(
        self, request: rounds_pb2.FetchConsensusRequest, context: Any
    ) -> AsyncIterator[rounds_pb2.FetchConsensusResponse]:
        """The header, then the bits; for those who take part, in the classes they know."""
        task, silo = await self._desk.board.task(request.task), caller().name
        if task.definition.silos and silo not in task.definition.silos:
            raise Refusal(CONSENSUS_UNKNOWN, task=request.task, round=request.round or "any")
        known = task.definition.label_space(silo)
        closed, payload = await self._desk.board.consensus(task, request.round, known)
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
        desk = self._desk
        accepted_at = desk.clock()
        statement = Statement(
            desk.settings.consortium,
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
            signer=desk.signer.fingerprint,
            signature=desk.signer.sign(statement),
            already_held=False,
            declaration=declaration,
            consensuses_seen=seen,
        )


def _expected_shape(task: TaskRecord, header: ballot_pb2.BallotHeader) -> BallotShape:
    """The only shape this task's ballots have; refuses a header that announces another."""
    if header.task_digest != task.digest:
        raise Refusal(TASK_CHANGED, task=task.name)
    shape = task.definition.shape
    shape.expect_encoding(header.encoding)
    shape.expect_length(header.size_bytes)
    return shape


def _sufficient_privacy(task: TaskRecord, header: ballot_pb2.BallotHeader) -> Declaration:
    """What the silo declares; refuses less than the task asks for. No declaration says that nothing was done."""
    try:
        declared = (
            Declaration.from_proto(header.privacy) if header.HasField("privacy") else Declaration()
        )
    except ValidationError:
        why = "what it declares of the ballot's privacy makes no sense"
        raise Refusal(MESSAGE_MALFORMED, why=why) from None
    lacks = task.definition.privacy.unmet_by(declared)
    if lacks:
        raise Refusal(PRIVACY_TOO_WEAK, task=task.name, why="; ".join(lacks))
    return declared


def _consensuses_seen(header: ballot_pb2.BallotHeader) -> tuple[str, ...]:
    """What the silo says it was sent for this round before; refuses what cannot be digests, and too many of them."""
    seen = tuple(header.consensuses_seen)
    if len(seen) > MOST_SEEN or not all(map(is_digest, seen)):
        raise Refusal(MESSAGE_MALFORMED, why="what it says of earlier consensuses makes no sense")
    return seen


def _require_known_classes(payload: bytes, task: TaskRecord, silo: str) -> None:
    """BALLOT_LABEL_SPACE for a vote, or a one, in a class that the task says the silo does not know."""
    shape = task.definition.shape
    foreign = np.ones(shape.classes, dtype=np.bool_)
    foreign[list(task.definition.label_space(silo))] = False
    if foreign.any() and class_planes(payload, shape)[foreign].any():
        raise Refusal(BALLOT_LABEL_SPACE, name=silo, task=task.name)


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
