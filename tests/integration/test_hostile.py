"""Peers that are not who they say, and ballots that are not theirs: all refused, and the round goes on."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from patience import PATIENCE
from siege import HONEST, LABELS, ROWS, TASK, Siege, ballot, eventually, parts, siege, votes

from coordinator.pki.authority import Authority
from wire.ballot import BallotShape, digest, pack
from wire.ballot import Encoding as BallotEncoding
from wire.consilium.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    ballot_pb2,
    enrolment_pb2,
    enrolment_pb2_grpc,
    rounds_pb2,
    rounds_pb2_grpc,
    task_pb2,
)
from wire.errors import ConsiliumError
from wire.identity.files import IdentityFiles, key_pem, new_key
from wire.identity.identity import Identity, Role, read_certificate
from wire.identity.join_token import JoinToken
from wire.net.channels import enrolment_channel, secure_channel, translated

DAY = timedelta(days=1)
SHAPE = BallotShape(ROWS, len(LABELS), BallotEncoding.INDEX)


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    with siege(tmp_path_factory.mktemp("siege")) as running:
        yield running


@pytest.fixture(scope="module")
def mallory(besieged: Siege) -> IdentityFiles:
    """A member like any other."""
    return besieged.attacker()


@pytest.fixture(scope="module")
def still(besieged: Siege) -> task_pb2.TaskState:
    """A task nobody votes in: its first round stays open, however long a test takes."""
    return besieged.create_task("still", HONEST)


Call = Callable[[grpc.aio.Channel], Awaitable[object]]


def outcome(besieged: Siege, files: IdentityFiles, call: Call) -> ConsiliumError:
    """Why a call failed."""

    async def scenario() -> ConsiliumError:
        async with secure_channel(besieged.address, files) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(channel)
            return await translated(caught.value, besieged.address, files)

    return asyncio.run(scenario())


async def beat(channel: grpc.aio.Channel) -> object:
    stub = rounds_pb2_grpc.RoundsServiceStub(channel)
    return await stub.Heartbeat(rounds_pb2.HeartbeatRequest(instance="x"), timeout=PATIENCE)


def cast(*messages: rounds_pb2.CastBallotRequest) -> Call:
    async def call(channel: grpc.aio.Channel) -> object:
        stub = rounds_pb2_grpc.RoundsServiceStub(channel)
        return await stub.CastBallot(iter(messages), timeout=PATIENCE)

    return call


class TestStrangers:
    """Nobody gets through the handshake without a good certificate of this consortium."""

    def expect_refused(
        self, besieged: Siege, files: IdentityFiles | None, reason: str, name: str
    ) -> None:
        before = besieged.handshakes(reason)
        with besieged.unshaken(name):
            assert not _served(besieged, files)
            eventually("counted", lambda: besieged.handshakes(reason) == before + 1)

    def test_a_member_is_served(self, besieged: Siege, mallory: IdentityFiles) -> None:
        assert _served(besieged, mallory)

    def test_no_certificate(self, besieged: Siege) -> None:
        self.expect_refused(besieged, None, "no_certificate", "no certificate")

    @pytest.mark.parametrize(
        ("days", "reason"),
        [(-30, "expired_certificate"), (30, "not_yet_valid_certificate")],
    )
    def test_a_certificate_of_another_time(
        self, besieged: Siege, tmp_path: Path, days: int, reason: str
    ) -> None:
        at = datetime.now(UTC) + timedelta(days=days)
        key = new_key()
        issued = besieged.authority.issue(_request(key), Role.SILO, "north", DAY, at)
        files = _files(besieged, tmp_path, key_pem(key), issued)
        self.expect_refused(besieged, files, reason, reason.replace("_", " "))

    def test_another_authority_of_the_same_name(self, besieged: Siege, tmp_path: Path) -> None:
        ours = besieged.authority
        theirs = Authority.create(tmp_path / "theirs", ours.consortium, datetime.now(UTC))
        key = new_key()
        # The right name in the SAN, the right subject, the right issuer's name: all but the key.
        issued = theirs.issue(_request(key), Role.SILO, "north", DAY, datetime.now(UTC))
        assert theirs.certificate.subject == ours.certificate.subject
        files = _files(besieged, tmp_path, key_pem(key), issued)
        self.expect_refused(besieged, files, "untrusted_certificate", "another authority")

    def test_a_certificate_signed_by_a_member(
        self, besieged: Siege, mallory: IdentityFiles, tmp_path: Path
    ) -> None:
        key = new_key()
        signer = load_pem_private_key(mallory.key_pem, None)
        member = x509.load_pem_x509_certificate(mallory.certificate_pem)
        uri = Identity("consilium", Role.ADMIN, "admin").uri
        forged = _certificate(key, member.subject, signer, [uri])
        files = _files(besieged, tmp_path, key_pem(key), forged + mallory.certificate_pem)
        self.expect_refused(besieged, files, "untrusted_certificate", "signed by a member")

    def test_the_servers_own_certificate(self, besieged: Siege, tmp_path: Path) -> None:
        server = besieged.home / "server"
        files = _files(
            besieged,
            tmp_path,
            (server / "key.pem").read_bytes(),
            (server / "certificate.pem").read_bytes(),
        )
        self.expect_refused(besieged, files, "untrusted_certificate", "the server's certificate")


class TestNames:
    """A good certificate is worth what the store says of its name, and no more."""

    @pytest.mark.parametrize(
        "uris",
        [
            [],
            ["spiffe://consilium/silo/north", "spiffe://consilium/admin/admin"],
            ["spiffe://consilium/silo/north", "SPIFFE://consilium/silo/north"],
            ["spiffe://consilium/silo/north/"],
            ["spiffe://consilium/silo/%6eorth"],
            ["spiffe://consilium/SILO/north"],
            ["spiffe://consilium/silo/north?x=1"],
            ["spiffe://consilium:443/silo/north"],
            ["spiffe://x@consilium/silo/north"],
            ["spiffe://consilium//silo/north"],
            ["https://consilium/silo/north"],
            ["spiffe://consilium/silo/north\n"],
            ["spiffe://consilium/silo/" + "n" * 5000],
        ],
    )
    def test_a_malformed_or_doubled_name_is_nobody(
        self, besieged: Siege, tmp_path: Path, uris: Sequence[str]
    ) -> None:
        authority = besieged.authority
        key = new_key()
        signer = load_pem_private_key(
            (besieged.home / "authority" / "authority-key.pem").read_bytes(), None
        )
        issued = _certificate(key, authority.certificate.subject, signer, uris)
        files = _files(besieged, tmp_path, key_pem(key), issued + authority.certificate_pem)
        before = besieged.refused("NO_IDENTITY")
        assert outcome(besieged, files, beat).code == "NO_IDENTITY"
        assert besieged.refused("NO_IDENTITY") == before + 1

    @pytest.mark.parametrize(
        ("role", "name", "code"),
        [
            (Role.SILO, "nobody", "SILO_UNKNOWN"),
            (Role.SILO, "north", "CERTIFICATE_SUPERSEDED"),
            (Role.COORDINATOR, "coordinator", "WRONG_ROLE"),
        ],
    )
    def test_a_name_that_the_store_does_not_know_by_this_certificate(
        self, besieged: Siege, tmp_path: Path, role: Role, name: str, code: str
    ) -> None:
        key = new_key()
        signer = load_pem_private_key(
            (besieged.home / "authority" / "authority-key.pem").read_bytes(), None
        )
        authority = besieged.authority
        uri = Identity(authority.consortium, role, name).uri
        issued = _certificate(key, authority.certificate.subject, signer, [uri])
        files = _files(besieged, tmp_path, key_pem(key), issued + authority.certificate_pem)
        with besieged.unshaken(f"{role} {name}, never given out"):
            assert outcome(besieged, files, beat).code == code

    def test_a_request_that_wishes_for_more_gets_the_tokens_name(
        self, besieged: Siege, tmp_path: Path
    ) -> None:
        token = JoinToken.parse(besieged.token("modest"))
        wished = [
            Identity(token.consortium, Role.ADMIN, "admin").uri,
            Identity(token.consortium, Role.SILO, "north").uri,
        ]
        key = new_key()
        request = (
            x509.CertificateSigningRequestBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "admin")]))
            .add_extension(_names(wished), critical=True)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
            .public_bytes(Encoding.PEM)
        )

        async def enrol() -> enrolment_pb2.EnrolResponse:
            async with enrolment_channel(token.enrolment_address, token.authority_pem) as channel:
                return await enrolment_pb2_grpc.EnrolmentServiceStub(channel).Enrol(
                    enrolment_pb2.EnrolRequest(
                        token_id=token.token_id,
                        token_secret=token.secret,
                        certificate_request_pem=request.decode(),
                    ),
                    timeout=PATIENCE,
                )

        answer = asyncio.run(enrol())
        identity = Identity(token.consortium, Role.SILO, "modest")
        assert read_certificate(answer.certificate_pem.encode()).identity == identity
        issued = x509.load_pem_x509_certificate(answer.certificate_pem.encode())
        assert not issued.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        files = _files(besieged, tmp_path, key_pem(key), answer.certificate_pem.encode())
        assert outcome(besieged, files, _list_silos).code == "WRONG_ROLE"

    def test_a_silo_may_not_do_an_admins_work_nor_an_admin_vote(
        self, besieged: Siege, mallory: IdentityFiles
    ) -> None:
        before = besieged.refused("WRONG_ROLE")
        with besieged.unshaken("wrong roles"):
            error = outcome(besieged, mallory, _list_silos)
            assert error.sentence == f"{mallory.name} has the role silo; ListSilos needs admin."
            header, data = ballot(besieged.task().task)
            admin = besieged.admin_files()
            assert outcome(besieged, admin, cast(*parts(header, data))).code == "WRONG_ROLE"
        assert besieged.refused("WRONG_ROLE") == before + 2

    def test_a_revoked_silo_is_out_at_once_and_its_streams_with_it(self, besieged: Siege) -> None:
        files = besieged.attacker()

        async def scenario() -> tuple[ConsiliumError, ConsiliumError]:
            async with secure_channel(besieged.address, files) as channel:
                stub = rounds_pb2_grpc.RoundsServiceStub(channel)
                watch = stub.Watch(rounds_pb2.WatchRequest(instance="m"))
                await watch.initial_metadata()
                request = admin_pb2.RevokeSiloRequest(name=files.name)
                admin = besieged.admin_files()
                async with secure_channel(besieged.address, admin) as by_admin:
                    await admin_pb2_grpc.AdminServiceStub(by_admin).RevokeSilo(
                        request, timeout=PATIENCE
                    )
                ends = []
                for failing in (_drained(watch), beat(channel)):
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await asyncio.wait_for(failing, PATIENCE)
                    ends.append(await translated(caught.value, besieged.address, files))
                return ends[0], ends[1]

        with besieged.unshaken("revoked"):
            stream, call = asyncio.run(scenario())
        assert (stream.code, call.code) == ("SILO_REVOKED", "SILO_REVOKED")


class TestBallots:
    """A ballot counts once, for whoever sent it, in the round it was made for."""

    def test_a_replayed_ballot_counts_for_the_one_who_replays_it(self, besieged: Siege) -> None:
        thief = besieged.attacker()
        victim = besieged.join("victim")
        state = besieged.create_task("replay", (victim.name, thief.name, "north"), rounds=2)
        header, data = ballot(state)

        async def send(files: IdentityFiles) -> ballot_pb2.Receipt:
            async with secure_channel(besieged.address, files) as channel:
                stub = rounds_pb2_grpc.RoundsServiceStub(channel)
                return (await stub.CastBallot(iter(parts(header, data)), timeout=PATIENCE)).receipt

        with besieged.unshaken("a replayed ballot"):
            stolen = asyncio.run(send(thief))
            open_round = besieged.task("replay").task.open_round
            # The victim has not voted: its bytes in another's hands are another's vote.
            assert (stolen.silo, list(open_round.voted)) == (thief.name, [thief.name])
            own = asyncio.run(send(victim))
            assert own.silo == victim.name
            assert not own.already_held
            again = asyncio.run(send(thief))
            assert again.already_held
            assert again.signature == stolen.signature
            voted = list(besieged.task("replay").task.open_round.voted)
            assert sorted(voted) == sorted([victim.name, thief.name])

    def test_a_ballot_of_an_old_round_is_refused(self, besieged: Siege) -> None:
        silo = besieged.join("late")
        state = besieged.create_task("old", (silo.name,), rounds=3, quorum=1)
        header, data = ballot(state)
        asyncio.run(_cast_once(besieged, silo, header, data))
        eventually("round 2", lambda: besieged.task("old").task.open_round.number == 2)
        closed = besieged.task("old").history[0]
        other = pack(np.roll(votes(1), 1), SHAPE)
        changed = _changed(header, other, {"digest": digest(other)})
        assert outcome(besieged, silo, changed).code in {"ROUND_CLOSED", "BALLOT_CONFLICT"}
        code = outcome(besieged, silo, _changed(header, data, {"round": 3})).code
        assert code == "ROUND_NOT_OPEN"
        # The very same once more is the receipt once more, and counts no second time.
        asyncio.run(_cast_once(besieged, silo, header, data))
        assert besieged.task("old").history[0] == closed
        assert not besieged.task("old").task.open_round.voted

    def test_the_second_of_two_different_ballots_is_refused(self, besieged: Siege) -> None:
        silo = besieged.join("twofaced")
        state = besieged.create_task("twice", (silo.name, "north"))
        header, data = ballot(state)
        asyncio.run(_cast_once(besieged, silo, header, data))
        other = pack(np.roll(votes(1), 1), SHAPE)
        changed = _changed(header, other, {"digest": digest(other)})
        assert outcome(besieged, silo, changed).code == "BALLOT_CONFLICT"

    @pytest.mark.parametrize(
        ("change", "data", "code"),
        [
            ({}, None, "NOT_A_PARTICIPANT"),
            ({"task": "no-such-task"}, None, "TASK_UNKNOWN"),
            ({"task": TASK}, None, "TASK_CHANGED"),
            ({"task_digest": "0" * 64}, None, "TASK_CHANGED"),
            ({"round": 0}, None, "NOT_A_PARTICIPANT|ROUND"),
            ({"round": 2**32 - 1}, None, "NOT_A_PARTICIPANT|ROUND"),
            ({"encoding": 99}, None, "BALLOT_ENCODING"),
            ({"encoding": ballot_pb2.ENCODING_ONE_HOT}, None, "BALLOT_ENCODING"),
            ({"size_bytes": 1 << 40}, None, "BALLOT_LENGTH"),
            ({"size_bytes": SHAPE.size_bytes - 1}, None, "BALLOT_LENGTH"),
            ({}, b"\0", "BALLOT_LENGTH"),
            ({}, bytes(SHAPE.size_bytes + 1), "BALLOT_TOO_LARGE"),
            ({}, bytes(SHAPE.size_bytes), "BALLOT_DIGEST"),
            ({}, b"\xff" * SHAPE.size_bytes, "BALLOT_PADDING"),
            ({"digest": "../../etc/passwd"}, None, "BALLOT_DIGEST"),
        ],
    )
    def test_a_wrong_ballot_is_refused_by_name(
        self,
        besieged: Siege,
        mallory: IdentityFiles,
        still: task_pb2.TaskState,
        change: dict[str, Any],
        data: bytes | None,
        code: str,
    ) -> None:
        header, honest = ballot(still)
        before = besieged.refusals()
        error = outcome(besieged, mallory, _changed(header, data or honest, change))
        assert any(error.code.startswith(allowed) for allowed in code.split("|")), error.code
        assert besieged.refusals() == before + 1

    def test_uploads_out_of_order_are_refused(
        self, besieged: Siege, mallory: IdentityFiles, still: task_pb2.TaskState
    ) -> None:
        header, data = ballot(still)
        first, second = parts(header, data)
        for messages in ((second, first), (first, first, second), (first,), (), (second,)):
            error = outcome(besieged, mallory, cast(*messages))
            assert error.code in {"MESSAGE_MALFORMED", "BALLOT_LENGTH"}

    @pytest.mark.parametrize(
        "method", ["Rounds/Heartbeat", "Rounds/CastBallot", "Rounds/Watch", "Identity/Renew"]
    )
    def test_bytes_that_are_no_message_are_refused(
        self, besieged: Siege, mallory: IdentityFiles, method: str
    ) -> None:
        service, name = method.split("/")
        path = f"/consilium.v1.{service}Service/{name}"

        async def garbage(channel: grpc.aio.Channel) -> object:
            return await channel.stream_unary(path)(iter([b"\xff\xff\xff\x0f"]), timeout=PATIENCE)

        error = outcome(besieged, mallory, garbage)
        assert (error.code, error.sentence) == (
            "MESSAGE_MALFORMED",
            'The coordinator says: "The call is malformed: its bytes are not of the protocol."',
        )

    def test_after_all_that_the_honest_consensus_stands(self, besieged: Siege) -> None:
        with besieged.unshaken("afterwards"):
            assert besieged.task(TASK).task.status == task_pb2.TASK_STATUS_RUNNING


def _served(besieged: Siege, files: IdentityFiles | None) -> bool:
    """True if the coordinator speaks HTTP/2 with the holder of `files`."""
    try:
        with besieged.peer(files) as peer:
            # TLS 1.3 tells a client that it was refused only when it reads.
            return peer.read() is not None
    except (ssl.SSLError, ConnectionError):
        return False


async def _list_silos(channel: grpc.aio.Channel) -> object:
    stub = admin_pb2_grpc.AdminServiceStub(channel)
    return await stub.ListSilos(admin_pb2.ListSilosRequest(), timeout=PATIENCE)


async def _drained(stream: Any) -> None:
    async for _ in stream:
        pass


async def _cast_once(
    besieged: Siege, files: IdentityFiles, header: ballot_pb2.BallotHeader, data: bytes
) -> None:
    async with secure_channel(besieged.address, files) as channel:
        await cast(*parts(header, data))(channel)


def _changed(header: ballot_pb2.BallotHeader, data: bytes, change: dict[str, Any]) -> Call:
    altered = ballot_pb2.BallotHeader()
    altered.CopyFrom(header)
    for key, value in change.items():
        setattr(altered, key, value)
    return cast(*parts(altered, data))


def _request(key: Any) -> bytes:
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return request.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def _names(uris: Iterable[str]) -> x509.SubjectAlternativeName:
    # Straight from the wire: the library would correct some of them.
    return x509.SubjectAlternativeName(
        [x509.UniformResourceIdentifier._init_without_validation(uri) for uri in uris]
    )


def _certificate(key: Any, issuer: x509.Name, signer: Any, uris: Sequence[str]) -> bytes:
    """A client's certificate with whatever names, by whatever key."""
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "north")]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
    )
    if uris:
        builder = builder.add_extension(_names(uris), critical=False)
    return builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)


def _files(besieged: Siege, folder: Path, key: bytes, certificate: bytes) -> IdentityFiles:
    files = IdentityFiles(
        folder=folder / "identity",
        key_pem=key,
        certificate_pem=certificate,
        authorities_pem=besieged.authority.certificate_pem,
        coordinator_address=besieged.address,
        consortium="consilium",
        name="north",
    )
    files.store()
    return files
