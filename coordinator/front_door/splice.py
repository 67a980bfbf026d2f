"""One connection of a public port and its counterpart to gRPC: bytes pass both ways, and nothing is decrypted.

gRPC is dialled when the first record of a handshake is complete, so a silent peer costs one descriptor here and
nothing there. The handshake counts as done at the server's second turn to speak: hello, answer, end of the
handshake, and what follows it. A peer that makes the server speak twice without finishing is ended by
gRPC's own limit on handshakes.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol, cast

from coordinator.front_door.peers import LOOPBACK, remember
from coordinator.front_door.room import Stage
from coordinator.metrics.connections import Turned

_HANDSHAKE_RECORD = 22
_RECORD_HEADER = 5
_LONGEST_RECORD = (1 << 14) + 256
_TURNS_OF_A_HANDSHAKE = 2
_FLUSH_SECONDS = 20.0


class Port(Protocol):
    """What a connection asks of the port it came by."""

    handshake_seconds: float
    upstream_port: int

    def entered(self, connection: Connection, host: str) -> Turned | None:
        """Counts it; why it is refused, or None."""

    def advanced(self, connection: Connection, stage: Stage) -> None:
        """It has come further."""

    def left(self, connection: Connection) -> None:
        """It has ended."""

    def turned(self, reason: Turned, host: str) -> None:
        """One was closed by us."""


def first_record_complete(data: bytes | bytearray) -> bool:
    """True if the first TLS record is there, or if these bytes cannot begin a handshake and gRPC may say so."""
    if not data:
        return False
    if data[0] != _HANDSHAKE_RECORD:
        return True
    if len(data) < _RECORD_HEADER:
        return False
    length = int.from_bytes(data[3:5])
    return length > _LONGEST_RECORD or len(data) >= _RECORD_HEADER + length


class Connection(asyncio.Protocol):
    """The side of a client."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._begin = bytearray()
        self._upstream: Upstream | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._ended = False
        self._turns = 0
        self._client_spoke_last = False
        self._deadline: asyncio.TimerHandle | None = None

    # -- the client ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Counts the connection, or closes it at once."""
        self.transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self._host = str(peer[0]).partition("%")[0] if peer else ""
        refused = self._port.entered(self, self._host)
        if refused is not None:
            self.close(refused)
            return
        self._deadline = self._loop.call_later(
            self._port.handshake_seconds, self.close, Turned.HANDSHAKE_TIMEOUT
        )

    def data_received(self, data: bytes) -> None:
        """Passes bytes on, once there is somebody to pass them to."""
        self._client_spoke_last = True
        if self._upstream is not None:
            self._upstream.transport.write(data)
            return
        self._begin += data
        if self._dialling is None and first_record_complete(self._begin):
            # What follows waits in the kernel.
            self.transport.pause_reading()
            self._port.advanced(self, Stage.SHAKING)
            self._dialling = self._loop.create_task(self._dial())

    def eof_received(self) -> bool:
        """A half-closed connection stays open for the answer."""
        self._ended = True
        if self._upstream is not None:
            _end(self._upstream.transport)
        return self._upstream is not None or self._dialling is not None

    def pause_writing(self) -> None:
        """The client reads more slowly than gRPC writes."""
        if self._upstream is not None:
            self._upstream.transport.pause_reading()

    def resume_writing(self) -> None:
        """The client has caught up."""
        if self._upstream is not None:
            self._upstream.transport.resume_reading()

    def connection_lost(self, _error: Exception | None) -> None:
        """Ends the other side as well."""
        self._port.left(self)
        if self._deadline is not None:
            self._deadline.cancel()
        if self._upstream is not None:
            _close(self._loop, self._upstream.transport)

    def close(self, reason: Turned) -> None:
        """Ends the connection at once and counts why."""
        self._port.turned(reason, self._host)
        if self._deadline is not None:
            self._deadline.cancel()
        self.transport.abort()

    # -- gRPC ---------------------------------------------------------------------------------------------

    async def _dial(self) -> None:
        try:
            await self._loop.create_connection(
                lambda: Upstream(self), LOOPBACK, self._port.upstream_port
            )
        except OSError:
            self.transport.abort()

    def joined(self, upstream: Upstream) -> None:
        """gRPC is there: what came so far is passed on."""
        if self.transport.is_closing():
            upstream.transport.abort()
            return
        remember(upstream.transport.get_extra_info("sockname")[1], self._host)
        self._upstream = upstream
        upstream.transport.write(bytes(self._begin))
        self._begin.clear()
        if self._ended:
            _end(upstream.transport)
        if not upstream.full:
            self.transport.resume_reading()

    def answered(self, data: bytes) -> None:
        """gRPC has sent something."""
        if self._client_spoke_last:
            self._client_spoke_last = False
            self._turns += 1
            if self._turns == _TURNS_OF_A_HANDSHAKE and self._deadline is not None:
                self._deadline.cancel()
                self._port.advanced(self, Stage.OPEN)
        self.transport.write(data)


class Upstream(asyncio.Protocol):
    """The side of gRPC."""

    def __init__(self, client: Connection) -> None:
        self._client = client
        self.full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Joins both sides."""
        self.transport = cast("asyncio.Transport", transport)
        self._client.joined(self)

    def data_received(self, data: bytes) -> None:
        """Passes bytes on."""
        self._client.answered(data)

    def eof_received(self) -> bool:
        """gRPC never half-closes: what it has said is delivered, then the client is let go."""
        return False

    def pause_writing(self) -> None:
        """The client writes faster than gRPC reads."""
        self.full = True
        self._client.transport.pause_reading()

    def resume_writing(self) -> None:
        """Enough was read: the client may go on."""
        self.full = False
        self._client.transport.resume_reading()

    def connection_lost(self, _error: Exception | None) -> None:
        """Ends the client's side."""
        _close(asyncio.get_running_loop(), self._client.transport)


def _end(transport: asyncio.Transport) -> None:
    with suppress(OSError, RuntimeError):
        transport.write_eof()


def _close(loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
    """Delivers what is still to be written, but not for ever: the other end may be gone."""
    if transport.is_closing() and not transport.get_write_buffer_size():
        return
    transport.close()
    if transport.get_write_buffer_size():
        loop.call_later(_FLUSH_SECONDS, transport.abort)
