"""The agent's calls to the coordinator; a failure is a ConsiliumError with a sentence, never a gRPC status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message

from silo_agent.agent.channel import CoordinatorChannel
from wire import __version__
from wire.ballot import digest
from wire.bounds import require_bounded
from wire.chunks import chunks
from wire.consilium.v1 import ballot_pb2, identity_pb2, registry_pb2, rounds_pb2, task_pb2
from wire.errors import (
    CERTIFICATE_SUPERSEDED,
    CONTENT_CORRUPT,
    MESSAGE_MALFORMED,
    UNREACHABLE,
    Refusal,
)
from wire.identity.files import IdentityFiles
from wire.net.channels import translated
from wire.net.proxy import Proxy
from wire.public_file import PublicFolder
from wire.version_policy import VERSION_KEY

CALL_SECONDS = 60.0

T = TypeVar("T")
_Chunk: TypeAlias = registry_pb2.FetchPublicSetResponse | registry_pb2.FetchExtractorResponse


MOST_CONSENSUS_BYTES = 256 << 20
"""As much as the trainer takes (ConsensusLabels.data in trainer.proto)."""


@dataclass(frozen=True)
class FetchedConsensus:
    """A downloaded consensus whose digest was verified."""

    header: ballot_pb2.ConsensusHeader
    data: bytes


@dataclass(frozen=True)
class HeartbeatReply:
    """The coordinator's reply to a heartbeat."""

    next_after: float
    """Seconds until the next one is due."""
    coordinator_time: datetime | None
    """None if it did not say."""
    authority: str
    """Fingerprint of the authority that issues certificates now."""


