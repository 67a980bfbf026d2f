"""Calls no agent would make, over the real wire: each gets its own refusal, and the metrics page counts it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np
import pytest
from federation import LABELS, ROWS, Federation, Silo, federation
from grpc_health.v1 import health_pb2, health_pb2_grpc
from patience import LEASE_SECONDS, PATIENCE
from service import eventually

from coordinator.api.handshake_log import HandshakeRefusal
from coordinator.pki.authority import Authority
from silo_agent.agent.coordinator_client import CoordinatorClient
from silo_agent.agent.trainer_client import TrainerClient
from wire import __version__
from wire.ballot import BallotShape, Encoding, digest, pack
from wire.chunks import CHUNK_BYTES
from wire.consilium.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    ballot_pb2,
    rounds_pb2,
    rounds_pb2_grpc,
    trainer_pb2,
)
from wire.errors import (
    BALLOT_CONFLICT,
    BALLOT_DIGEST,
    BALLOT_ENCODING,
    BALLOT_LABEL,
    BALLOT_LENGTH,
    BALLOT_PADDING,
    BALLOT_TOO_LARGE,
    CONSENSUS_UNKNOWN,
    LEASE_LOST,
    MESSAGE_MALFORMED,
    NOT_A_PARTICIPANT,
    ROUND_CLOSED,
    ROUND_NOT_OPEN,
    SILO_EXISTS,
    SILO_REVOKED,
    SILO_RUNNING_ELSEWHERE,
    TASK_CHANGED,
    TASK_NOT_RUNNING,
    TASK_UNKNOWN,
    TOKEN_USED,
    WRONG_ROLE,
    Fault,
    Refusal,
    from_rpc,
)
from wire.identity.files import IdentityFiles
from wire.identity.join_token import JoinToken
from wire.net.channels import MAX_MESSAGE_BYTES, enrolment_channel, secure_channel, translated
from wire.net.enrolment import join

DOCUMENTED = Path(__file__).parents[2] / "docs" / "metrics.md"
SHAPE = BallotShape(ROWS, len(LABELS), Encoding.INDEX)
BALLOT = pack(np.zeros(ROWS, dtype=np.int64), SHAPE)
OTHER_BALLOT = pack(np.ones(ROWS, dtype=np.int64), SHAPE)
PADDED = BALLOT[:-1] + bytes([BALLOT[-1] | 1])
# Both planes set: code 3, where 0 and 1 are classes and 2 is the abstention.
UNKNOWN_LABEL = bytes([0x80]) + bytes(SHAPE.plane_bytes - 1)
UNKNOWN_LABEL += UNKNOWN_LABEL

T = TypeVar("T")
Parts = list[rounds_pb2.CastBallotRequest]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A coordinator with three joined silos, none of which runs an agent, and one task in round 1."""
    with federation(tmp_path_factory.mktemp("wire")) as made:
        for name in ("north", "south", "west"):
            made.join(name)
        made.start("trial", rounds={"quorum": 3}, silos=["north", "south", "west"])
        yield made


@pytest.fixture
def north(live: Federation) -> Silo:
    return live.silos["north"]


def header(live: Federation, payload: bytes = BALLOT, **values: Any) -> ballot_pb2.BallotHeader:
    """What a proper agent would send before `payload`, with `values` changed."""
    proper = {
        "task": "trial",
        "task_digest": live.show("trial").task.digest,
        "round": 1,
        "encoding": ballot_pb2.ENCODING_INDEX,
        "size_bytes": len(payload),
        "digest": digest(payload),
    }
    return ballot_pb2.BallotHeader(**{**proper, **values})


def parts(head: ballot_pb2.BallotHeader, *data: bytes) -> Parts:
    return [
        rounds_pb2.CastBallotRequest(header=head),
        *(rounds_pb2.CastBallotRequest(data=chunk) for chunk in data),
    ]


