"""Owns the public ports: a thread with an event loop of its own, so that a flood never waits for a call or the reverse."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import structlog

from coordinator.front_door.listening import connections_within
from coordinator.front_door.room import Caps, Room, Stage
from coordinator.front_door.splice import Connection
from coordinator.metrics.connections import ConnectionMetrics, Turned
from wire.net.address import site_of

log = structlog.get_logger()

T = TypeVar("T")

# Connections the kernel keeps until they are taken, and taken at a time.
_BACKLOG = 512
_SUMMARY_SECONDS = 5.0
_STOP_SECONDS = 5.0
_MOST_HOSTS = 1000
_HOSTS_TOLD = 3


@dataclass(frozen=True)
class Doorway:
    """A public port and where its connections are passed on to."""

    name: str
    """Of its series in the metrics."""
    listening: socket.socket
    """Bound, not yet listening."""
    upstream_port: int
    """gRPC's own port on the loopback interface."""
    caps: Caps


def fitting(wanted: Caps, share: float, files: int) -> Caps:
    """`wanted`, or less where so many open files allow no more; `share` of them is this port's."""
    total = max(2, min(wanted.total, int(connections_within(files) * share)))
    return replace(wanted, total=total, per_address=min(wanted.per_address, total))


class _Port:
    """The connections of one doorway; used on the front door's thread only."""

    def __init__(self, doorway: Doorway, handshake: float, metrics: ConnectionMetrics) -> None:
        self.handshake_seconds = handshake
        self.upstream_port = doorway.upstream_port
        self.connections: set[Connection] = set()
        self._name = doorway.name
        self._room = Room(doorway.caps)
        self._metrics = metrics
        self._untold: Counter[Turned] = Counter()
        self._hosts: Counter[str] = Counter()

    def entered(self, connection: Connection, host: str) -> Turned | None:
        outcome = self._room.enter(connection, site_of(host) or host)
        if isinstance(outcome, Turned):
            return outcome
        self.connections.add(connection)
        if isinstance(outcome, Connection):
            outcome.close(Turned.CROWDED_OUT)
        self._show()
        return None

    def advanced(self, connection: Connection, stage: Stage) -> None:
        self._room.advance(connection, stage)

    def left(self, connection: Connection) -> None:
        self._room.leave(connection)
        self.connections.discard(connection)
        self._show()

    def turned(self, reason: Turned, host: str) -> None:
        self._metrics.refused(self._name, reason)
        if not self._untold:
            asyncio.get_running_loop().call_later(_SUMMARY_SECONDS, self._tell)
        self._untold[reason] += 1
        if len(self._hosts) < _MOST_HOSTS or host in self._hosts:
            self._hosts[host] += 1

    def _show(self) -> None:
        self._metrics.open(self._name, len(self._room))

    def _tell(self) -> None:
        """One line for all that were turned away in a while, never one each."""
        log.warning(
            "connections_refused",
            port=self._name,
            within_seconds=_SUMMARY_SECONDS,
            mostly_from=[host for host, _ in self._hosts.most_common(_HOSTS_TOLD)],
            **{str(reason): count for reason, count in self._untold.items()},
        )
        self._untold.clear()
        self._hosts.clear()


class FrontDoor:
    """Takes connections from `open` to `shut`; those it has go on until `close`."""

    def __init__(self, handshake_seconds: float, metrics: ConnectionMetrics) -> None:
        self._handshake = handshake_seconds
        self._metrics = metrics
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="front-door", daemon=True
        )
        self._servers: list[asyncio.Server] = []
        self._ports: list[_Port] = []

    def open(self, *doorways: Doorway) -> None:
        """Listens; OSError if a port cannot."""
        self._thread.start()
        self._run(self._listen(doorways))

    async def shut(self) -> None:
        """Takes no further connections."""
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._shut(), self._loop))

    def close(self) -> None:
        """Ends what is still connected, and the thread."""
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _listen(self, doorways: tuple[Doorway, ...]) -> None:
        for doorway in doorways:
            port = _Port(doorway, self._handshake, self._metrics)
            self._ports.append(port)
            self._servers.append(await _server(port, doorway.listening))

    async def _shut(self) -> None:
        for server in self._servers:
            server.close()

    async def _end(self) -> None:
        await self._shut()
        for port in self._ports:
            for connection in list(port.connections):
                connection.transport.abort()
        # Aborted transports tell their protocols in the next turn of the loop.
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def _server(port: _Port, listening: socket.socket) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: Connection(port), sock=listening, backlog=_BACKLOG)
