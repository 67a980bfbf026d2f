"""The agent's calls to the coordinator, each translated: a person reads a sentence, never a gRPC status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias, TypeVar

import grpc

from silo_agent.line import Line
from wire import __version__
from wire.ballot import digest
from wire.channels import translated
from wire.chunks import chunks
from wire.consilium.v1 import ballot_pb2, identity_pb2, registry_pb2, rounds_pb2, task_pb2
from wire.errors import CERTIFICATE_SUPERSEDED, CONTENT_CORRUPT, MESSAGE_MALFORMED, Refusal
from wire.identity import IdentityFiles
from wire.proxy import Proxy
from wire.public_file import PublicFolder
from wire.releases import VERSION_KEY

CALL_SECONDS = 60.0

T = TypeVar("T")
_Piece: TypeAlias = registry_pb2.FetchPublicSetResponse | registry_pb2.FetchExtractorResponse


@dataclass(frozen=True)
class FetchedConsensus:
    """A consensus as it arrived, digest verified."""

    header: ballot_pb2.ConsensusHeader
    data: bytes


@dataclass(frozen=True)
class Beat:
    """What the coordinator answers to a heartbeat."""

    next_after: float
    """Seconds until the next one is due."""
    coordinator_time: datetime | None
    """The coordinator's clock."""
    authority: str
    """Fingerprint of the authority that signs now."""