class CoordinatorClient:
    """The coordinator's services. Every method raises ConsiliumError only, never a gRPC error.

    What the coordinator sends is held to the bounds of the protos, as what it is sent.

    gRPC cannot change a channel's certificate. `replace` opens a new channel for later calls; calls in progress
    stay on the old one, which is closed after the last of them, or are made again if the coordinator ends them.
    """

    def __init__(self, identity: IdentityFiles, proxy: Proxy | None = None) -> None:
        self._proxy = proxy
        self._channel = CoordinatorChannel(identity, proxy)
        self.ballots_held = 0
        """How many ballots of this silo the coordinator has stored, over all tasks, as it last said."""
        self.coordinator_version = ""
        """The coordinator's software version, as it said when the watch was opened."""

    @property
    def identity(self) -> IdentityFiles:
        """The identity under which calls are made now."""
        return self._channel.identity

    async def replace(self, identity: IdentityFiles) -> None:
        """Makes later calls as `identity`; the watch reopens by itself."""
        old, self._channel = self._channel, CoordinatorChannel(identity, self._proxy)
        await old.retire()

    async def close(self) -> None:
        """Closes the channel and every call on it."""
        await self._channel.close()

    async def who_am_i(self, seconds: float = CALL_SECONDS) -> identity_pb2.WhoAmIResponse:
        """How the coordinator knows this silo; needs and takes no lease."""
        request = identity_pb2.WhoAmIRequest()
        return await self._call(lambda channel: channel.identities.WhoAmI(request, timeout=seconds))

    async def renew(self, request: identity_pb2.RenewRequest) -> identity_pb2.RenewResponse:
        """Requests a certificate for a new key; idempotent."""
        return await self._call(
            lambda channel: channel.identities.Renew(request, timeout=CALL_SECONDS)
        )

    async def watch(
        self, instance: str, after_revision: int, opened: Callable[[], None]
    ) -> AsyncGenerator[task_pb2.TaskState, None]:
        """Task states until the stream breaks; calls `opened` once the coordinator has granted the lease."""
        while True:
            channel = self._channel
            request = rounds_pb2.WatchRequest(
                instance=instance, after_revision=after_revision, agent_version=__version__
            )
            try:
                async with channel.in_use():
                    call = channel.until_retired(channel.rounds.Watch(request))
                    await self._lease_granted(call, opened)
                    async for response in call:
                        require_bounded(response)
                        self.ballots_held = max(self.ballots_held, response.ballots_held)
                        after_revision = max(after_revision, response.task.revision)
                        yield response.task
            except grpc.aio.AioRpcError as error:
                await self._raise_unless_replaced(error, channel)
            except asyncio.CancelledError:
                # Retiring the channel cancels its stream; any other cancellation is meant for this task.
                if not channel.retired or _is_cancelled():
                    raise
            if not channel.retired:
                return

    async def _lease_granted(self, call: Any, opened: Callable[[], None]) -> None:
        # Sent as soon as the lease is granted; empty if the call failed before that.
        metadata = dict(await call.initial_metadata() or ())
        self.coordinator_version = str(metadata.get(VERSION_KEY, ""))[:32]
        if not call.done():
            opened()

    async def heartbeat(
        self, instance: str, activity: rounds_pb2.Activity.ValueType
    ) -> HeartbeatReply:
        """Renews the lease."""
        request = rounds_pb2.HeartbeatRequest(instance=instance, activity=activity)
        response = await self._call(
            lambda channel: channel.rounds.Heartbeat(request, timeout=CALL_SECONDS)
        )
        has_time = response.HasField("coordinator_time")
        return HeartbeatReply(
            next_after=float(response.next_after.ToMilliseconds()) / 1000,
            coordinator_time=response.coordinator_time.ToDatetime(UTC) if has_time else None,
            authority=response.authority,
        )

    async def leave(self, instance: str) -> None:
        """Ends the lease."""
        request = rounds_pb2.LeaveRequest(instance=instance)
        await self._call(lambda channel: channel.rounds.Leave(request, timeout=5))

    async def cast(self, header: ballot_pb2.BallotHeader, ballot: bytes) -> ballot_pb2.Receipt:
        """Sends a ballot; idempotent."""
        parts = [rounds_pb2.CastBallotRequest(header=header)]
        parts += [rounds_pb2.CastBallotRequest(data=data) for data in chunks(ballot)]
        response = await self._call(
            lambda channel: channel.rounds.CastBallot(iter(parts), timeout=10 * CALL_SECONDS)
        )
        return response.receipt

    async def receipt(self, task: str, round_number: int) -> ballot_pb2.Receipt:
        """The receipt of a ballot sent before; RECEIPT_UNKNOWN if the coordinator has none."""
        request = rounds_pb2.GetReceiptRequest(task=task, round=round_number)
        response = await self._call(
            lambda channel: channel.rounds.GetReceipt(request, timeout=CALL_SECONDS)
        )
        return response.receipt

    async def signer(self, fingerprint: str) -> bytes:
        """The certificate, in PEM, whose key signed a receipt; SIGNER_UNKNOWN if there is none."""
        request = identity_pb2.GetSignerRequest(fingerprint=fingerprint)
        response = await self._call(
            lambda channel: channel.identities.GetSigner(request, timeout=CALL_SECONDS)
        )
        return response.certificate_pem.encode()

    async def consensus(self, task: str, round_number: int) -> FetchedConsensus:
        """A published consensus, verified against the digest in its header."""
        request = rounds_pb2.FetchConsensusRequest(task=task, round=round_number)

        async def fetch(
            channel: CoordinatorChannel,
        ) -> tuple[ballot_pb2.ConsensusHeader | None, bytes]:
            header, data = None, bytearray()
            async for part in channel.rounds.FetchConsensus(request, timeout=10 * CALL_SECONDS):
                require_bounded(part)
                if part.HasField("header"):
                    header = part.header
                else:
                    data += part.data
                if len(data) > MOST_CONSENSUS_BYTES:
                    raise Refusal(MESSAGE_MALFORMED, why="a consensus has no end")
            return header, bytes(data)

        header, data = await self._call(fetch)
        if header is None:
            raise Refusal(MESSAGE_MALFORMED, why="a consensus came without its header")
        if digest(data) != header.digest:
            raise Refusal(CONTENT_CORRUPT, what=f"the consensus of {task}", digest=header.digest)
        return FetchedConsensus(header, data)

    async def public_set(self, reference: str) -> registry_pb2.PublicSet:
        """The registry's entry of a public set, by name or digest."""
        request = registry_pb2.GetPublicSetRequest(reference=reference)
        response = await self._call(
            lambda channel: channel.registry.GetPublicSet(request, timeout=CALL_SECONDS)
        )
        return response.public_set

    async def extractor(self, digest: str) -> registry_pb2.Extractor:
        """The registry's entry of an extractor."""
        request = registry_pb2.GetExtractorRequest(digest=digest)
        response = await self._call(
            lambda channel: channel.registry.GetExtractor(request, timeout=CALL_SECONDS)
        )
        return response.extractor

    async def download(
        self, content: registry_pb2.PublicSet | registry_pb2.Extractor, folder: PublicFolder
    ) -> int:
        """Downloads a public file into `folder`, resuming an earlier attempt; returns the bytes received."""
        digest = content.digest
        with folder.download(digest, content.size_bytes) as writer:
            start = writer.offset

            def requested(channel: CoordinatorChannel) -> AsyncIterable[_Chunk]:
                if isinstance(content, registry_pb2.Extractor):
                    return channel.registry.FetchExtractor(
                        registry_pb2.FetchExtractorRequest(digest=digest, offset=writer.offset)
                    )
                return channel.registry.FetchPublicSet(
                    registry_pb2.FetchPublicSetRequest(digest=digest, offset=writer.offset)
                )

            async def fetch(channel: CoordinatorChannel) -> int:
                async for chunk in requested(channel):
                    require_bounded(chunk)
                    writer.append(chunk.data, offset=chunk.offset, digest=chunk.chunk_digest)
                return writer.offset - start

            return await self._call(fetch)

    async def _call(self, make: Callable[[CoordinatorChannel], Awaitable[T]]) -> T:
        """The answer to the call that `make` makes on the current channel, repeated if that was just replaced."""
        while True:
            channel = self._channel
            try:
                async with channel.in_use():
                    answer = await make(channel)
                if isinstance(answer, Message):
                    require_bounded(answer)
                return answer
            except grpc.aio.AioRpcError as error:
                await self._raise_unless_replaced(error, channel)

    async def _raise_unless_replaced(
        self, error: grpc.aio.AioRpcError, channel: CoordinatorChannel
    ) -> None:
        """Raises the translated `error`; returns if the call failed only because its certificate was replaced.

        Of an upload that the coordinator ended for that, the reason may be lost on the way.
        """
        address = channel.identity.coordinator_address
        refusal = await translated(error, address, channel.identity, proxy=self._proxy)
        ended = isinstance(refusal, Refusal) and refusal.is_a(CERTIFICATE_SUPERSEDED, UNREACHABLE)
        if not (channel.retired and ended):
            raise refusal from error


def _is_cancelled() -> bool:
    """True if somebody asked the current task to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
