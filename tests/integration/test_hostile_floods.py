"""Too much, too slow, too strange: peers that want to wear the coordinator out. Nobody honest notices."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import ssl
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress

import grpc
import grpc.aio
import pytest
from http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    MAX_FRAME,
    PING,
    RST_STREAM,
    SETTINGS,
    call_headers,
    frame,
    header_block,
    message,
)
from patience import PATIENCE
from siege import CALLS, ENROLMENTS, HANDSHAKE, RENEWALS, SILENCE, Siege, ballot, eventually, siege

from coordinator.api.rate_limit import LOG_LINES
from coordinator.settings import Rate
from wire.consilium.v1 import (
    ballot_pb2,
    enrolment_pb2,
    enrolment_pb2_grpc,
    identity_pb2,
    identity_pb2_grpc,
    rounds_pb2,
    rounds_pb2_grpc,
)
from wire.errors import CODE_KEY, ConsiliumError
from wire.identity.files import IdentityFiles, new_key
from wire.net.channels import enrolment_channel, secure_channel, translated
from wire.net.enrolment import request_pem

CAST = "/consilium.v1.RoundsService/CastBallot"
HEARTBEAT = "/consilium.v1.RoundsService/Heartbeat"
ENROL = "/consilium.v1.EnrolmentService/Enrol"
MIB = 1 << 20

Call = Callable[[rounds_pb2_grpc.RoundsServiceStub], Awaitable[object]]


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    with siege(tmp_path_factory.mktemp("floods")) as running:
        yield running


def refusal(besieged: Siege, files: IdentityFiles, call: Call) -> ConsiliumError:
    """How one call ended."""

    async def scenario() -> ConsiliumError:
        async with secure_channel(besieged.address, files) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(rounds_pb2_grpc.RoundsServiceStub(channel))
            return await translated(caught.value, besieged.address, files)

    return asyncio.run(scenario())


def cast_header(besieged: Siege) -> ballot_pb2.BallotHeader:
    """A header the coordinator has nothing against."""
    return ballot(besieged.task().task)[0]


class TestVolume:
    def test_a_message_of_a_gibibyte_is_refused_by_its_first_bytes(self, besieged: Siege) -> None:
        mallory = besieged.attacker()
        before = besieged.refusals()
        with besieged.unshaken("a message of 1 GiB"), besieged.peer(mallory) as peer:
            stream = peer.begin(call_headers(CAST))
            announced = (0).to_bytes(1) + (1 << 30).to_bytes(4)
            sent = peer.upload(stream, announced + bytes(64 * MIB))
            answer = peer.until_ended(stream)
        assert b"grpc-status\x018" in answer
        assert sent < 16 * MIB
        assert besieged.refusals() == before + 1

    def test_a_gibibyte_in_pieces_is_cut_off_at_the_ballots_length(self, besieged: Siege) -> None:
        mallory = besieged.attacker()
        header = cast_header(besieged)
        piece = rounds_pb2.CastBallotRequest(data=bytes(MIB))
        sent = 0

        def endless() -> Iterator[rounds_pb2.CastBallotRequest]:
            nonlocal sent
            yield rounds_pb2.CastBallotRequest(header=header)
            for _ in range(1024):
                sent += 1
                yield piece

        before = besieged.refused("BALLOT_TOO_LARGE")
        # gRPC widens its window with the measured round trip, which a loaded machine lengthens.
        with besieged.unshaken("1 GiB in messages of 1 MiB", growth_mib=256):
            refusal(besieged, mallory, lambda stub: stub.CastBallot(endless(), timeout=PATIENCE))
        assert besieged.refused("BALLOT_TOO_LARGE") == before + 1
        assert sent < 300

    @pytest.mark.parametrize("data", [b"", b"\0"])
    def test_a_million_tiny_messages_are_cut_off_early(self, besieged: Siege, data: bytes) -> None:
        mallory = besieged.attacker()
        first = message(
            rounds_pb2.CastBallotRequest(header=cast_header(besieged)).SerializeToString()
        )
        tiny = message(rounds_pb2.CastBallotRequest(data=data).SerializeToString())
        before = besieged.refused("MESSAGES_TOO_SMALL") + besieged.refused("MESSAGE_MALFORMED")
        attack = f"a million messages of {len(data)} B"
        with besieged.unshaken(attack), besieged.peer(mallory) as peer:
            stream = peer.begin(call_headers(CAST))
            peer.upload(stream, first + tiny * 1_000_000)
            peer.until_ended(stream)
        after = besieged.refused("MESSAGES_TOO_SMALL") + besieged.refused("MESSAGE_MALFORMED")
        assert after == before + 1
        # Read are the few that are free of charge and the few that are heard out, whatever was sent.
        assert not data or "came in 17 messages of" in besieged.log()

    @pytest.mark.parametrize("encoding", ["gzip", "deflate"])
    def test_a_compressed_bomb_is_refused_before_it_goes_off(
        self, besieged: Siege, encoding: str
    ) -> None:
        mallory = besieged.attacker()
        packer = zlib.compressobj(9, zlib.DEFLATED, 31 if encoding == "gzip" else 15)
        bomb = b"".join(packer.compress(bytes(MIB)) for _ in range(1024)) + packer.flush()
        before = besieged.handshakes("compressed_message")
        with besieged.unshaken(f"1 GiB as 1 MiB of {encoding}"), besieged.peer(mallory) as peer:
            stream = peer.begin(call_headers(HEARTBEAT, ("grpc-encoding", encoding)))
            peer.upload(stream, message(bomb, compressed=True))
            answer = peer.until_ended(stream)
        assert b"is disabled" in answer
        assert besieged.handshakes("compressed_message") == before + 1

    def test_a_message_marked_as_compressed_without_saying_how_is_refused(
        self, besieged: Siege
    ) -> None:
        mallory = besieged.attacker()
        with besieged.peer(mallory) as peer:
            stream = peer.begin(call_headers(HEARTBEAT))
            peer.upload(stream, message(zlib.compress(bytes(MIB)), compressed=True))
            peer.send(frame(DATA, END_STREAM, stream))
            answer = peer.until_ended(stream)
        assert b"grpc-status\x010" not in answer
        assert peer.ended(stream)


def most(rate: Rate, seconds: float) -> float:
    """How many a token bucket can have granted in that time."""
    return rate.burst + rate.per_second * seconds + 1


class TestRates:
    def test_a_member_that_calls_too_often_is_told_to_wait(self, besieged: Siege) -> None:
        mallory = besieged.attacker()
        calls = 3000

        async def flood() -> list[str]:
            async with secure_channel(besieged.address, mallory) as channel:
                stub = rounds_pb2_grpc.RoundsServiceStub(channel)
                request = rounds_pb2.HeartbeatRequest(instance="mallory")
                outcomes: list[str] = []

                async def caller(times: int) -> None:
                    for _ in range(times):
                        try:
                            await stub.Heartbeat(request, timeout=PATIENCE)
                        except grpc.aio.AioRpcError as error:
                            found = await translated(error, besieged.address, mallory)
                            outcomes.append(found.code)

                await asyncio.gather(*(caller(calls // 20) for _ in range(20)))
                return outcomes

        before, began = besieged.refused("RATE_LIMITED"), time.monotonic()
        with besieged.unshaken(f"{calls} calls as fast as possible"):
            outcomes = asyncio.run(flood())
            lasted = time.monotonic() - began
        assert set(outcomes) == {"LEASE_LOST", "RATE_LIMITED"}
        assert CALLS.burst <= outcomes.count("LEASE_LOST") <= most(CALLS, lasted)
        assert len(outcomes) == calls
        assert besieged.refused("RATE_LIMITED") == before + outcomes.count("RATE_LIMITED")
        # A flood of calls does not become a flood of lines.
        lines = [line for line in besieged.log().splitlines() if f"silo/{mallory.name}" in line]
        assert LOG_LINES.burst <= len(lines) <= most(LOG_LINES, lasted)

    def test_certificates_are_not_handed_out_without_end(self, besieged: Siege) -> None:
        mallory = besieged.attacker()

        async def renew_often() -> int:
            granted = 0
            async with secure_channel(besieged.address, mallory) as channel:
                stub = identity_pb2_grpc.IdentityServiceStub(channel)
                for _ in range(60):
                    pem = request_pem(new_key(), mallory.name)
                    request = identity_pb2.RenewRequest(certificate_request_pem=pem)
                    with suppress(grpc.aio.AioRpcError):
                        await stub.Renew(request, timeout=PATIENCE)
                        granted += 1
            return granted

        began = time.monotonic()
        with besieged.unshaken("60 renewals"):
            granted = asyncio.run(renew_often())
            lasted = time.monotonic() - began
        assert RENEWALS.burst <= granted <= most(RENEWALS, lasted)

    def test_strangers_are_limited_by_their_address(self, besieged: Siege) -> None:
        request = enrolment_pb2.EnrolRequest(
            token_id="0" * 16,
            token_secret="guess",
            certificate_request_pem=request_pem(new_key(), "mallory"),
        )

        async def guess() -> list[str]:
            address = f"localhost:{besieged.enrolment_port}"
            pem = besieged.authority.certificate_pem
            outcomes = []
            async with enrolment_channel(address, pem) as channel:
                stub = enrolment_pb2_grpc.EnrolmentServiceStub(channel)
                for _ in range(300):
                    try:
                        await stub.Enrol(request, timeout=PATIENCE)
                    except grpc.aio.AioRpcError as error:
                        found = await translated(error, address, None, authorities_pem=pem)
                        outcomes.append(found.code)
            return outcomes

        before, began = besieged.refused("RATE_LIMITED"), time.monotonic()
        with besieged.unshaken("300 guessed tokens"):
            outcomes = asyncio.run(guess())
            lasted = time.monotonic() - began
        assert len(outcomes) == 300
        assert set(outcomes) == {"TOKEN_UNKNOWN", "RATE_LIMITED"}
        assert besieged.refused("RATE_LIMITED") == before + outcomes.count("RATE_LIMITED")
        assert outcomes.count("TOKEN_UNKNOWN") <= most(ENROLMENTS, lasted)

    def test_further_watch_streams_end_the_oldest(self, besieged: Siege) -> None:
        mallory = besieged.attacker()
        request = rounds_pb2.WatchRequest(instance="one", agent_version="test")

        async def scenario() -> tuple[list[bool], str]:
            async with secure_channel(besieged.address, mallory) as channel:
                stub = rounds_pb2_grpc.RoundsServiceStub(channel)
                watches = []
                for _ in range(5):
                    watches.append(stub.Watch(request))
                    await watches[-1].initial_metadata()
                for watch in watches[:2]:
                    await asyncio.wait_for(watch.code(), PATIENCE)
                trailers = dict(await watches[0].trailing_metadata())
                return [watch.done() for watch in watches], str(trailers[CODE_KEY])

        with besieged.unshaken("five watch streams"):
            ended, code = asyncio.run(scenario())
        assert ended == [True, True, False, False, False]
        assert code == "STREAM_REPLACED"


class TestPatience:
    def test_an_upload_that_stops_is_ended(self, besieged: Siege) -> None:
        mallory = besieged.attacker()
        header = cast_header(besieged)

        async def stop_after_header(stub: rounds_pb2_grpc.RoundsServiceStub) -> object:
            call = stub.CastBallot(timeout=PATIENCE)
            await call.write(rounds_pb2.CastBallotRequest(header=header))
            return await call

        with besieged.unshaken("a header and then nothing"):
            error = refusal(besieged, mallory, stop_after_header)
        assert (error.code, error.sentence) == (
            "UPLOAD_STALLED",
            f"Nothing more of the call arrived for {SILENCE:g} s.",
        )

    @pytest.mark.parametrize("method", [HEARTBEAT, CAST])
    def test_calls_that_are_begun_and_left_open_end_by_themselves(
        self, besieged: Siege, method: str
    ) -> None:
        mallory = besieged.attacker()
        crowded, stalled = besieged.refused("TOO_MANY_CALLS"), besieged.refused("UPLOAD_STALLED")
        with besieged.unshaken("90 half-open streams"), besieged.peer(mallory) as peer:
            streams = [peer.begin(call_headers(method)) for _ in range(90)]
            for stream in streams:
                peer.until_ended(stream)
        assert besieged.refused("TOO_MANY_CALLS") == crowded + 90 - 32
        assert besieged.refused("UPLOAD_STALLED") == stalled + 32

    def test_a_connection_has_so_many_streams_and_no_more(self, besieged: Siege) -> None:
        mallory = besieged.attacker()
        with besieged.unshaken("2000 half-open streams"), besieged.peer(mallory) as peer:
            streams = [peer.begin(call_headers(CAST)) for _ in range(2000)]
            peer.until_ended(streams[-1])
        refused = [f for f in peer.heard if f.kind == RST_STREAM]
        assert len(refused) >= 1500

    def test_a_peer_that_died_silently_is_noticed(self, besieged: Siege) -> None:
        mallory = besieged.attacker()
        files = besieged.open_files()
        request = message(rounds_pb2.WatchRequest(instance="ghost").SerializeToString())
        with besieged.unshaken("20 peers that answer no ping"), ExitStack() as open_peers:
            for _ in range(20):
                peer = open_peers.enter_context(besieged.peer(mallory))
                peer.upload(peer.begin(call_headers("/consilium.v1.RoundsService/Watch")), request)
            assert besieged.open_files() >= files + 20
            # They stay open and silent; the coordinator has to find out.
            eventually("dead peers closed", lambda: besieged.open_files() < files + 10)

    def test_a_reader_that_never_reads_holds_up_nobody(self, besieged: Siege) -> None:
        mallory = besieged.attacker()
        fetch = "/consilium.v1.RegistryService/ListPublicSets"
        with besieged.unshaken("200 answers never read"), besieged.peer(mallory) as peer:
            # An initial window of nothing: whatever the coordinator answers, it may not send.
            peer.send(frame(SETTINGS, 0, 0, (4).to_bytes(2) + (0).to_bytes(4)))
            for _ in range(200):
                stream = peer.begin(call_headers(fetch))
                peer.upload(stream, message(b""))
                with suppress(OSError):
                    peer.send(frame(DATA, END_STREAM, stream))
            time.sleep(SILENCE)


class TestSockets:
    @pytest.mark.parametrize("port", ["port", "enrolment_port"])
    def test_garbage_on_the_port_is_hung_up_on(self, besieged: Siege, port: str) -> None:
        before = besieged.handshakes("not_tls") + besieged.handshakes("other")
        greetings = [
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0),
            b"SSH-2.0-OpenSSH_9.6\r\n",
            bytes(4096),
            os.urandom(65536),
            b"\x16\x03\x01\xff\xff" + bytes(70_000),
        ]
        with besieged.unshaken(f"garbage on the {port}"):
            for greeting in greetings * 20:
                with _raw(getattr(besieged, port)) as connection:
                    with suppress(OSError):
                        connection.sendall(greeting)
                    _until_closed(connection)
        after = besieged.handshakes("not_tls") + besieged.handshakes("other")
        assert after - before >= 4 * 20

    @pytest.mark.parametrize("port", ["port", "enrolment_port"])
    def test_200_handshakes_that_dribble_are_cut_off(self, besieged: Siege, port: str) -> None:
        hello = _client_hello()
        files = besieged.open_files()
        with besieged.unshaken(f"slow-loris on the {port}"), ExitStack() as connections:
            slow = [connections.enter_context(_raw(getattr(besieged, port))) for _ in range(200)]
            began = time.monotonic()
            for position in range(20):
                for connection in slow:
                    with suppress(OSError):
                        connection.sendall(hello[position : position + 1])
                time.sleep(HANDSHAKE / 10)
            for connection in slow:
                _until_closed(connection)
            assert time.monotonic() - began < 5 * HANDSHAKE
            assert besieged.open_files() < files + 50

    def test_more_connections_than_the_enrolment_port_bears_do_not_touch_the_silos(
        self, besieged: Siege
    ) -> None:
        files = besieged.open_files()
        attack = "600 connections to the enrolment port"
        with besieged.unshaken(attack), ExitStack() as connections:
            made = [connections.enter_context(_raw(besieged.enrolment_port)) for _ in range(600)]
            eventually("most are hung up on", lambda: sum(map(_is_closed, made)) > 500)
            assert besieged.open_files() < files + 100

    def test_streams_opened_and_reset_at_once_cost_little(self, besieged: Siege) -> None:
        mallory = besieged.attacker()
        block = header_block(call_headers(HEARTBEAT))
        cancel = (8).to_bytes(4)
        attack = besieged.unshaken("20 000 rapid resets")
        with attack, besieged.peer(mallory) as peer, suppress(OSError):
            for stream in range(1, 40_001, 2):
                peer.send(
                    frame(HEADERS, END_HEADERS, stream, block)
                    + frame(RST_STREAM, 0, stream, cancel)
                )
        # Every call that was reset has given its place back.
        beat = rounds_pb2.HeartbeatRequest(instance="mallory")
        error = refusal(besieged, mallory, lambda stub: stub.Heartbeat(beat, timeout=PATIENCE))
        assert error.code in {"LEASE_LOST", "RATE_LIMITED"}

    @pytest.mark.parametrize("size", [20_000, 1_000_000, 12_000_000])
    @pytest.mark.parametrize("polite", [True, False])
    def test_headers_beyond_measure_are_refused(
        self, besieged: Siege, size: int, polite: bool
    ) -> None:
        mallory = besieged.attacker()
        before = besieged.refused("HEADERS_TOO_LARGE")
        block = header_block(call_headers(HEARTBEAT, ("x-ballast", "x" * size)))
        pieces = [block[at : at + MAX_FRAME] for at in range(0, len(block), MAX_FRAME)]
        sent = frame(HEADERS, 0, 1, pieces[0])
        for piece in pieces[1:-1]:
            sent += frame(CONTINUATION, 0, 1, piece)
        sent += frame(CONTINUATION, END_HEADERS, 1, pieces[-1])
        # gRPC takes them in before it refuses them, and the front door passes them on.
        shaken = besieged.unshaken(f"{size} bytes of headers", growth_mib=128)
        with shaken, besieged.peer(mallory) as peer:
            # Only who has acknowledged the server's settings is bound by them.
            while polite and not any(heard.flags & ACK for heard in peer.heard):
                peer.read()
            peer.send(sent + frame(DATA, END_STREAM, 1, message(b"")))
            answer = peer.until_ended(1)
        assert b"grpc-status\x018" in answer
        if not polite and size < 4 * MIB:
            assert besieged.refused("HEADERS_TOO_LARGE") == before + 1

    def test_header_pieces_without_end_are_thrown_away(self, besieged: Siege) -> None:
        mallory = besieged.attacker()
        piece = frame(CONTINUATION, 0, 1, header_block([("x-more", "y" * 16_000)]))
        # gRPC buffers tens of MiB of whatever comes fast, but not the 640 MB that are sent here.
        with besieged.unshaken("CONTINUATION flood", growth_mib=192):
            for _ in range(2):
                with besieged.peer(mallory) as peer, suppress(OSError):
                    peer.send(frame(HEADERS, 0, 1, header_block(call_headers(HEARTBEAT))))
                    for _ in range(20_000):
                        peer.send(piece)

    @pytest.mark.parametrize("kind", ["PING", "SETTINGS"])
    def test_control_frames_without_end_take_nothing(self, besieged: Siege, kind: str) -> None:
        mallory = besieged.attacker()
        one = frame(PING, 0, 0, bytes(8)) if kind == "PING" else frame(SETTINGS, 0, 0)
        attack = besieged.unshaken(f"200 000 {kind} frames")
        with attack, besieged.peer(mallory) as peer, suppress(OSError):
            # Never reading the answers: they must not pile up either.
            peer.socket.settimeout(2)
            for _ in range(2000):
                peer.send(one * 100)


def _raw(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def _until_closed(connection: socket.socket) -> None:
    """Returns when the other side has hung up; TimeoutError if it never does."""
    with suppress(ConnectionError):
        while connection.recv(65536):
            pass


def _is_closed(connection: socket.socket) -> bool:
    """True once the other side, which never speaks first, has hung up."""
    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable)


def _client_hello() -> bytes:
    """The first bytes of an honest handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    connection = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()