def cast(silo: Silo, sent: Parts) -> ballot_pb2.Receipt:
    """Sends exactly these parts as `silo`; raises the refusal they get."""

    async def call(channel: grpc.aio.Channel) -> ballot_pb2.Receipt:
        stub = rounds_pb2_grpc.RoundsServiceStub(channel)
        return (await stub.CastBallot(iter(sent), timeout=PATIENCE)).receipt

    return calling(silo.identity(), call)


def calling(files: IdentityFiles, call: Callable[[grpc.aio.Channel], Coroutine[Any, Any, T]]) -> T:
    """Runs `call` on a channel with this identity; gRPC's errors come out as refusals."""

    async def connected() -> T:
        async with secure_channel(files.coordinator_address, files) as channel:
            try:
                return await call(channel)
            except grpc.aio.AioRpcError as error:
                raise await translated(error, files.coordinator_address, files) from error

    return asyncio.run(connected())


def refused(fault: Fault, act: Callable[[], object]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        act()
    assert caught.value.code == fault.code, caught.value.sentence
    return caught.value


Make = Callable[[Federation], Parts]


@pytest.mark.parametrize(
    ("fault", "make"),
    [
        (BALLOT_LENGTH, lambda live: parts(header(live, BALLOT[:-1]), BALLOT[:-1])),
        (BALLOT_LENGTH, lambda live: parts(header(live), BALLOT[:-1])),
        (BALLOT_TOO_LARGE, lambda live: parts(header(live), BALLOT, b"\0")),
        (BALLOT_TOO_LARGE, lambda live: parts(header(live), *[bytes(CHUNK_BYTES)] * 3)),
        (BALLOT_PADDING, lambda live: parts(header(live, PADDED), PADDED)),
        (BALLOT_LABEL, lambda live: parts(header(live, UNKNOWN_LABEL), UNKNOWN_LABEL)),
        (BALLOT_DIGEST, lambda live: parts(header(live, digest="0" * 64), BALLOT)),
        (
            BALLOT_ENCODING,
            lambda live: parts(header(live, encoding=ballot_pb2.ENCODING_ONE_HOT), BALLOT),
        ),
        (BALLOT_ENCODING, lambda live: parts(header(live, encoding=0), BALLOT)),
        (TASK_CHANGED, lambda live: parts(header(live, task_digest="0" * 64), BALLOT)),
        (TASK_UNKNOWN, lambda live: parts(header(live, task="trail"), BALLOT)),
        (ROUND_NOT_OPEN, lambda live: parts(header(live, round=2), BALLOT)),
        (ROUND_CLOSED, lambda live: parts(header(live, round=0), BALLOT)),
        (MESSAGE_MALFORMED, lambda live: parts(header(live), BALLOT)[1:]),
        (MESSAGE_MALFORMED, lambda live: parts(header(live))[:1] * 2),
        (MESSAGE_MALFORMED, lambda live: []),
    ],
    ids=[
        "short by its own word",
        "short",
        "one byte too many",
        "megabytes too many",
        "padding",
        "label out of range",
        "wrong digest",
        "wrong encoding",
        "no encoding",
        "another definition",
        "unknown task",
        "early",
        "round 0",
        "no header",
        "two headers",
        "nothing",
    ],
)
def test_a_ballot_that_is_not_one_gets_its_own_code_and_is_counted(
    live: Federation, north: Silo, fault: Fault, make: Make
) -> None:
    before = live.counted("consilium_refusals_total", code=fault.code)
    refusal = refused(fault, lambda: cast(north, make(live)))
    assert refusal.hint
    assert live.counted("consilium_refusals_total", code=fault.code) == before + 1
    assert (1, "north") not in live.ballots("trial")


def test_ballots_that_come_again_differ_or_come_late(live: Federation) -> None:
    north, south, west = (live.silos[name] for name in ("north", "south", "west"))
    late = live.join("late")
    live.start("brief", rounds={"max_rounds": 1, "quorum": 2}, silos=["north", "south"])
    brief = live.show("brief").task.digest

    def ballot(payload: bytes = BALLOT) -> Parts:
        return parts(header(live, payload, task="brief", task_digest=brief), payload)

    refused(NOT_A_PARTICIPANT, lambda: cast(late, ballot()))
    first = cast(north, ballot())
    again = cast(north, ballot())
    assert (first.already_held, again.already_held) == (False, True)
    assert (again.accepted_at, again.digest) == (first.accepted_at, digest(BALLOT))
    refused(BALLOT_CONFLICT, lambda: cast(north, ballot(OTHER_BALLOT)))
    live.pause("brief")
    refused(TASK_NOT_RUNNING, lambda: cast(south, ballot()))
    live.resume("brief")
    cast(south, ballot())
    live.until_finished("brief")
    refused(ROUND_CLOSED, lambda: cast(west, ballot()))
    assert cast(north, ballot()).already_held, "a receipt lost on the way can still be had"
    assert live.ballots("brief") == {
        (1, "north"): digest(BALLOT),
        (1, "south"): digest(BALLOT),
    }


def test_a_consensus_that_does_not_exist_is_refused(north: Silo) -> None:
    async def fetch() -> None:
        link = CoordinatorClient(north.identity())
        try:
            await link.consensus("trial", 7)
        finally:
            await link.close()

    refused(CONSENSUS_UNKNOWN, lambda: asyncio.run(fetch()))


def test_a_lease_has_one_holder_and_is_to_be_renewed_well_before_its_end(north: Silo) -> None:
    async def compete(channel: grpc.aio.Channel) -> None:
        stub = rounds_pb2_grpc.RoundsServiceStub(channel)
        first = stub.Watch(rounds_pb2.WatchRequest(instance="one"))
        await first.initial_metadata()
        beat = await stub.Heartbeat(rounds_pb2.HeartbeatRequest(instance="one"))
        # One heartbeat may be lost on the way.
        assert 0 < 2 * beat.next_after.ToSeconds() <= LEASE_SECONDS
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Heartbeat(rounds_pb2.HeartbeatRequest(instance="two"))
        lost = from_rpc(caught.value)
        assert lost is not None
        assert lost.is_a(LEASE_LOST)
        async for _ in stub.Watch(rounds_pb2.WatchRequest(instance="two")):
            raise AssertionError("the second instance was let in")

    refusal = refused(SILO_RUNNING_ELSEWHERE, lambda: calling(north.identity(), compete))
    assert "north" in refusal.sentence


def test_a_watch_tells_which_version_the_coordinator_runs(live: Federation) -> None:
    async def watch() -> str:
        link = CoordinatorClient(live.silos["west"].identity())
        try:
            async with aclosing(link.watch("here", 0, lambda: None)) as states:
                await anext(states)
            await link.leave("here")
            return link.coordinator_version
        finally:
            await link.close()

    assert asyncio.run(watch()) == __version__


def test_a_silo_is_no_admin_and_the_metrics_page_says_someone_tried(
    live: Federation, north: Silo
) -> None:
    async def register(channel: grpc.aio.Channel) -> None:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        await stub.RegisterSilo(admin_pb2.RegisterSiloRequest(name="mole"), timeout=PATIENCE)

    before = live.counted("consilium_refusals_total", code="WRONG_ROLE")
    refusal = refused(WRONG_ROLE, lambda: calling(north.identity(), register))
    assert "north" in refusal.sentence
    assert "RegisterSilo" in refusal.sentence
    assert live.counted("consilium_refusals_total", code="WRONG_ROLE") == before + 1


def test_callers_without_a_proper_certificate_never_get_through_and_are_counted(
    live: Federation, north: Silo, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    files, day = north.identity(), timedelta(days=1)
    ours = Authority.load(live.home / "authority")
    theirs = Authority.create(tmp_path / "theirs", "consilium", now)
    expired = ours.issue_admin("admin", day, now - 2 * day)
    foreign = theirs.issue_admin("admin", day, now)

    async def beat(channel: grpc.aio.Channel) -> None:
        with pytest.raises(grpc.aio.AioRpcError):
            await rounds_pb2_grpc.RoundsServiceStub(channel).Heartbeat(
                rounds_pb2.HeartbeatRequest(), timeout=PATIENCE
            )

    async def nameless() -> None:
        async with enrolment_channel(files.coordinator_address, files.authorities_pem) as channel:
            await beat(channel)

    metric = "consilium_tls_handshakes_refused_total"
    reasons = [
        HandshakeRefusal.NO_CERTIFICATE,
        HandshakeRefusal.UNTRUSTED_CERTIFICATE,
        HandshakeRefusal.EXPIRED_CERTIFICATE,
    ]
    assert [live.counted(metric, reason=reason) for reason in reasons] == [0, 0, 0]
    asyncio.run(nameless())
    for issued in (foreign, expired):
        posing = dataclasses.replace(
            files, key_pem=issued.key_pem, certificate_pem=issued.certificate_pem
        )
        calling(posing, beat)
    eventually(
        "each kind of refused handshake counted",
        lambda: all(live.counted(metric, reason=reason) > 0 for reason in reasons),
    )


def test_a_token_is_for_one_key_and_a_name_for_one_silo(live: Federation, tmp_path: Path) -> None:
    token = live.register("east")

    def redeem(folder: str) -> str:
        joined = asyncio.run(join(token, tmp_path / folder, lambda: datetime.now(UTC)))
        return joined.certificate.fingerprint

    first = redeem("one")
    assert "east" in refused(TOKEN_USED, lambda: redeem("two")).sentence
    assert JoinToken.parse(token).name == "east"
    assert IdentityFiles.load(tmp_path / "one").certificate.fingerprint == first
    assert (
        "already registered (active)"
        in refused(SILO_EXISTS, lambda: live.register("east")).sentence
    )


def test_a_revoked_silo_is_refused_at_its_next_call(live: Federation) -> None:
    live.join("rogue")

    async def beat() -> None:
        link = CoordinatorClient(live.silos["rogue"].identity())
        try:
            # The lease is another matter; what counts is that the door is shut before it is asked for.
            await link.leave("one")
        finally:
            await link.close()

    asyncio.run(beat())
    live.revoke("rogue")
    assert "rogue has been revoked" in refused(SILO_REVOKED, lambda: asyncio.run(beat())).sentence


def test_a_ballot_larger_than_a_network_message_passes_the_trainers_socket(tmp_path: Path) -> None:
    large = trainer_pb2.VoteResponse(data=bytes(MAX_MESSAGE_BYTES + 1))

    async def vote(request: bytes, context: Any) -> bytes:
        return large.SerializeToString()

    async def scenario() -> int:
        socket = tmp_path / "trainer.sock"
        server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
        handlers: dict[str, Any] = {"Vote": grpc.unary_unary_rpc_method_handler(vote)}
        service = "consilium.v1.TrainerService"
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        link = TrainerClient(socket)
        try:
            return len((await link.vote("0" * 64, 1, None, 0)).data)
        finally:
            await link.close()
            await server.stop(None)

    assert asyncio.run(scenario()) == len(large.data)


def test_both_ports_answer_health_checks(live: Federation, north: Silo) -> None:
    files = north.identity()

    async def ask(channel: grpc.aio.Channel) -> int:
        request = health_pb2.HealthCheckRequest()
        stub = health_pb2_grpc.HealthStub(channel)
        return int((await stub.Check(request, timeout=PATIENCE)).status)

    async def ask_enrolment() -> int:
        address = f"localhost:{live.enrolment_port}"
        async with enrolment_channel(address, files.authorities_pem) as channel:
            return await ask(channel)

    serving = health_pb2.HealthCheckResponse.SERVING
    assert calling(files, ask) == serving
    assert asyncio.run(ask_enrolment()) == serving


def test_the_metrics_page_has_what_the_documentation_promises(live: Federation) -> None:
    coordinator, _, _ = DOCUMENTED.read_text(encoding="utf-8").partition("## Agent")
    promised = {line.split("`")[1] for line in coordinator.splitlines() if line.startswith("| `")}
    assert len(promised) > 10
    # A labelled family has no sample before something happened, but its name stands on the page.
    page = live.metrics_page()
    missing = {name for name in promised if f"# TYPE {name} " not in page}
    assert not missing
