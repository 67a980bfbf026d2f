"""Only the consortium's certificates get in; everyone else is refused, counted, and told why."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

import grpc
import grpc.aio
import pytest
from loopback import DAY, Consortium, Heart, beat
from patience import PATIENCE

from coordinator.api.handshake_log import HandshakeLog, handshakes_are_logged
from coordinator.metrics.handshakes import HandshakeRefusal
from coordinator.settings import CoordinatorSettings
from wire.consilium.v1 import (
    rounds_pb2,
    rounds_pb2_grpc,
)
from wire.errors import (
    CERTIFICATE_EXPIRED,
    CERTIFICATE_NOT_YET_VALID,
    CLOCK_SKEW,
    PROXY_REFUSED,
    SERVER_UNTRUSTED,
    TLS_REFUSED,
    UNREACHABLE,
    ConfigurationError,
    ConsiliumError,
    Fault,
    Refusal,
)
from wire.identity.files import IdentityFiles
from wire.identity.identity import Role
from wire.net.address import split_address
from wire.net.channels import (
    RetryPolicy,
    enrolment_channel,
    secure_channel,
    translated,
)
from wire.net.proxy import Proxy
from wire.net.tls_diagnosis import diagnose

ONCE = RetryPolicy(attempts=2, first_pause_seconds=0.01, longest_pause_seconds=0.01)
T = TypeVar("T")


async def failure(address: str, files: IdentityFiles, now: datetime) -> ConsiliumError:
    """What a person is told when a heartbeat to `address` fails."""
    async with secure_channel(address, files, retries=ONCE) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await beat(channel)
    return await translated(caught.value, address, files, now=now)


def assert_is(error: ConsiliumError | None, fault: Fault, *words: str) -> None:
    assert isinstance(error, Refusal)
    assert error.code == fault.code, error.sentence
    for word in words:
        assert word in error.sentence


def noticed(scenario: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T, set[HandshakeRefusal]]:
    """What a scenario returns, and the refused handshakes the log saw meanwhile.

    Not a fixture: pytest itself moves standard error between set-up and call.
    """
    found: list[HandshakeRefusal] = []
    with HandshakeLog(found.append):
        result = asyncio.run(scenario())
    return result, set(found)


class TestWhoGetsIn:
    def test_a_silo_with_a_proper_certificate(self, consortium: Consortium) -> None:
        silo = consortium.member(Role.SILO, "hospital-a")

        async def scenario() -> Refusal | None:
            async with (
                consortium.serving(Heart().register) as address,
                secure_channel(address, silo) as channel,
            ):
                await beat(channel)
                return await asyncio.to_thread(diagnose, address, silo, now=consortium.now)

        assert noticed(scenario) == (None, set())
        (identity, fingerprint) = consortium.admitted[0]
        assert identity == silo.certificate.identity
        assert fingerprint == silo.certificate.fingerprint
        assert not consortium.refused

    def test_nobody_without_a_certificate(self, consortium: Consortium) -> None:
        trusted = consortium.authority.certificate_pem

        async def scenario() -> ConsiliumError:
            async with consortium.serving(Heart().register) as address:
                async with enrolment_channel(address, trusted) as channel:
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await beat(channel)
                return await translated(
                    caught.value, address, None, now=consortium.now, authorities_pem=trusted
                )

        error, handshakes = noticed(scenario)
        assert_is(error, TLS_REFUSED, "none was presented")
        assert "agent join" in error.hint
        assert handshakes == {HandshakeRefusal.NO_CERTIFICATE}
        assert not consortium.admitted

    def test_nobody_with_another_authoritys_certificate(
        self,
        consortium: Consortium,
        stranger: Consortium,
    ) -> None:
        forged = consortium.files(stranger.issue(Role.SILO, "hospital-a"), "hospital-a")

        async def scenario() -> ConsiliumError:
            async with consortium.serving(Heart().register) as address:
                return await failure(address, forged, consortium.now)

        error, handshakes = noticed(scenario)
        assert_is(error, TLS_REFUSED, "issued by CN=Consilium authority")
        assert handshakes == {HandshakeRefusal.UNTRUSTED_CERTIFICATE}
        assert not consortium.admitted

    @pytest.mark.parametrize(
        ("shift", "fault", "reason"),
        [
            (-2 * DAY, CERTIFICATE_EXPIRED, HandshakeRefusal.EXPIRED_CERTIFICATE),
            (+2 * DAY, CERTIFICATE_NOT_YET_VALID, HandshakeRefusal.NOT_YET_VALID_CERTIFICATE),
        ],
        ids=["expired", "not yet valid"],
    )
    def test_nobody_outside_a_certificates_time(
        self,
        consortium: Consortium,
        shift: timedelta,
        fault: Fault,
        reason: HandshakeRefusal,
    ) -> None:
        silo = consortium.member(Role.SILO, "hospital-a", consortium.now + shift)

        async def scenario() -> ConsiliumError:
            async with consortium.serving(Heart().register) as address:
                return await failure(address, silo, consortium.now)

        error, handshakes = noticed(scenario)
        assert_is(error, fault, "hospital-a")
        assert handshakes == {reason}
        assert not consortium.admitted

    def test_nobody_with_a_servers_certificate(self, consortium: Consortium) -> None:
        server = consortium.authority.issue_server(["localhost"], DAY, consortium.now)
        posing = consortium.files(server, "hospital-a")

        async def scenario() -> ConsiliumError:
            async with consortium.serving(Heart().register) as address:
                return await failure(address, posing, consortium.now)

        error, handshakes = noticed(scenario)
        assert_is(error, TLS_REFUSED, "without a reason")
        assert handshakes == {HandshakeRefusal.UNTRUSTED_CERTIFICATE}

    @pytest.mark.parametrize(
        "greeting", [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 64], ids=["http", "zeros"]
    )
    def test_what_is_not_tls_is_counted_as_such(
        self,
        consortium: Consortium,
        greeting: bytes,
    ) -> None:
        async def scenario() -> None:
            async with consortium.serving(Heart().register) as address:
                reader, writer = await asyncio.open_connection(*split_address(address))
                writer.write(greeting)
                assert await reader.read() == b""
                writer.close()

        _, handshakes = noticed(scenario)
        assert handshakes == {HandshakeRefusal.NOT_TLS}


class TestWhatIsWrongThere:
    def test_a_server_of_another_authority_is_named(
        self, consortium: Consortium, stranger: Consortium
    ) -> None:
        silo = consortium.member(Role.SILO, "hospital-a")

        async def scenario() -> ConsiliumError:
            async with stranger.serving(Heart().register) as address:
                return await failure(address, silo, consortium.now)

        assert_is(
            asyncio.run(scenario()), SERVER_UNTRUSTED, "issued by CN=Consilium authority", "not by"
        )

    def test_a_silo_cannot_pose_as_the_coordinator(self, consortium: Consortium) -> None:
        silo = consortium.member(Role.SILO, "hospital-a")
        posing = consortium.issue(Role.SILO, "hospital-b")
        heart = Heart()

        async def scenario() -> ConsiliumError:
            async with consortium.serving(heart.register, server=posing) as address:
                return await failure(address, silo, consortium.now)

        assert_is(asyncio.run(scenario()), SERVER_UNTRUSTED)
        assert heart.calls == 0

    @pytest.mark.parametrize(
        ("hosts", "shift", "fault", "word"),
        [
            (["elsewhere.org"], timedelta(0), SERVER_UNTRUSTED, "not for the name localhost"),
            (["localhost"], -2 * DAY, CLOCK_SKEW, "has expired since"),
            (["localhost"], +2 * DAY, CLOCK_SKEW, "is not valid before"),
        ],
    )
    def test_a_server_with_the_wrong_name_or_time_is_told_apart(
        self, consortium: Consortium, hosts: list[str], shift: timedelta, fault: Fault, word: str
    ) -> None:
        silo = consortium.member(Role.SILO, "hospital-a")
        server = consortium.authority.issue_server(hosts, DAY, consortium.now + shift)

        async def scenario() -> ConsiliumError:
            async with consortium.serving(Heart().register, server=server) as address:
                return await failure(address, silo, consortium.now)

        assert_is(asyncio.run(scenario()), fault, word)

    def test_a_certificate_that_is_untimely_here_only_tells_of_a_wrong_clock(
        self, consortium: Consortium
    ) -> None:
        silo = consortium.member(Role.SILO, "hospital-a")

        async def scenario(now: datetime) -> Refusal | None:
            async with consortium.serving(Heart().register) as address:
                return await asyncio.to_thread(diagnose, address, silo, now=now)

        for shift in (-DAY, +2 * DAY):
            error = asyncio.run(scenario(consortium.now + shift))
            assert_is(error, CLOCK_SKEW, "accepts a certificate that is not valid here")

    def test_a_coordinator_that_no_longer_trusts_our_authority(
        self, consortium: Consortium, stranger: Consortium
    ) -> None:
        silo = consortium.member(Role.SILO, "hospital-a")
        others = stranger.authority.certificate_pem

        async def scenario() -> ConsiliumError:
            async with consortium.serving(Heart().register, clients=others) as address:
                return await failure(address, silo, consortium.now)

        error = asyncio.run(scenario())
        assert_is(error, TLS_REFUSED, "without a reason")
        assert "join with a new token" in error.hint

    def test_a_coordinator_of_another_consortium_is_named(self, consortium: Consortium) -> None:
        silo = consortium.member(Role.SILO, "hospital-a")
        # The same authority's key, another trust domain.
        other = replace(consortium.authority, consortium="elbe-clinics")
        server = other.issue_server(["localhost"], DAY, consortium.now)

        async def scenario() -> ConsiliumError | None:
            async with consortium.serving(server=server) as address:
                return await asyncio.to_thread(diagnose, address, silo, now=consortium.now)

        assert_is(
            asyncio.run(scenario()),
            SERVER_UNTRUSTED,
            "not that of the coordinator of rhine-clinics",
        )

    def test_a_port_where_nothing_listens(self, consortium: Consortium) -> None:
        silo = consortium.member(Role.SILO, "hospital-a")
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{unused.getsockname()[1]}"
            error = asyncio.run(failure(address, silo, consortium.now))
        assert_is(error, UNREACHABLE, address, "nothing listens")

    def test_a_name_that_does_not_exist(self, consortium: Consortium) -> None:
        silo = consortium.member(Role.SILO, "hospital-a")
        found = diagnose("nowhere.invalid:7443", silo, now=consortium.now)
        assert_is(found, UNREACHABLE, "nowhere.invalid:7443 cannot be resolved")

    def test_a_port_that_speaks_plainly(self, consortium: Consortium) -> None:
        with speaking(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
            silo = consortium.member(Role.SILO, "hospital-a")
            found = diagnose(address, silo, now=consortium.now)
        assert_is(found, UNREACHABLE, "does not speak TLS")

    def test_a_port_that_says_nothing(self, consortium: Consortium) -> None:
        with speaking(None) as address:
            silo = consortium.member(Role.SILO, "hospital-a")
            found = diagnose(address, silo, now=consortium.now, timeout=0.2)
        assert_is(found, UNREACHABLE, "did not answer TLS")

    def test_a_port_that_hangs_up(self, consortium: Consortium) -> None:
        with speaking(b"") as address:
            silo = consortium.member(Role.SILO, "hospital-a")
            found = diagnose(address, silo, now=consortium.now)
        assert_is(found, UNREACHABLE, "cut during the TLS handshake")

    def test_a_call_the_coordinator_does_not_know(self, consortium: Consortium) -> None:
        silo = consortium.member(Role.SILO, "hospital-a")

        async def scenario() -> ConsiliumError:
            async with consortium.serving() as address:
                return await failure(address, silo, consortium.now)

        assert_is(asyncio.run(scenario()), UNREACHABLE, "another version")

    @pytest.mark.parametrize("address", ["host", "host:", ":1", "host:x", "a@b:1", "h:1/x", ""])
    def test_what_is_no_address_is_said_to_be_none(self, address: str) -> None:
        with pytest.raises(ConfigurationError, match="not an address"):
            split_address(address)

    def test_addresses_come_apart(self) -> None:
        assert split_address("c.example.org:7443") == ("c.example.org", 7443)
        assert split_address("[::1]:7443") == ("::1", 7443)

    @pytest.mark.parametrize("host", ["c.example.org", "192.0.2.7", "2001:db8::10"])
    def test_what_coordinator_yaml_makes_of_a_host_is_an_address(self, host: str) -> None:
        settings = CoordinatorSettings(consortium="rhine", hosts=(host,))
        assert split_address(settings.address) == (host, 7443)
        assert split_address(settings.enrolment_address) == (host, 7444)


class TestRetries:
    def call(self, consortium: Consortium, heart: Heart, method: str) -> None:
        silo = consortium.member(Role.SILO, "hospital-a")
        retries = RetryPolicy(attempts=3, first_pause_seconds=0.01, longest_pause_seconds=0.01)

        async def scenario() -> None:
            async with (
                consortium.serving(heart.register) as address,
                secure_channel(address, silo, retries=retries) as channel,
            ):
                if method == "Heartbeat":
                    await beat(channel)
                    return
                stub = rounds_pb2_grpc.RoundsServiceStub(channel)
                async for _ in stub.Watch(rounds_pb2.WatchRequest(), timeout=PATIENCE):
                    pass

        asyncio.run(scenario())

    def test_an_idempotent_call_outlives_a_short_outage(self, consortium: Consortium) -> None:
        heart = Heart(outages=2)
        self.call(consortium, heart, "Heartbeat")
        assert heart.calls == 3

    def test_a_long_outage_is_reported(self, consortium: Consortium) -> None:
        heart = Heart(outages=3)
        with pytest.raises(grpc.aio.AioRpcError, match="restarting"):
            self.call(consortium, heart, "Heartbeat")
        assert heart.calls == 3

    def test_a_call_that_has_no_idempotency_level_is_made_once(
        self, consortium: Consortium
    ) -> None:
        heart = Heart(outages=1)
        with pytest.raises(grpc.aio.AioRpcError, match="restarting"):
            self.call(consortium, heart, "Watch")
        assert heart.calls == 1


class TestProxies:
    def test_calls_and_diagnosis_go_through_the_proxy_that_was_set(
        self, consortium: Consortium
    ) -> None:
        silo = consortium.member(Role.SILO, "hospital-a")

        async def scenario() -> list[str]:
            tunnels: list[str] = []
            async with consortium.serving(Heart().register) as address:
                async with connect_proxy(tunnels) as proxy:
                    via = Proxy.parse(f"http://ada:pass%40word@{proxy}")
                    async with secure_channel(address, silo, proxy=via) as channel:
                        await beat(channel)
                    found = await asyncio.to_thread(
                        diagnose, address, silo, now=consortium.now, proxy=via
                    )
                    assert found is None
                assert [line.split()[1] for line in tunnels] == [address, address]
            return tunnels

        assert len(asyncio.run(scenario())) == 2

    def test_a_proxy_that_wants_a_password_is_named(self, consortium: Consortium) -> None:
        silo = consortium.member(Role.SILO, "hospital-a")

        async def scenario() -> Refusal | None:
            async with (
                consortium.serving(Heart().register) as address,
                connect_proxy([]) as proxy,
            ):
                return await asyncio.to_thread(
                    diagnose,
                    address,
                    silo,
                    now=consortium.now,
                    proxy=Proxy.parse(f"http://{proxy}"),
                )

        refusal = asyncio.run(scenario())
        assert_is(refusal, PROXY_REFUSED, "The proxy 127.0.0.1:", "407")
        assert refusal is not None
        assert "a user and a password" in refusal.hint

    def test_no_proxy_in_the_environment_does_not_go_round_it(
        self, consortium: Consortium, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        silo = consortium.member(Role.SILO, "hospital-a")
        for name in ("no_proxy", "no_grpc_proxy"):
            monkeypatch.setenv(name, "localhost")

        async def scenario() -> list[str]:
            tunnels: list[str] = []
            async with (
                consortium.serving(Heart().register) as address,
                connect_proxy(tunnels) as proxy,
            ):
                via = Proxy.parse(f"http://ada:pass%40word@{proxy}")
                async with secure_channel(address, silo, proxy=via) as channel:
                    await beat(channel)
            return tunnels

        assert len(asyncio.run(scenario())) == 1

    def test_a_proxy_left_in_the_environment_is_ignored(
        self, consortium: Consortium, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        silo = consortium.member(Role.SILO, "hospital-a")
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")

        async def scenario() -> None:
            async with (
                consortium.serving(Heart().register) as address,
                secure_channel(address, silo, retries=ONCE) as channel,
            ):
                await beat(channel)

        asyncio.run(scenario())


class TestHandshakeLog:
    def run(self, body: str) -> subprocess.CompletedProcess[bytes]:
        script = f"import os, sys\nfrom coordinator.api.handshake_log import HandshakeLog\n{body}"
        return subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=PATIENCE)

    def test_everything_else_passes_unchanged_and_in_order(self) -> None:
        done = self.run(
            "log = HandshakeLog(print); log.open()\n"
            "for n in range(3000): os.write(2, b'line %d \\xff\\n' % n)\n"
            "os.write(2, b'no end')\n"
            "log.close(); os.write(2, b' of line')\n"
        )
        expected = b"".join(b"line %d \xff\n" % number for number in range(3000))
        assert done.stderr == expected + b"no end of line"
        assert done.stdout == b""

    def test_a_traceback_at_exit_is_not_lost(self) -> None:
        done = self.run("HandshakeLog(print).open()\nraise SystemError('the last words')")
        assert done.returncode == 1
        assert done.stderr.endswith(b"SystemError: the last words\n")

    def test_a_refused_handshake_is_taken_out_even_if_it_comes_in_pieces(self) -> None:
        done = self.run(
            "line = (b'I1116 06:38:15.3 5154 ssl_transport_security.cc:2563] Handshake failed with '\n"
            "        b'error SSL_ERROR_SSL: error:100000c0:SSL routines:OPENSSL_internal:'\n"
            "        b'PEER_DID_NOT_RETURN_A_CERTIFICATE: Invalid context\\n')\n"
            "with HandshakeLog(print):\n"
            "    os.write(2, b'before\\n' + line[:40]); os.write(2, line[40:] + b'after\\n')\n"
        )
        assert done.stderr == b"before\nafter\n"
        assert done.stdout == b"no_certificate\n"

    def test_a_failing_callback_is_reported_and_stops_nothing(self) -> None:
        done = self.run(
            "line = (b'ssl_transport_security.cc:1] Handshake failed with error SSL_ERROR_SSL: '\n"
            "        b'error:1:SSL routines:OPENSSL_internal:BAD_PACKET_LENGTH: x\\n')\n"
            "def fail(reason): print(reason); raise ValueError('counted wrongly')\n"
            "with HandshakeLog(fail): os.write(2, line * 2)\n"
        )
        assert done.stdout == b"other\nother\n"
        assert done.stderr.count(b"ValueError: counted wrongly") == 2

    def test_a_child_that_keeps_standard_error_does_not_hold_up_the_end(self) -> None:
        done = self.run(
            "import subprocess\n"
            "log = HandshakeLog(print); log.open()\n"
            "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
            "log.close(); os.write(2, b'closed\\n'); child.communicate(b'\\n')\n"
        )
        assert done.stderr == b"closed\n"

    def test_the_setting_that_blinds_it_is_known(self) -> None:
        assert handshakes_are_logged({})
        assert handshakes_are_logged({"GRPC_VERBOSITY": "debug"})
        assert not handshakes_are_logged({"GRPC_VERBOSITY": "error"})


@contextlib.contextmanager
def speaking(words: bytes | None) -> Iterator[str]:
    """A port that hears a caller out, says `words` and hangs up; with None it says nothing and waits."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        over = threading.Event()

        def serve() -> None:
            caller, _ = listener.accept()
            with caller:
                caller.recv(1 << 16)
                if words is None:
                    over.wait(PATIENCE)
                else:
                    caller.sendall(words)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            over.set()
            thread.join()


@contextlib.asynccontextmanager
async def connect_proxy(tunnels: list[str]) -> AsyncIterator[str]:
    """An HTTP CONNECT proxy for ada (pass@word); yields host:port and notes whom it connected to."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if "Basic YWRhOnBhc3NAd29yZA==" not in head:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            writer.close()
            return
        tunnels.append(head.splitlines()[0])
        there = await asyncio.open_connection(*split_address(head.split()[1]))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
