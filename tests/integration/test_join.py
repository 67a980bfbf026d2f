"""Joining over real TLS: a token becomes an identity, once, from the right authority only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography import x509
from loopback import DAY, Consortium, Heart, beat

from coordinator.api.interceptor import ENROLMENT_TABLE
from wire.consilium.v1 import enrolment_pb2, enrolment_pb2_grpc, identity_pb2
from wire.errors import (
    AUTHORITY_MISMATCH,
    MESSAGE_MALFORMED,
    SERVER_UNTRUSTED,
    TOKEN_EXPIRED,
    TOKEN_USED,
    UNREACHABLE,
    ConfigurationError,
    Fault,
    Refusal,
)
from wire.identity.files import IdentityFiles
from wire.identity.identity import Identity, Role
from wire.identity.join_token import JoinToken, secret_digest, secret_matches
from wire.net.channels import secure_channel
from wire.net.enrolment import EnrolledIdentity, join

Answer = enrolment_pb2.EnrolResponse


@dataclass
class Enrolment(enrolment_pb2_grpc.EnrolmentServiceServicer):
    """Signs every request for `name`; `alter` may spoil the answer."""

    consortium: Consortium
    name: str = "hospital-a"
    alter: Callable[[Answer], None] = lambda answer: None
    requests: list[enrolment_pb2.EnrolRequest] = field(default_factory=list)

    async def Enrol(
        self, request: enrolment_pb2.EnrolRequest, context: grpc.aio.ServicerContext
    ) -> Answer:
        self.requests.append(request)
        request_pem = request.certificate_request_pem.encode()
        authority, now = self.consortium.authority, self.consortium.now
        answer = Answer(
            name=self.name,
            role=identity_pb2.MEMBER_ROLE_SILO,
            consortium=authority.consortium,
            certificate_pem=authority.issue(request_pem, Role.SILO, self.name, DAY, now).decode(),
            authorities_pem=authority.certificate_pem.decode(),
            coordinator_address="localhost:7443",
        )
        self.alter(answer)
        return answer

    def register(self, server: grpc.aio.Server) -> None:
        enrolment_pb2_grpc.add_EnrolmentServiceServicer_to_server(self, server)


def token_for(consortium: Consortium, address: str) -> JoinToken:
    return JoinToken.issue(
        address,
        "rhine-clinics",
        Role.SILO,
        "hospital-a",
        consortium.now + DAY,
        consortium.authority.certificate,
    )


def joining(
    there: Consortium,
    service: Enrolment,
    folder: Path,
    trusted: Consortium | None = None,
    later: timedelta = timedelta(0),
) -> EnrolledIdentity:
    """Joins at a server of `there` with a token of `trusted`."""

    async def scenario() -> EnrolledIdentity:
        async with there.serving(
            service.register, table=dict(ENROLMENT_TABLE), clients=None
        ) as address:
            token = token_for(trusted or there, address)
            return await join(token.line, folder, lambda: there.now + later)

    return asyncio.run(scenario())


def assert_refused(fault: Fault, act: Callable[[], object]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        act()
    assert caught.value.code == fault.code, caught.value.sentence
    return caught.value


def test_a_token_becomes_an_identity_that_the_coordinator_accepts(
    consortium: Consortium, tmp_path: Path
) -> None:
    service = Enrolment(consortium)
    folder = tmp_path / "silo"
    joined = joining(consortium, service, folder)
    files = IdentityFiles.load(folder)
    assert files == joined.files
    assert joined.certificate.identity == Identity("rhine-clinics", Role.SILO, "hospital-a")
    assert (files.coordinator_address, files.name) == ("localhost:7443", "hospital-a")

    async def scenario() -> None:
        async with (
            consortium.serving(Heart().register) as address,
            secure_channel(address, files) as channel,
        ):
            await beat(channel)

    asyncio.run(scenario())
    assert consortium.admitted[0][1] == joined.certificate.fingerprint


def test_the_key_stays_at_home_and_the_secret_is_what_the_store_knows(
    consortium: Consortium, tmp_path: Path
) -> None:
    service = Enrolment(consortium)
    joined = joining(consortium, service, tmp_path / "silo")
    (request,) = service.requests
    assert "PRIVATE" not in str(request)
    assert joined.files.key_path.stat().st_mode & 0o777 == 0o600
    assert secret_matches(request.token_secret, secret_digest(request.token_secret))
    assert len(bytes.fromhex(request.token_secret)) == 32


def test_a_server_of_another_authority_never_sees_the_secret(
    consortium: Consortium, stranger: Consortium, tmp_path: Path
) -> None:
    service = Enrolment(stranger)
    refusal = assert_refused(
        AUTHORITY_MISMATCH,
        lambda: joining(stranger, service, tmp_path / "silo", trusted=consortium),
    )
    assert "localhost:" in refusal.sentence
    assert not service.requests
    with pytest.raises(ConfigurationError, match="has not joined"):
        IdentityFiles.load(tmp_path / "silo")


def test_a_server_of_the_authority_under_another_name_is_told_apart(
    consortium: Consortium, tmp_path: Path
) -> None:
    server = consortium.authority.issue_server(["elsewhere.example.org"], DAY, consortium.now)

    async def scenario() -> None:
        async with consortium.serving(
            Enrolment(consortium).register, table=dict(ENROLMENT_TABLE), clients=None, server=server
        ) as address:
            await join(
                token_for(consortium, address).line, tmp_path / "silo", lambda: consortium.now
            )

    assert_refused(SERVER_UNTRUSTED, lambda: asyncio.run(scenario()))


def test_an_expired_token_is_refused_without_asking(consortium: Consortium, tmp_path: Path) -> None:
    service = Enrolment(consortium)
    refusal = assert_refused(
        TOKEN_EXPIRED, lambda: joining(consortium, service, tmp_path / "silo", later=DAY)
    )
    assert "hospital-a" in refusal.sentence
    assert not service.requests


def test_the_coordinators_own_refusal_is_passed_on(consortium: Consortium, tmp_path: Path) -> None:
    def used(answer: Answer) -> None:
        raise Refusal(TOKEN_USED, name="hospital-a")

    service = Enrolment(consortium, alter=used)
    refusal = assert_refused(TOKEN_USED, lambda: joining(consortium, service, tmp_path / "silo"))
    assert "tell the admin at once" in refusal.hint
    assert consortium.refused == [("TOKEN_USED", "/consilium.v1.EnrolmentService/Enrol")]


def test_joining_again_after_a_lost_answer_asks_for_the_same_key(
    consortium: Consortium, tmp_path: Path
) -> None:
    def lost(answer: Answer) -> None:
        if len(service.requests) == 1:
            raise ConnectionError

    service = Enrolment(consortium, alter=lost)
    with pytest.raises(Refusal):
        joining(consortium, service, tmp_path / "silo")
    joining(consortium, service, tmp_path / "silo")
    keys = [
        x509.load_pem_x509_csr(request.certificate_request_pem.encode()).public_key()
        for request in service.requests
    ]
    assert keys[0] == keys[1]


def test_rejoining_makes_a_new_key_and_keeps_the_name(
    consortium: Consortium, tmp_path: Path
) -> None:
    service = Enrolment(consortium)
    first = joining(consortium, service, tmp_path / "silo")
    second = joining(consortium, service, tmp_path / "silo")
    assert second.files.key_pem != first.files.key_pem
    assert IdentityFiles.load(tmp_path / "silo") == second.files


def test_a_folder_belongs_to_one_silo(consortium: Consortium, tmp_path: Path) -> None:
    other = consortium.member(Role.SILO, "hospital-b")
    service = Enrolment(consortium)
    with pytest.raises(ConfigurationError, match="hospital-b"):
        joining(consortium, service, other.folder)
    assert not service.requests


@pytest.mark.parametrize("spoilt", ["name", "key", "authority", "bundle", "garbage"])
def test_an_answer_that_is_not_ours_is_not_stored(
    consortium: Consortium, stranger: Consortium, tmp_path: Path, spoilt: str
) -> None:
    def alter(answer: Answer) -> None:
        if spoilt == "key":
            answer.certificate_pem = consortium.issue(
                Role.SILO, "hospital-a"
            ).certificate_pem.decode()
        elif spoilt == "authority":
            answer.certificate_pem = stranger.issue(
                Role.SILO, "hospital-a"
            ).certificate_pem.decode()
        elif spoilt == "bundle":
            answer.authorities_pem = stranger.authority.certificate_pem.decode()
        elif spoilt == "garbage":
            answer.certificate_pem = "nonsense"

    name = "hospital-z" if spoilt == "name" else "hospital-a"
    fault = AUTHORITY_MISMATCH if spoilt in ("authority", "bundle") else MESSAGE_MALFORMED
    service = Enrolment(consortium, name=name, alter=alter)
    assert_refused(fault, lambda: joining(consortium, service, tmp_path / "silo"))
    with pytest.raises(ConfigurationError):
        IdentityFiles.load(tmp_path / "silo")


def test_an_enrolment_port_that_is_down_is_named(consortium: Consortium, tmp_path: Path) -> None:
    token = token_for(consortium, "localhost:1")
    refusal = assert_refused(
        UNREACHABLE, lambda: asyncio.run(join(token.line, tmp_path, lambda: consortium.now))
    )
    assert "nothing listens at localhost:1" in refusal.sentence
