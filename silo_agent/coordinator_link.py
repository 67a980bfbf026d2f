"""The agent's calls to the coordinator, each translated: a person reads a sentence, never a gRPC status."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc

from wire import __version__
from wire.ballot import digest
from wire.channels import secure_channel, translated
from wire.chunks import chunks
from wire.consilium.v1 import (
    ballot_pb2,
    registry_pb2,
    registry_pb2_grpc,
    rounds_pb2,
    rounds_pb2_grpc,
    task_pb2,
)
from wire.errors import CONTENT_CORRUPT, MESSAGE_MALFORMED, Refusal
from wire.identity import IdentityFiles
from wire.public_file import PublicSetFolder

CALL_SECONDS = 60.0


@dataclass(frozen=True)
class FetchedConsensus:
    """A consensus as it arrived, digest verified."""

    header: ballot_pb2.ConsensusHeader
    data: bytes


class CoordinatorLink:
    """One channel to the coordinator. Every method raises ConsiliumError, nothing of gRPC's."""

    def __init__(self, identity: IdentityFiles) -> None:
        self.identity = identity
        self._channel = secure_channel(identity.coordinator_address, identity)
        self._rounds = rounds_pb2_grpc.RoundsServiceStub(self._channel)
        self._registry = registry_pb2_grpc.RegistryServiceStub(self._channel)

    async def close(self) -> None:
        """Closes the channel and every call on it."""
        await self._channel.close()

    async def watch(
        self, instance: str, after_revision: int, opened: Callable[[], None]
    ) -> AsyncIterator[task_pb2.TaskState]:
        """Task states until the stream breaks; calls `opened` once the coordinator has granted the lease."""
        request = rounds_pb2.WatchRequest(
            instance=instance, after_revision=after_revision, agent_version=__version__
        )
        async with self._translating():
            call = self._rounds.Watch(request)
            # Sent as soon as the lease is granted; empty if the call failed before that.
            await call.initial_metadata()
            if not call.done():
                opened()
            async for response in call:
                yield response.task

    async def heartbeat(self, instance: str, activity: rounds_pb2.Activity.ValueType) -> float:
        """Keeps the lease; returns the seconds until the next heartbeat is due."""
        request = rounds_pb2.HeartbeatRequest(instance=instance, activity=activity)
        async with self._translating():
            response = await self._rounds.Heartbeat(request, timeout=CALL_SECONDS)
        return float(response.next_after.ToMilliseconds()) / 1000

    async def leave(self, instance: str) -> None:
        """Ends the lease."""
        async with self._translating():
            await self._rounds.Leave(rounds_pb2.LeaveRequest(instance=instance), timeout=5)

    async def cast(self, header: ballot_pb2.BallotHeader, ballot: bytes) -> ballot_pb2.Receipt:
        """Casts a ballot; casting it again is safe."""
        parts = [rounds_pb2.CastBallotRequest(header=header)]
        parts += [rounds_pb2.CastBallotRequest(data=data) for data in chunks(ballot)]
        async with self._translating():
            response = await self._rounds.CastBallot(iter(parts), timeout=10 * CALL_SECONDS)
        return response.receipt

    async def consensus(self, task: str, number: int) -> FetchedConsensus:
        """A published consensus, verified against the digest in its header."""
        request = rounds_pb2.FetchConsensusRequest(task=task, round=number)
        header: ballot_pb2.ConsensusHeader | None = None
        data = bytearray()
        async with self._translating():
            async for part in self._rounds.FetchConsensus(request, timeout=10 * CALL_SECONDS):
                if part.HasField("header"):
                    header = part.header
                else:
                    data += part.data
        if header is None:
            raise Refusal(MESSAGE_MALFORMED, why="a consensus came without its header")
        if digest(bytes(data)) != header.digest:
            raise Refusal(CONTENT_CORRUPT, what=f"the consensus of {task}", digest=header.digest)
        return FetchedConsensus(header, bytes(data))

    async def public_set(self, reference: str) -> registry_pb2.PublicSet:
        """What the registry says of a public set."""
        request = registry_pb2.GetPublicSetRequest(reference=reference)
        async with self._translating():
            response = await self._registry.GetPublicSet(request, timeout=CALL_SECONDS)
        return response.public_set

    async def download(self, public: registry_pb2.PublicSet, folder: PublicSetFolder) -> int:
        """Fetches a public set into `folder`, going on where an earlier try was cut; bytes received."""
        received = 0
        with folder.download(public.digest, public.size_bytes) as writer:
            request = registry_pb2.FetchPublicSetRequest(digest=public.digest, offset=writer.offset)
            async with self._translating():
                async for chunk in self._registry.FetchPublicSet(request):
                    writer.append(chunk.data, offset=chunk.offset, digest=chunk.chunk_digest)
                    received += len(chunk.data)
        return received

    @asynccontextmanager
    async def _translating(self) -> AsyncIterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            address = self.identity.coordinator_address
            raise await translated(error, address, self.identity) from error
