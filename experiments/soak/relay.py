"""A TCP relay between silos and coordinator whose connections can be reset, stalled and slowed down.

A process of its own. Every silo has a port, so that a fault meets one silo. `python -m experiments.soak.relay
COORDINATOR_PORT SILOS` prints its ports as a JSON list, then reads disruptions from standard input, a JSON object per
line: {"silo": 3, "disruption": "stall", "seconds": 1.5}. At the end of standard input it prints its counts and exits.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

_LOOPBACK = "127.0.0.1"
_PIECE_BYTES = 1 << 16
# One way, for each piece of data.
_SLOW_SECONDS = 0.05
# Closing then sends a reset instead of the polite end.
_NO_LINGER = struct.pack("ii", 1, 0)


class Disruption(StrEnum):
    """What can be done to a silo's connections."""

    RESET = "reset"
    STALL = "stall"
    BLACKHOLE = "blackhole"
    SLOW = "slow"


@dataclass
class Counts:
    """What happened on all relays."""

    connections: int = 0
    resets: int = 0
    """Connections that were open when they were reset."""
    bytes: int = 0
    """Relayed, both ways."""


@dataclass
class SiloRelay:
    """One silo's connections to the coordinator."""

    coordinator: int
    """Port."""
    counts: Counts
    _flowing: asyncio.Event = field(default_factory=asyncio.Event)
    _stalls: int = 0
    _slowed: int = 0
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._flowing.set()

    async def apply(self, disruption: Disruption, seconds: float) -> None:
        """Disrupts all connections for `seconds`; disruptions may overlap."""
        if disruption is Disruption.SLOW:
            self._slowed += 1
            await asyncio.sleep(seconds)
            self._slowed -= 1
        if disruption in (Disruption.STALL, Disruption.BLACKHOLE):
            await self._stall(seconds)
        if disruption in (Disruption.RESET, Disruption.BLACKHOLE):
            self._reset()

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carries one connection until either end closes it."""
        self.counts.connections += 1
        self._open.add(writer)
        there = None
        try:
            await self._flowing.wait()
            back, there = await asyncio.open_connection(_LOOPBACK, self.coordinator)
            self._open.add(there)
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._carry(reader, there))
                ways.create_task(self._carry(back, writer))
        except* OSError:
            # The coordinator is down, or one end has gone.
            pass
        finally:
            for end in (writer, there):
                if end is not None:
                    self._open.discard(end)
                    end.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_PIECE_BYTES):
            if self._slowed:
                await asyncio.sleep(_SLOW_SECONDS)
            await self._flowing.wait()
            self.counts.bytes += len(data)
            writer.write(data)
            await writer.drain()
        # gRPC never closes half of a connection: the other way ends too.
        raise ConnectionResetError

    async def _stall(self, seconds: float) -> None:
        self._stalls += 1
        self._flowing.clear()
        await asyncio.sleep(seconds)
        self._stalls -= 1
        if not self._stalls:
            self._flowing.set()

    def _reset(self) -> None:
        for end in list(self._open):
            self.counts.resets += 1
            with suppress(OSError):
                end.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER
                )
            end.transport.abort()


async def serve(coordinator: int, silos: int) -> None:
    """Relays for `silos` silos until standard input ends."""
    counts = Counts()
    relays = [SiloRelay(coordinator, counts) for _ in range(silos)]
    servers = [await asyncio.start_server(relay.relay, _LOOPBACK, 0) for relay in relays]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    commands = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(commands)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    under_way: set[asyncio.Task[None]] = set()
    async for line in commands:
        command = json.loads(line)
        disruption = Disruption(command["disruption"])
        work = relays[command["silo"]].apply(disruption, command["seconds"])
        task = asyncio.create_task(work)
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    print(json.dumps(vars(counts)), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(*map(int, sys.argv[1:])))
