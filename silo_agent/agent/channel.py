"""One gRPC channel to the coordinator under one certificate, retired when the certificate is replaced."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import grpc.aio

from wire.consilium.v1 import identity_pb2_grpc, registry_pb2_grpc, rounds_pb2_grpc
from wire.identity.files import IdentityFiles
from wire.net.channels import secure_channel
from wire.net.proxy import Proxy

C = TypeVar("C", bound="grpc.aio.Call")


class CoordinatorChannel:
    """A channel with its stubs, and a count of the calls in progress on it."""

    def __init__(self, identity: IdentityFiles, proxy: Proxy | None = None) -> None:
        self.identity = identity
        self.retired = False
        self._channel = secure_channel(identity.coordinator_address, identity, proxy=proxy)
        self._calls = 0
        self._streams: set[grpc.aio.Call] = set()
        self.rounds = rounds_pb2_grpc.RoundsServiceStub(self._channel)
        self.registry = registry_pb2_grpc.RegistryServiceStub(self._channel)
        self.identities = identity_pb2_grpc.IdentityServiceStub(self._channel)

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[None]:
        """Around a call: keeps `retire` from closing the channel during the block."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            await self._close_if_done()

    def until_retired(self, call: C) -> C:
        """Registers an endless stream, to be cancelled when the channel is retired."""
        self._streams.add(call)
        call.add_done_callback(lambda _: self._streams.discard(call))
        return call

    async def retire(self) -> None:
        """Cancels endless streams, lets other calls finish, and closes the channel after the last."""
        self.retired = True
        for stream in list(self._streams):
            stream.cancel()
        await self._close_if_done()

    async def close(self) -> None:
        """Closes the channel and every call on it."""
        await self._channel.close()

    async def _close_if_done(self) -> None:
        if self.retired and not self._calls:
            await self._channel.close()