class CoordinatorLink:
    """The way to the coordinator. Every method raises ConsiliumError, nothing of gRPC's.

    gRPC cannot change a channel's certificate. `replace` opens a new channel for what is called from then on;
    calls under way end on the old one, which is closed behind the last of them.
    """

    def __init__(self, identity: IdentityFiles, proxy: Proxy | None = None) -> None:
        self._proxy = proxy
        self._line = Line(identity, proxy)
        self.ballots_held = 0
        """Ballots of this silo the coordinator says it has, over all tasks."""
        self.coordinator_version = ""
        """What the coordinator runs, as it said when the watch was opened."""

    @property
    def identity(self) -> IdentityFiles:
        """Who calls."""
        return self._line.identity

    async def replace(self, identity: IdentityFiles) -> None:
        """Goes on as `identity`, between calls; the watch is reopened by itself."""
        old, self._line = self._line, Line(identity, self._proxy)
        await old.retire()

    async def close(self) -> None:
        """Closes the channel and every call on it."""
        await self._line.close()

    async def who_am_i(self, seconds: float = CALL_SECONDS) -> identity_pb2.WhoAmIResponse:
        """How the coordinator knows this silo; changes nothing, holds no lease."""
        request = identity_pb2.WhoAmIRequest()
        return await self._call(lambda line: line.identities.WhoAmI(request, timeout=seconds))

    async def renew(self, request: identity_pb2.RenewRequest) -> identity_pb2.RenewResponse:
        """Has a new key certified; asking again is safe."""
        return await self._call(lambda line: line.identities.Renew(request, timeout=CALL_SECONDS))

    async def watch(
        self, instance: str, after_revision: int, opened: Callable[[], None]
    ) -> AsyncGenerator[task_pb2.TaskState, None]:
        """Task states until the stream breaks; calls `opened` once the coordinator has granted the lease."""
        while True:
            line = self._line
            request = rounds_pb2.WatchRequest(
                instance=instance, after_revision=after_revision, agent_version=__version__
            )
            try:
                async with line.busy():
                    call = line.until_retired(line.rounds.Watch(request))
                    # Sent as soon as the lease is granted; empty if the call failed before that.
                    told = dict(await call.initial_metadata() or ())
                    self.coordinator_version = str(told.get(VERSION_KEY, ""))
                    if not call.done():
                        opened()
                    async for response in call:
                        self.ballots_held = max(self.ballots_held, response.ballots_held)
                        after_revision = max(after_revision, response.task.revision)
                        yield response.task
            except grpc.aio.AioRpcError as error:
                await self._raise_unless_replaced(error, line)
            except asyncio.CancelledError:
                # A line that retires cancels its stream; whoever else cancels means this task.
                task = asyncio.current_task()
                if not line.retired or (task is not None and task.cancelling()):
                    raise
            if not line.retired:
                return

    async def heartbeat(self, instance: str, activity: rounds_pb2.Activity.ValueType) -> Beat:
        """Keeps the lease."""
        request = rounds_pb2.HeartbeatRequest(instance=instance, activity=activity)
        response = await self._call(
            lambda line: line.rounds.Heartbeat(request, timeout=CALL_SECONDS)
        )
        told = response.HasField("coordinator_time")
        return Beat(
            next_after=float(response.next_after.ToMilliseconds()) / 1000,
            coordinator_time=response.coordinator_time.ToDatetime(UTC) if told else None,
            authority=response.authority,
        )

    async def leave(self, instance: str) -> None:
        """Ends the lease."""
        request = rounds_pb2.LeaveRequest(instance=instance)
        await self._call(lambda line: line.rounds.Leave(request, timeout=5))

    async def cast(self, header: ballot_pb2.BallotHeader, ballot: bytes) -> ballot_pb2.Receipt:
        """Casts a ballot; casting it again is safe."""
        parts = [rounds_pb2.CastBallotRequest(header=header)]
        parts += [rounds_pb2.CastBallotRequest(data=data) for data in chunks(ballot)]
        response = await self._call(
            lambda line: line.rounds.CastBallot(iter(parts), timeout=10 * CALL_SECONDS)
        )
        return response.receipt

    async def receipt(self, task: str, number: int) -> ballot_pb2.Receipt:
        """The receipt of a ballot cast before; RECEIPT_UNKNOWN if the coordinator holds none."""
        request = rounds_pb2.GetReceiptRequest(task=task, round=number)
        response = await self._call(
            lambda line: line.rounds.GetReceipt(request, timeout=CALL_SECONDS)
        )
        return response.receipt

    async def signer(self, fingerprint: str) -> bytes:
        """The certificate, in PEM, whose key signed a receipt; SIGNER_UNKNOWN if there is none."""
        request = identity_pb2.GetSignerRequest(fingerprint=fingerprint)
        response = await self._call(
            lambda line: line.identities.GetSigner(request, timeout=CALL_SECONDS)
        )
        return response.certificate_pem.encode()

    async def consensus(self, task: str, number: int) -> FetchedConsensus:
        """A published consensus, verified against the digest in its header."""
        request = rounds_pb2.FetchConsensusRequest(task=task, round=number)

        async def fetch(line: Line) -> tuple[ballot_pb2.ConsensusHeader | None, bytes]:
            header, data = None, bytearray()
            async for part in line.rounds.FetchConsensus(request, timeout=10 * CALL_SECONDS):
                if part.HasField("header"):
                    header = part.header
                else:
                    data += part.data
            return header, bytes(data)

        header, data = await self._call(fetch)
        if header is None:
            raise Refusal(MESSAGE_MALFORMED, why="a consensus came without its header")
        if digest(data) != header.digest:
            raise Refusal(CONTENT_CORRUPT, what=f"the consensus of {task}", digest=header.digest)
        return FetchedConsensus(header, data)

    async def public_set(self, reference: str) -> registry_pb2.PublicSet:
        """What the registry says of a public set."""
        request = registry_pb2.GetPublicSetRequest(reference=reference)
        response = await self._call(
            lambda line: line.registry.GetPublicSet(request, timeout=CALL_SECONDS)
        )
        return response.public_set

    async def extractor(self, digest: str) -> registry_pb2.Extractor:
        """What the registry says of an extractor."""
        request = registry_pb2.GetExtractorRequest(digest=digest)
        response = await self._call(
            lambda line: line.registry.GetExtractor(request, timeout=CALL_SECONDS)
        )
        return response.extractor

    async def download(
        self, content: registry_pb2.PublicSet | registry_pb2.Extractor, folder: PublicFolder
    ) -> int:
        """Fetches a public file into `folder`, going on where an earlier try was cut; bytes received."""
        digest = content.digest
        with folder.download(digest, content.size_bytes) as writer:
            begun = writer.offset

            def pieces(line: Line) -> AsyncIterable[_Piece]:
                if isinstance(content, registry_pb2.Extractor):
                    return line.registry.FetchExtractor(
                        registry_pb2.FetchExtractorRequest(digest=digest, offset=writer.offset)
                    )
                return line.registry.FetchPublicSet(
                    registry_pb2.FetchPublicSetRequest(digest=digest, offset=writer.offset)
                )

            async def fetch(line: Line) -> int:
                async for piece in pieces(line):
                    writer.append(piece.data, offset=piece.offset, digest=piece.chunk_digest)
                return writer.offset - begun

            return await self._call(fetch)

    async def _call(self, make: Callable[[Line], Awaitable[T]]) -> T:
        """The answer to the call that `make` makes on the present line."""
        while True:
            line = self._line
            try:
                async with line.busy():
                    return await make(line)
            except grpc.aio.AioRpcError as error:
                await self._raise_unless_replaced(error, line)

    async def _raise_unless_replaced(self, error: grpc.aio.AioRpcError, line: Line) -> None:
        """Raises what `error` means; returns if the call only missed the change of certificates."""
        address = line.identity.coordinator_address
        meaning = await translated(error, address, line.identity, proxy=self._proxy)
        superseded = isinstance(meaning, Refusal) and meaning.is_a(CERTIFICATE_SUPERSEDED)
        if not (line.retired and superseded):
            raise meaning from error
