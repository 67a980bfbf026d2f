"""One channel to the coordinator under one certificate; it retires when the certificate is replaced."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import grpc.aio

from wire.channels import secure_channel
from wire.consilium.v1 import identity_pb2_grpc, registry_pb2_grpc, rounds_pb2_grpc
from wire.identity import IdentityFiles
from wire.proxy import Proxy

C = TypeVar("C", bound="grpc.aio.Call")


class Line:
    """Stubs on a channel, and how many calls are under way on it."""

    def __init__(self, identity: IdentityFiles, proxy: Proxy | None = None) -> None:
        self.identity = identity
        self.retired = False
        self._channel = secure_channel(identity.coordinator_address, identity, proxy=proxy)
        self._busy = 0
        self._streams: set[grpc.aio.Call] = set()
        self.rounds = rounds_pb2_grpc.RoundsServiceStub(self._channel)
        self.registry = registry_pb2_grpc.RegistryServiceStub(self._channel)
        self.identities = identity_pb2_grpc.IdentityServiceStub(self._channel)

    @asynccontextmanager
    async def busy(self) -> AsyncIterator[None]:
        """Held during a call, so that the channel is not closed under it."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            await self._close_if_done()

    def until_retired(self, call: C) -> C:
        """Marks a call without an end: it is cancelled when the line retires."""
        self._streams.add(call)
        call.add_done_callback(lambda _: self._streams.discard(call))
        return call

    async def retire(self) -> None:
        """Lets the calls under way end, cancels the endless ones, closes the channel behind the last."""
        self.retired = True
        for stream in list(self._streams):
            stream.cancel()
        await self._close_if_done()

    async def close(self) -> None:
        """Closes the channel and every call on it."""
        await self._channel.close()

    async def _close_if_done(self) -> None:
        if self.retired and not self._busy:
            await self._channel.close()
