"""The front door: whose connection is closed when there are too many, and that bytes pass unchanged both ways."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from coordinator.api.interceptor import address_of
from coordinator.front_door.front_door import Doorway, FrontDoor, fitting
from coordinator.front_door.listening import connections_within, listening_socket
from coordinator.front_door.peers import client_of, remember
from coordinator.front_door.room import Caps, Room, Stage
from coordinator.front_door.splice import first_record_complete
from coordinator.metrics.connections import ENROLMENT_PORT, ConnectionMetrics, Turned

HELLO = b"\x16\x03\x01\x00\x04abcd"


class TestRoom:
    def test_an_address_keeps_its_newest_handshakes_and_the_silent_go_first(self) -> None:
        room = Room(Caps(total=100, per_address=3))
        for one in ("silent", "slow", "silent too"):
            assert room.enter(one, "a") is None
        room.advance("slow", Stage.SHAKING)
        assert room.enter("d", "a") == "silent"
        assert room.enter("e", "a") == "silent too"
        for one in ("d", "e"):
            room.advance(one, Stage.OPEN)
        assert room.enter("f", "a") == "slow"

    def test_open_connections_of_an_address_keep_further_ones_out(self) -> None:
        room = Room(Caps(total=100, per_address=2))
        for one in ("a1", "a2"):
            room.enter(one, "a")
            room.advance(one, Stage.OPEN)
        assert room.enter("a3", "a") is Turned.ADDRESS_FULL
        assert room.enter("b1", "b") is None
        room.leave("a1")
        assert room.enter("a3", "a") is None

    def test_of_too_many_that_wait_the_busiest_address_loses_one(self) -> None:
        room = Room(Caps(total=8, per_address=8))
        assert room.enter("honest", "h") is None
        assert [room.enter(f"m{n}", "m") for n in range(5)] == [None, None, None, "m0", "m1"]

    def test_waiting_connections_make_room_before_open_ones(self) -> None:
        room = Room(Caps(total=4, per_address=4))
        for one in ("a1", "a2", "a3"):
            room.enter(one, "a")
            room.advance(one, Stage.OPEN)
        room.enter("w", "w")
        assert room.enter("b", "b") == "w"

    def test_a_full_port_takes_from_the_address_with_most(self) -> None:
        room = Room(Caps(total=4, per_address=4))
        for one, address in (("m1", "m"), ("m2", "m"), ("m3", "m"), ("h", "h")):
            room.enter(one, address)
            room.advance(one, Stage.OPEN)
        assert room.enter("n", "n") == "m1"
        room.advance("n", Stage.OPEN)
        assert room.enter("n2", "n") is Turned.PORT_FULL
        assert room.enter("m4", "m") is Turned.PORT_FULL

    @given(
        st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abcd"), st.sampled_from("ealls")))
    )
    def test_no_cap_is_ever_exceeded(self, steps: list[tuple[int, str, str]]) -> None:
        caps = Caps(total=6, per_address=3)
        room, here = Room(caps), dict[int, str]()
        waiting: set[int] = set()
        for number, address, step in steps:
            if step == "e" and number not in here:
                outcome = room.enter(number, address)
                if isinstance(outcome, int):
                    del here[outcome]
                    waiting.discard(outcome)
                if not isinstance(outcome, Turned):
                    here[number] = address
                    waiting.add(number)
            elif step == "a":
                room.advance(number, Stage.OPEN)
                waiting.discard(number)
            elif step == "l":
                room.leave(number)
                here.pop(number, None)
                waiting.discard(number)
            assert len(room) == len(here) <= caps.total
            assert len(waiting) <= caps.waiting
            assert all(list(here.values()).count(one) <= caps.per_address for one in "abcd")


@pytest.mark.parametrize(
    ("data", "complete"),
    [
        (b"", False),
        (b"\x16", False),
        (HELLO[:-1], False),
        (HELLO, True),
        (HELLO + b"more", True),
        (b"GET / HTTP/1.1", True),
        (b"\x16\x03\x01\xff\xff", True),
    ],
)
def test_grpc_is_dialled_for_a_whole_record_or_for_what_is_none(
    data: bytes, complete: bool
) -> None:
    assert first_record_complete(data) is complete


def test_few_files_mean_few_connections() -> None:
    caps = Caps(total=2048, per_address=256)
    assert fitting(caps, 1.0, 1_000_000) == caps
    small = fitting(caps, 1.0, 1024)
    assert small.total == connections_within(1024) == 256
    assert fitting(caps, 0.1, 64) == Caps(2, 2)


def test_a_client_is_named_behind_the_door() -> None:
    remember(50_123, "192.0.2.7")
    remember(50_124, "2001:db8::7")
    assert address_of(client_of("ipv4:127.0.0.1:50123")) == "192.0.2.7"
    assert address_of(client_of("ipv4:127.0.0.1:50124")) == "2001:db8::/64"
    assert address_of(client_of("ipv4:127.0.0.1:1")) == "127.0.0.1"


Serving = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def door(
    serving: Serving, handshake: float, caps: Caps
) -> AsyncIterator[tuple[int, CollectorRegistry]]:
    """A front door before a server of ours; its port and what it counted."""
    registry = CollectorRegistry()
    behind = await asyncio.start_server(serving, "127.0.0.1", 0)
    listening = listening_socket("127.0.0.1", 0)
    port = listening.getsockname()[1]
    upstream = behind.sockets[0].getsockname()[1]
    front = FrontDoor(handshake, ConnectionMetrics(registry))
    front.open(Doorway(ENROLMENT_PORT, listening, upstream, caps))
    try:
        yield port, registry
    finally:
        await front.shut()
        front.close()
        behind.close()


def refused(registry: CollectorRegistry, reason: Turned) -> float:
    labels = {"port": ENROLMENT_PORT, "reason": str(reason)}
    return registry.get_sample_value("consilium_connections_refused_total", labels) or 0.0


async def echo_until_eof(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers only after the caller has half-closed."""
    everything = await reader.read()
    writer.write(everything)
    await writer.drain()
    writer.close()


