"""Too many sockets from a few addresses: whoever is honest stays connected and still gets in."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import count

import pytest
from http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    SETTINGS,
    call_headers,
    frame,
    header_block,
    message,
    tls_context,
)
from patience import PATIENCE
from siege import Siege, eventually, siege

from wire.consilium.v1 import rounds_pb2, rounds_pb2_grpc
from wire.net.channels import secure_channel

ATTACKERS = tuple(f"127.0.0.{last}" for last in range(2, 8))
IDLE, SLOW = 5000, 1000
_FILES = 16_000


@pytest.fixture(autouse=True)
def _many_files() -> Iterator[None]:
    """Enough descriptors for the attacker, which is this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    with siege(tmp_path_factory.mktemp("door")) as running:
        yield running


class Crowd:
    """Sockets of the attackers that are replaced when they are hung up on, until the block ends."""

    def __init__(self, port: int, count: int, greeting: bytes, hosts: tuple[str, ...]) -> None:
        self._port, self._greeting, self._hosts = port, greeting, hosts
        self._sockets: list[socket.socket | None] = [None] * count
        self._stop = threading.Event()
        self._complete = threading.Event()
        self._thread = threading.Thread(target=self._press, daemon=True)

    def __enter__(self) -> Crowd:
        self._thread.start()
        assert self._complete.wait(PATIENCE)
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        for each in self._sockets:
            if each is not None:
                each.close()

    def _press(self) -> None:
        while not self._stop.is_set():
            for place in range(len(self._sockets)):
                if self._stop.is_set():
                    return
                self._renew(place)
            self._complete.set()

    def _renew(self, place: int) -> None:
        held = self._sockets[place]
        if held is not None:
            if not _hung_up(held):
                return
            held.close()
            self._sockets[place] = None
        with suppress(OSError):
            source = (self._hosts[place % len(self._hosts)], 0)
            made = socket.create_connection(("127.0.0.1", self._port), PATIENCE, source)
            self._sockets[place] = made
            made.sendall(self._greeting)
            made.setblocking(False)


def _hung_up(held: socket.socket) -> bool:
    try:
        while held.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def client_hello() -> bytes:
    """The first record of an honest handshake."""
    outgoing = ssl.MemoryBIO()
    connection = ssl.create_default_context().wrap_bio(
        ssl.MemoryBIO(), outgoing, server_hostname="localhost"
    )
    with suppress(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


def beat(besieged: Siege) -> None:
    """A heartbeat of an honest silo over a connection of its own."""
    files = besieged.honest[0].identity

    async def call() -> None:
        async with secure_channel(besieged.address, files) as channel:
            request = rounds_pb2.HeartbeatRequest(instance=files.name)
            await rounds_pb2_grpc.RoundsServiceStub(channel).Heartbeat(
                request, timeout=PATIENCE, wait_for_ready=True
            )

    asyncio.run(call())


def joins(besieged: Siege, name: str) -> bool:
    try:
        besieged.join(name)
    except Exception:
        return False
    return True


@pytest.mark.parametrize("honest_address", [True, False])
def test_idle_sockets_and_slow_handshakes_shut_nobody_out(
    besieged: Siege, honest_address: bool
) -> None:
    """Also if the attackers share the silos' address, as behind one NAT."""
    hosts = ATTACKERS if honest_address else ("127.0.0.1", *ATTACKERS)
    hello, half = client_hello(), client_hello()[:50]
    attack = besieged.unshaken(f"5 000 idle, 1 000 slow, {len(hosts)} addresses", growth_mib=256)
    with attack, ExitStack() as crowds:
        for port in (besieged.port, besieged.enrolment_port):
            for size, greeting in ((IDLE // 2, b""), (SLOW // 4, hello), (SLOW // 4, half)):
                crowds.enter_context(Crowd(port, size, greeting, hosts))
        for _ in range(5):
            beat(besieged)
        # From the attackers' own address it may take a second attempt.
        names = (f"newcomer-{len(hosts)}-{attempt}" for attempt in count())
        eventually("a newcomer", lambda: joins(besieged, next(names)))
        assert besieged.counted("consilium_connections_open", port="main") <= 2048
        assert besieged.counted("consilium_connections_open", port="enrolment") <= 64
    for port in ("main", "enrolment"):
        reasons = ("crowded_out", "handshake_timeout")
        counts = [
            besieged.counted("consilium_connections_refused_total", port=port, reason=reason)
            for reason in reasons
        ]
        assert sum(counts) > 500, dict(zip(reasons, counts, strict=True))
    lines = [line for line in besieged.log().splitlines() if "connections_refused" in line]
    assert 0 < len(lines) < 200


def test_who_calls_is_known_behind_the_front_door(besieged: Siege) -> None:
    """Rate limits and log lines go by the client's address, not by the door's."""
    context = tls_context(None, besieged.authority.certificate_pem)
    block = header_block(call_headers("/consilium.v1.EnrolmentService/Enrol"))
    door = ("127.0.0.1", besieged.enrolment_port)
    with (
        socket.create_connection(door, PATIENCE, ("127.0.0.9", 0)) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as secure,
    ):
        secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))
        secure.sendall(frame(HEADERS, END_HEADERS, 1, block))
        secure.sendall(frame(DATA, END_STREAM, 1, message(b"")))
        eventually("the refusal is logged", lambda: '"caller": "127.0.0.9"' in besieged.log())
