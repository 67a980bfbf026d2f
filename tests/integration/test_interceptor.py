"""The admission interceptor: roles, the store's answer, and what a caller is told, for all four kinds of method."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import timedelta

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health
from loopback import DAY, Consortium
from patience import PATIENCE
from structlog.testing import capture_logs

from coordinator.api.interceptor import SERVICE_TABLE, AdmissionInterceptor, Admit, caller
from coordinator.api.rate_limit import CallLimiter
from coordinator.pki.authority import IssuedKey
from coordinator.settings import Rate
from coordinator.store.actors import Caller
from wire.consilium.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
    rounds_pb2,
    rounds_pb2_grpc,
)
from wire.errors import (
    CERTIFICATE_SUPERSEDED,
    INTERNAL,
    NO_IDENTITY,
    ROUND_CLOSED,
    SILO_REVOKED,
    WRONG_ROLE,
    ConsiliumError,
    Fault,
    Refusal,
)
from wire.identity.files import IdentityFiles, key_pem, new_key
from wire.identity.identity import Role
from wire.net.channels import secure_channel, translated
from wire.remote_text import quoted

ECHO = "consilium.test.Echo"
ECHO_TABLE = {f"/{ECHO}/": frozenset({Role.SILO})}
KINDS = ["unary_unary", "unary_stream", "stream_unary", "stream_stream", "written_stream"]
SECRET = "label 7 of patient 12"

Act = Callable[[grpc.aio.ServicerContext], object]


class Echo:
    """One method of each kind: answers with the caller's name, after doing `act`."""

    def __init__(self, act: Act = lambda context: None) -> None:
        self.act = act
        self.cut = asyncio.Event()

    async def _name(self, context: grpc.aio.ServicerContext) -> bytes:
        outcome = self.act(context)
        if asyncio.iscoroutine(outcome):
            await outcome
        return caller().name.encode()

    async def unary_unary(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return await self._name(context)

    async def stream_unary(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> bytes:
        count = len([request async for request in requests])
        return await self._name(context) + b"x" * count

    async def first_chunk(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> bytes:
        async for _ in requests:
            break
        return await self._name(context)

    async def unary_stream(
        self, request: bytes, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        yield b"first"
        try:
            yield await self._name(context)
        except asyncio.CancelledError:
            self.cut.set()
            raise

    async def stream_stream(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request
        yield await self._name(context)

    async def written_stream(self, request: bytes, context: grpc.aio.ServicerContext) -> None:
        await context.write(b"first")
        await context.write(await self._name(context))

    def register(self, server: grpc.aio.Server) -> None:
        handlers = {
            "unary_unary": grpc.unary_unary_rpc_method_handler(self.unary_unary),
            "unary_stream": grpc.unary_stream_rpc_method_handler(self.unary_stream),
            "stream_unary": grpc.stream_unary_rpc_method_handler(self.stream_unary),
            "first_chunk": grpc.stream_unary_rpc_method_handler(self.first_chunk),
            "stream_stream": grpc.stream_stream_rpc_method_handler(self.stream_stream),
            "written_stream": grpc.unary_stream_rpc_method_handler(self.written_stream),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(ECHO, handlers),))


async def echo(channel: grpc.aio.Channel, kind: str) -> list[bytes]:
    """Calls one method and returns everything it answered."""
    path = f"/{ECHO}/{kind}"
    if kind == "unary_unary":
        return [await channel.unary_unary(path)(b"", timeout=PATIENCE)]
    if kind == "stream_unary":
        return [await channel.stream_unary(path)(iter([b"1", b"2"]), timeout=PATIENCE)]
    if kind == "stream_stream":
        call = channel.stream_stream(path)(iter([b"1", b"2"]), timeout=PATIENCE)
        return [answer async for answer in call]
    return [answer async for answer in channel.unary_stream(path)(b"", timeout=PATIENCE)]


async def refusal_of(address: str, files: IdentityFiles, kind: str) -> ConsiliumError:
    async with secure_channel(address, files) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await echo(channel, kind)
    return await translated(caught.value, address, files)


def refused(consortium: Consortium, act: Act, kind: str) -> ConsiliumError:
    """What a silo is told when a servicer does `act`."""
    silo = consortium.member(Role.SILO, "hospital-a")

    async def scenario() -> ConsiliumError:
        async with consortium.serving(Echo(act).register, table=ECHO_TABLE) as address:
            return await refusal_of(address, silo, kind)

    return asyncio.run(scenario())


@pytest.mark.parametrize("kind", KINDS)
class TestEveryKindOfMethod:
    def test_a_servicer_knows_its_caller(self, consortium: Consortium, kind: str) -> None:
        silos = [consortium.member(Role.SILO, name) for name in ("hospital-a", "hospital-b")]

        async def scenario() -> list[list[bytes]]:
            async with consortium.serving(Echo().register, table=ECHO_TABLE) as address:
                channels = [secure_channel(address, silo) for silo in silos]
                answers = await asyncio.gather(
                    *(echo(channel, kind) for channel in channels for _ in range(5))
                )
                for channel in channels:
                    await channel.close()
                return answers

        answers = asyncio.run(scenario())
        names = [answer[-1].removesuffix(b"xx") for answer in answers]
        assert names == [b"hospital-a"] * 5 + [b"hospital-b"] * 5
        expected = {"unary_unary": 1, "stream_unary": 1, "stream_stream": 3}
        assert {len(answer) for answer in answers} == {expected.get(kind, 2)}
        assert not consortium.refused

    def test_a_refusal_arrives_as_the_same_refusal(self, consortium: Consortium, kind: str) -> None:
        def act(context: object) -> None:
            raise Refusal(ROUND_CLOSED, task="stroke", round=3)

        expected = Refusal(ROUND_CLOSED, task="stroke", round=3)
        error = refused(consortium, act, kind)
        assert isinstance(error, Refusal)
        assert (error.code, error.sentence, error.hint, error.status) == (
            expected.code,
            expected.sentence,
            expected.hint,
            expected.status,
        )
        assert consortium.refused == [("ROUND_CLOSED", f"/{ECHO}/{kind}")]

    def test_a_sentence_that_quotes_too_much_is_cut_off(
        self, consortium: Consortium, kind: str
    ) -> None:
        def act(context: object) -> None:
            raise Refusal(ROUND_CLOSED, task="é" * 10**6, round=3)

        with capture_logs() as lines:
            error = refused(consortium, act, kind)
        assert error.code == ROUND_CLOSED.code
        (logged,) = (str(line["sentence"]) for line in lines)
        assert len(logged) == 1000
        assert logged.endswith("é…")
        assert error.sentence == quoted("The coordinator", logged)

    def test_an_unexpected_error_becomes_an_incident_without_its_content(
        self, consortium: Consortium, kind: str
    ) -> None:
        def act(context: object) -> None:
            raise ValueError(SECRET)

        with capture_logs() as lines:
            error = refused(consortium, act, kind)
        assert error.code == INTERNAL.code
        (line,) = lines
        assert line["incident"] in error.sentence
        assert line["kind"] == "ValueError"
        assert line["method"] == f"/{ECHO}/{kind}"
        assert any(place.startswith("test_interceptor.py:") for place in line["where"])
        assert SECRET not in str(lines) + error.sentence
        assert consortium.refused == [("INTERNAL", f"/{ECHO}/{kind}")]

    def test_a_servicers_own_abort_is_left_alone(self, consortium: Consortium, kind: str) -> None:
        async def act(context: grpc.aio.ServicerContext) -> None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not today")

        silo = consortium.member(Role.SILO, "hospital-a")

        async def scenario() -> grpc.aio.AioRpcError:
            async with (
                consortium.serving(Echo(act).register, table=ECHO_TABLE) as address,
                secure_channel(address, silo) as channel,
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await echo(channel, kind)
                return caught.value

        with capture_logs() as lines:
            error = asyncio.run(scenario())
        assert (error.code(), error.details()) == (grpc.StatusCode.UNIMPLEMENTED, "not today")
        assert not consortium.refused
        assert not lines

    def test_a_revoked_silo_is_refused_before_the_servicer_runs(
        self, consortium: Consortium, kind: str
    ) -> None:
        async def revoked(caller: Caller) -> None:
            raise Refusal(SILO_REVOKED, name=caller.name)

        served: list[object] = []
        gate = AdmissionInterceptor(
            ECHO_TABLE, revoked, lambda *refusal: consortium.refused.append(refusal)
        )
        silo = consortium.member(Role.SILO, "hospital-a")

        async def scenario() -> ConsiliumError:
            async with consortium.serving(Echo(served.append).register, gate=gate) as address:
                return await refusal_of(address, silo, kind)

        error = asyncio.run(scenario())
        assert (error.code, error.sentence) == (
            SILO_REVOKED.code,
            "Silo hospital-a has been revoked.",
        )
        assert consortium.refused == [("SILO_REVOKED", f"/{ECHO}/{kind}")]
        assert not served


class TestTrustDomain:
    """One authority may sign for two consortia; each coordinator serves its own."""

    def test_an_identity_of_another_consortium_is_nobody_here(self, consortium: Consortium) -> None:
        gate = AdmissionInterceptor(
            ECHO_TABLE, consortium.admit, lambda *_: None, consortium="elbe-clinics"
        )
        silo = consortium.member(Role.SILO, "hospital-a")

        async def scenario() -> ConsiliumError:
            async with consortium.serving(Echo().register, gate=gate) as address:
                return await refusal_of(address, silo, "unary_unary")

        told = asyncio.run(scenario())
        assert (told.code, told.sentence) == (
            "OTHER_CONSORTIUM",
            "The certificate is of the consortium rhine-clinics, not of elbe-clinics.",
        )
        assert not consortium.admitted


class TestAllowances:
    """What a member may call is counted by its name once it is admitted, and by its certificate before."""

    def called(
        self, consortium: Consortium, callers: list[IdentityFiles], admit: Admit
    ) -> list[str]:
        """How a call of each of these ends, one after the other; three are allowed."""
        rate = Rate(per_second=0.001, burst=3)
        gate = AdmissionInterceptor(
            ECHO_TABLE,
            admit,
            lambda *_: None,
            member_limiter=CallLimiter(time.monotonic, rate, None, {}, 32, 3),
        )

        async def scenario() -> list[str]:
            codes = []
            async with consortium.serving(Echo().register, gate=gate) as address:
                for files in callers:
                    async with secure_channel(address, files) as channel:
                        try:
                            await echo(channel, "unary_unary")
                            codes.append("OK")
                        except grpc.aio.AioRpcError as error:
                            codes.append((await translated(error, address, files)).code)
            return codes

        return asyncio.run(scenario())

    def test_a_new_certificate_brings_no_new_allowance(self, consortium: Consortium) -> None:
        certificates = [consortium.member(Role.SILO, "hospital-a") for _ in range(5)]
        codes = self.called(consortium, certificates, consortium.admit)
        assert codes == ["OK"] * 3 + ["RATE_LIMITED"] * 2

    def test_one_that_was_replaced_uses_up_nothing_of_its_successors(
        self, consortium: Consortium
    ) -> None:
        stolen, good = (consortium.member(Role.SILO, "hospital-a") for _ in range(2))

        async def admit(caller: Caller) -> None:
            if caller.fingerprint == stolen.certificate.fingerprint:
                raise Refusal(CERTIFICATE_SUPERSEDED, name=caller.name)

        codes = self.called(consortium, [stolen] * 10 + [good] * 3, admit)
        assert codes == ["CERTIFICATE_SUPERSEDED"] * 10 + ["OK"] * 3


class TestExpiry:
    """TLS looks at a certificate when a connection begins; it may run out while the connection lasts."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_certificate_that_has_run_out_makes_no_further_call(
        self, consortium: Consortium, kind: str
    ) -> None:
        later = consortium.now + 2 * DAY
        gate = AdmissionInterceptor(
            ECHO_TABLE,
            consortium.admit,
            lambda *refusal: consortium.refused.append(refusal),
            clock=lambda: later,
        )
        silo = consortium.member(Role.SILO, "hospital-a")

        async def scenario() -> ConsiliumError:
            async with consortium.serving(Echo().register, gate=gate) as address:
                return await refusal_of(address, silo, kind)

        assert asyncio.run(scenario()).code == "CERTIFICATE_EXPIRED"
        assert consortium.refused == [("CERTIFICATE_EXPIRED", f"/{ECHO}/{kind}")]
        assert not consortium.admitted

    def test_a_stream_ends_with_its_certificate(self, consortium: Consortium) -> None:
        silo = consortium.member(Role.SILO, "hospital-a")
        nearly = silo.certificate.not_after - timedelta(milliseconds=50)
        gate = AdmissionInterceptor(
            ECHO_TABLE, consortium.admit, lambda *_: None, clock=lambda: nearly
        )

        async def forever(context: object) -> None:
            await asyncio.Event().wait()

        async def scenario() -> ConsiliumError:
            async with consortium.serving(Echo(forever).register, gate=gate) as address:
                return await refusal_of(address, silo, "unary_stream")

        assert asyncio.run(scenario()).code == "CERTIFICATE_EXPIRED"


class TestRefusedUploads:
    """grpc/grpc#36066: a client that still sends when the call ends loses the reason."""

    def upload(
        self, consortium: Consortium, chunks: Iterable[bytes], times: int
    ) -> set[grpc.StatusCode]:
        """The statuses a silo sees when its upload is refused after the first chunk."""
        silo = consortium.member(Role.SILO, "hospital-a")

        def act(context: object) -> None:
            raise Refusal(ROUND_CLOSED, task="stroke", round=3)

        async def scenario() -> set[grpc.StatusCode]:
            codes = set()
            async with consortium.serving(Echo(act).register, table=ECHO_TABLE) as address:
                for _ in range(times):
                    async with secure_channel(address, silo) as channel:
                        with pytest.raises(grpc.aio.AioRpcError) as caught:
                            await channel.stream_unary(f"/{ECHO}/first_chunk")(
                                chunks, timeout=PATIENCE
                            )
                    codes.add(caught.value.code())
            return codes

        return asyncio.run(scenario())

    def test_the_reason_outlives_a_ballot_of_many_chunks(self, consortium: Consortium) -> None:
        # Without hearing the client out about half of these come back as INTERNAL.
        codes = self.upload(consortium, [b"x" * (1 << 20)] * 5, times=20)
        assert codes == {ROUND_CLOSED.status}

    def test_an_upload_without_end_is_cut_off(
        self, consortium: Consortium, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("coordinator.api.upload._DISCARDED_MESSAGES", 5)
        monkeypatch.setattr("coordinator.api.upload._DISCARD_SECONDS", 600)
        codes = self.upload(consortium, itertools.repeat(b"x"), times=1)
        assert codes <= {ROUND_CLOSED.status, grpc.StatusCode.INTERNAL}

    def test_a_client_that_stops_sending_is_not_waited_for_long(
        self, consortium: Consortium, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("coordinator.api.upload._DISCARD_SECONDS", 0.05)
        silo = consortium.member(Role.SILO, "hospital-a")

        def act(context: object) -> None:
            raise Refusal(ROUND_CLOSED, task="stroke", round=3)

        async def scenario() -> ConsiliumError:
            async with (
                consortium.serving(Echo(act).register, table=ECHO_TABLE) as address,
                secure_channel(address, silo) as channel,
            ):
                call = channel.stream_unary(f"/{ECHO}/first_chunk")(timeout=PATIENCE)
                await call.write(b"only this")
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                return await translated(caught.value, address, silo)

        assert asyncio.run(scenario()).code == ROUND_CLOSED.code


def test_a_client_that_leaves_ends_the_stream_and_is_no_error(consortium: Consortium) -> None:
    silo = consortium.member(Role.SILO, "hospital-a")

    async def scenario() -> None:
        service = Echo(lambda context: asyncio.Event().wait())
        async with (
            consortium.serving(service.register, table=ECHO_TABLE) as address,
            secure_channel(address, silo) as channel,
        ):
            call = channel.unary_stream(f"/{ECHO}/unary_stream")(b"")
            assert await call.read() == b"first"
            call.cancel()
            await asyncio.wait_for(service.cut.wait(), PATIENCE)

    with capture_logs() as lines:
        asyncio.run(scenario())
    assert not consortium.refused
    assert not lines


class _Admin(admin_pb2_grpc.AdminServiceServicer):
    async def ListSilos(
        self, request: admin_pb2.ListSilosRequest, context: grpc.aio.ServicerContext
    ) -> admin_pb2.ListSilosResponse:
        return admin_pb2.ListSilosResponse()


class _Rounds(rounds_pb2_grpc.RoundsServiceServicer):
    async def Heartbeat(
        self, request: rounds_pb2.HeartbeatRequest, context: grpc.aio.ServicerContext
    ) -> rounds_pb2.HeartbeatResponse:
        return rounds_pb2.HeartbeatResponse()


class _Registry(registry_pb2_grpc.RegistryServiceServicer):
    async def ListPublicSets(
        self, request: registry_pb2.ListPublicSetsRequest, context: grpc.aio.ServicerContext
    ) -> registry_pb2.ListPublicSetsResponse:
        return registry_pb2.ListPublicSetsResponse()


def register_all(server: grpc.aio.Server) -> None:
    admin_pb2_grpc.add_AdminServiceServicer_to_server(_Admin(), server)
    rounds_pb2_grpc.add_RoundsServiceServicer_to_server(_Rounds(), server)
    registry_pb2_grpc.add_RegistryServiceServicer_to_server(_Registry(), server)
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
    Echo().register(server)


async def call_service(channel: grpc.aio.Channel, service: str) -> object:
    if service == "admin":
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        return await stub.ListSilos(admin_pb2.ListSilosRequest(), timeout=PATIENCE)
    if service == "rounds":
        rounds = rounds_pb2_grpc.RoundsServiceStub(channel)
        return await rounds.Heartbeat(rounds_pb2.HeartbeatRequest(), timeout=PATIENCE)
    if service == "registry":
        registry = registry_pb2_grpc.RegistryServiceStub(channel)
        return await registry.ListPublicSets(registry_pb2.ListPublicSetsRequest(), timeout=PATIENCE)
    if service == "health":
        checks = health_pb2_grpc.HealthStub(channel)
        return await checks.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
    return await echo(channel, "unary_unary")


def outcome(consortium: Consortium, files: IdentityFiles, service: str) -> ConsiliumError | None:
    """None if the call is served, else what the caller is told."""

    async def scenario() -> ConsiliumError | None:
        async with (
            consortium.serving(register_all, table=dict(SERVICE_TABLE)) as address,
            secure_channel(address, files) as channel,
        ):
            try:
                await call_service(channel, service)
            except grpc.aio.AioRpcError as error:
                return await translated(error, address, files)
            return None

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    ("role", "service", "fault", "sentence"),
    [
        (Role.SILO, "admin", WRONG_ROLE, "ada has the role silo; ListSilos needs admin."),
        (Role.SILO, "rounds", None, ""),
        (Role.SILO, "registry", None, ""),
        (Role.SILO, "health", None, ""),
        (
            Role.SILO,
            "unlisted",
            WRONG_ROLE,
            "ada has the role silo; unary_unary needs a role that does not exist.",
        ),
        (Role.ADMIN, "admin", None, ""),
        (Role.ADMIN, "rounds", WRONG_ROLE, "ada has the role admin; Heartbeat needs silo."),
        (Role.ADMIN, "registry", None, ""),
        (
            Role.ADMIN,
            "unlisted",
            WRONG_ROLE,
            "ada has the role admin; unary_unary needs a role that does not exist.",
        ),
    ],
)
def test_roles_open_their_own_services_only(
    consortium: Consortium, role: Role, service: str, fault: Fault | None, sentence: str
) -> None:
    error = outcome(consortium, consortium.member(role, "ada"), service)
    if fault is None:
        assert error is None
        assert not consortium.refused
    else:
        assert error is not None
        assert error.code == fault.code
        assert error.sentence in (sentence, quoted("The coordinator", sentence))
        assert [code for code, _ in consortium.refused] == [fault.code]
        assert not consortium.admitted


@pytest.mark.parametrize("service", ["admin", "rounds", "registry", "unlisted"])
def test_a_certificate_of_the_authority_without_an_identity_opens_nothing(
    consortium: Consortium, service: str
) -> None:
    files = consortium.files(nameless(consortium), "nobody")
    error = outcome(consortium, files, service)
    assert error is not None
    assert error.code == NO_IDENTITY.code
    assert [code for code, _ in consortium.refused] == ["NO_IDENTITY"]


def test_health_asks_nobody_for_an_identity(consortium: Consortium) -> None:
    assert outcome(consortium, consortium.files(nameless(consortium), "probe"), "health") is None


def nameless(consortium: Consortium) -> IssuedKey:
    """A client's certificate, properly signed, that names no member."""
    key = new_key()
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hospital-a")]))
        .issuer_name(consortium.authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(consortium.now - DAY)
        .not_valid_after(consortium.now + DAY)
        .sign(consortium.authority._key, hashes.SHA256())
    )
    return IssuedKey(key_pem(key), certificate.public_bytes(Encoding.PEM))
