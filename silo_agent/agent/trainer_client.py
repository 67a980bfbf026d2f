"""The agent's calls to the trainer of the same hospital, over its Unix socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from silo_agent.agent.backoff import Backoff
from wire.consilium.v1 import task_pb2, trainer_pb2, trainer_pb2_grpc
from wire.errors import TRAINER_UNREACHABLE, Refusal, from_rpc
from wire.net.channels import unix_channel


class TrainerClient:
    """One channel to the trainer, which may restart; every call is idempotent and raises Refusal only."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._channel = unix_channel(socket)
        self._stub = trainer_pb2_grpc.TrainerServiceStub(self._channel)

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close()

    async def describe(self) -> trainer_pb2.DescribeResponse:
        """Version, isolation and privacy totals of the trainer."""
        async with self._translating():
            return await self._stub.Describe(trainer_pb2.DescribeRequest(), timeout=10)

    async def wait_ready(self) -> trainer_pb2.DescribeResponse:
        """Waits until the trainer answers, however long that takes."""
        backoff = Backoff(first=0.05, longest=2.0)
        while True:
            try:
                return await self.describe()
            except Refusal:
                await asyncio.sleep(backoff.next())

    async def propose(self, definition: task_pb2.TaskDefinition) -> trainer_pb2.ProposeResponse:
        """What the hospital accepted; raises APPROVAL_NEEDED, APPROVAL_WITHDRAWN, APPROVAL_REFUSED_BY_POLICY or PROPOSALS_FULL."""
        request = trainer_pb2.ProposeRequest(definition=definition)
        async with self._translating():
            return await self._stub.Propose(request)

    async def prepare(
        self,
        definition: task_pb2.TaskDefinition,
        silo: str,
    ) -> None:
        """Has the trainer read the task's public files and check the private data; DATA_MISMATCH if they do not fit."""
        request = trainer_pb2.PrepareRequest(definition=definition, silo=silo)
        async with self._translating():
            await self._stub.Prepare(request)

    async def vote(
        self,
        digest: str,
        round_number: int,
        consensus: trainer_pb2.ConsensusLabels | None,
        known_ballots: int,
    ) -> trainer_pb2.VoteResponse:
        """The ballot of a round; takes as long as training does.

        `known_ballots` is how many ballots have certainly left this silo: a ledger that has fewer is an old copy.
        """
        request = trainer_pb2.VoteRequest(
            task_digest=digest, round=round_number, consensus=consensus, known_ballots=known_ballots
        )
        async with self._translating():
            return await self._stub.Vote(request)

    async def finish(
        self, digest: str, consensus: trainer_pb2.ConsensusLabels | None
    ) -> trainer_pb2.FinishResponse:
        """Trains and stores the final model."""
        request = trainer_pb2.FinishRequest(task_digest=digest, consensus=consensus)
        async with self._translating():
            return await self._stub.Finish(request)

    @asynccontextmanager
    async def _translating(self) -> AsyncIterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            refusal = from_rpc(error, "The trainer")
            if refusal is None:
                refusal = Refusal(TRAINER_UNREACHABLE, socket=self._socket)
            raise refusal from error