class TestBytes:
    def test_a_half_closed_connection_gets_its_whole_answer(self) -> None:
        sent = HELLO + bytes(range(256)) * 40_000

        async def scenario() -> bytes:
            async with door(echo_until_eof, 60, Caps(10, 10)) as (port, _):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(sent)
                writer.write_eof()
                return await reader.read()

        assert asyncio.run(scenario()) == sent

    def test_a_reader_that_stands_still_stops_the_writer(self) -> None:
        passed = 0

        async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal passed
            await reader.read(1)
            with suppress(ConnectionError, asyncio.CancelledError):
                while True:
                    writer.write(bytes(1 << 16))
                    await asyncio.wait_for(writer.drain(), 1)
                    passed += 1 << 16

        async def scenario() -> None:
            async with door(pour, 60, Caps(10, 10)) as (port, _):
                with socket.create_connection(("127.0.0.1", port)) as still:
                    still.sendall(HELLO)
                    held = -1
                    while held != passed or not passed:
                        held = passed
                        await asyncio.sleep(1.5)

        asyncio.run(scenario())
        assert passed < 64 << 20

    def test_a_silent_caller_is_never_passed_on_and_is_cut_off(self) -> None:
        calls = 0

        async def count(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal calls
            calls += 1
            writer.close()

        async def scenario() -> float:
            async with door(count, 0.1, Caps(10, 10)) as (port, registry):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(HELLO[:-1])
                with suppress(ConnectionError):
                    assert await reader.read() == b""
                return refused(registry, Turned.HANDSHAKE_TIMEOUT)

        assert asyncio.run(scenario()) == 1
        assert calls == 0

    def test_a_handshake_that_is_done_has_no_deadline(self) -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(100):
                writer.write(data)
            writer.close()

        async def scenario() -> float:
            async with door(talk, 0.3, Caps(10, 10)) as (port, registry):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                for turn in (HELLO, b"end of the handshake"):
                    writer.write(turn)
                    assert await reader.readexactly(len(turn)) == turn
                # A second connection is cut off while the first stays: the deadline has passed.
                other, _ = await asyncio.open_connection("127.0.0.1", port)
                with suppress(ConnectionError):
                    await other.read()
                writer.write(b"still here")
                assert await reader.readexactly(10) == b"still here"
                writer.close()
                return refused(registry, Turned.HANDSHAKE_TIMEOUT)

        assert asyncio.run(scenario()) == 1
