"""A real coordinator refuses messages that hold too much, from silos, admins and strangers, and goes on serving."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from federation import LABELS, Federation, federation
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from wire.bounds import bounds_of
from wire.chunks import CHUNK_BYTES
from wire.consilium.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    ballot_pb2,
    enrolment_pb2,
    enrolment_pb2_grpc,
    identity_pb2,
    identity_pb2_grpc,
    registry_pb2,
    rounds_pb2,
    rounds_pb2_grpc,
    task_pb2,
)
from wire.errors import FIELD_TOO_LONG, Refusal, from_rpc
from wire.identity.files import IdentityFiles
from wire.net.channels import MAX_MESSAGE_BYTES, enrolment_channel, secure_channel

# The longest text that fits into a message at all, and the longest list one would think of.
LONGEST = "x" * (MAX_MESSAGE_BYTES - 64)
MANY = [""] * 10**6

Call = Callable[[grpc.aio.Channel], Coroutine[Any, Any, object]]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation(tmp_path_factory.mktemp("bounds")) as made:
        for name in ("north", "south"):
            made.join(name)
        yield made


def outcome(channel: grpc.aio.Channel, call: Call) -> Coroutine[Any, Any, Refusal]:
    """The refusal that a call on this channel gets."""

    async def called() -> Refusal:
        async with channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(channel)
        refusal = from_rpc(caught.value)
        assert refusal is not None, caught.value
        return refusal

    return called()


def told(files: IdentityFiles, call: Call) -> str:
    """The sentence with which a member's call is refused for its length."""

    async def called() -> Refusal:
        return await outcome(secure_channel(files.coordinator_address, files), call)

    refusal = asyncio.run(called())
    assert refusal.is_a(FIELD_TOO_LONG), refusal.sentence
    return refusal.sentence


async def drained(stream: Any) -> None:
    async for _ in stream:
        pass


def cast(*parts: rounds_pb2.CastBallotRequest) -> Call:
    return lambda channel: rounds_pb2_grpc.RoundsServiceStub(channel).CastBallot(
        iter(parts), timeout=60
    )


def header(**values: Any) -> rounds_pb2.CastBallotRequest:
    return rounds_pb2.CastBallotRequest(header=ballot_pb2.BallotHeader(**values))


FROM_A_SILO: dict[str, tuple[Call, str]] = {
    "a call answered by a stream": (
        lambda channel: drained(
            rounds_pb2_grpc.RoundsServiceStub(channel).Watch(
                rounds_pb2.WatchRequest(instance=LONGEST), timeout=60
            )
        ),
        f"WatchRequest.instance holds {len(LONGEST)} characters; at most 64 are taken.",
    ),
    "a plain call": (
        lambda channel: rounds_pb2_grpc.RoundsServiceStub(channel).Heartbeat(
            rounds_pb2.HeartbeatRequest(instance="i" * 65), timeout=60
        ),
        "HeartbeatRequest.instance holds 65 characters; at most 64 are taken.",
    ),
    "a list in the first message of a stream": (
        cast(header(task="t", consensuses_seen=MANY)),
        "BallotHeader.consensuses_seen holds 1000000 items; at most 16 are taken.",
    ),
    "a text in the first message of a stream": (
        cast(header(task="t", digest=LONGEST)),
        f"BallotHeader.digest holds {len(LONGEST)} characters; at most 64 are taken.",
    ),
    "a certificate request": (
        lambda channel: identity_pb2_grpc.IdentityServiceStub(channel).Renew(
            identity_pb2.RenewRequest(certificate_request_pem=LONGEST), timeout=60
        ),
        f"RenewRequest.certificate_request_pem holds {len(LONGEST)} characters; at most 8192 are taken.",
    ),
}


@pytest.mark.parametrize("what", FROM_A_SILO)
def test_a_silo_cannot_say_more_than_a_field_takes(live: Federation, what: str) -> None:
    call, sentence = FROM_A_SILO[what]
    before = live.counted("consilium_refusals_total", code="FIELD_TOO_LONG")
    assert told(live.silos["north"].identity(), call) == sentence
    assert live.counted("consilium_refusals_total", code="FIELD_TOO_LONG") == before + 1


def test_a_later_message_of_a_stream_is_held_to_its_bound_too(live: Federation) -> None:
    state = live.start("chunked", silos=["north", "south"])
    size = live.show("chunked").task.definition.rows // 8 + 1
    good = header(
        task="chunked",
        task_digest=state.digest,
        round=1,
        encoding=ballot_pb2.ENCODING_INDEX,
        size_bytes=2 * size,
        digest="0" * 64,
    )
    chunk = rounds_pb2.CastBallotRequest(data=bytes(CHUNK_BYTES + 1))
    assert told(live.silos["north"].identity(), cast(good, chunk)) == (
        f"CastBallotRequest.data holds {CHUNK_BYTES + 1} bytes; at most {CHUNK_BYTES} are taken."
    )


FROM_AN_ADMIN: dict[str, tuple[Any, str]] = {
    "labels": (
        task_pb2.TaskDefinition(name="t", public_set="wards", labels=MANY),
        "TaskDefinition.labels holds 1000000 items; at most 4096 are taken.",
    ),
    "label": (
        task_pb2.TaskDefinition(name="t", public_set="wards", labels=["a", "b" * 201]),
        "TaskDefinition.labels holds 201 characters; at most 200 are taken.",
    ),
    "silos": (
        task_pb2.TaskDefinition(name="t", public_set="wards", labels=LABELS, silos=MANY),
        "TaskDefinition.silos holds 1000000 items; at most 4096 are taken.",
    ),
}


@pytest.mark.parametrize("what", FROM_AN_ADMIN)
def test_an_admin_cannot_either(live: Federation, what: str) -> None:
    definition, sentence = FROM_AN_ADMIN[what]
    request = admin_pb2.CreateTaskRequest(definition=definition)
    files = IdentityFiles.load(live.home / "admin")

    async def create(channel: grpc.aio.Channel) -> None:
        await admin_pb2_grpc.AdminServiceStub(channel).CreateTask(request, timeout=60)

    assert told(files, create) == sentence


def test_nor_can_a_stranger_at_the_enrolment_port(live: Federation) -> None:
    authorities = live.silos["north"].identity().authorities_pem
    calls: list[tuple[Call, str]] = [
        (
            lambda channel: enrolment_pb2_grpc.EnrolmentServiceStub(channel).Enrol(
                enrolment_pb2.EnrolRequest(token_id=LONGEST), timeout=60
            ),
            "EnrolRequest.token_id",
        ),
        (
            lambda channel: health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=LONGEST), timeout=60
            ),
            "HealthCheckRequest.service",
        ),
    ]

    async def refused(call: Call) -> Refusal:
        address = f"localhost:{live.enrolment_port}"
        return await outcome(enrolment_channel(address, authorities), call)

    for call, field in calls:
        refusal = asyncio.run(refused(call))
        assert refusal.is_a(FIELD_TOO_LONG)
        assert refusal.sentence.startswith(f"{field} holds {len(LONGEST)} characters")


def oversized(message: Descriptor, deeper: int = 4) -> Iterator[tuple[str, Message]]:
    """For every field with a bound, however deep: its name and a message in which only that holds too much."""
    for field in message.fields:
        bounds, made = bounds_of(field), message._concrete_class()
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if bounds.max_length is not None and not is_map:
            content: str | bytes = "x" * (bounds.max_length + 1)
            if field.type == FieldDescriptor.TYPE_BYTES:
                content = content.encode()
            if field.is_repeated:
                getattr(made, field.name).append(content)
            else:
                setattr(made, field.name, content)
            yield field.full_name, made
        elif field.message_type is not None and not is_map and deeper:
            for name, inner in oversized(field.message_type, deeper - 1):
                outer = message._concrete_class()
                if field.is_repeated:
                    getattr(outer, field.name).add().CopyFrom(inner)
                else:
                    getattr(outer, field.name).CopyFrom(inner)
                yield name, outer


def test_no_field_of_any_call_takes_more_than_its_bound_on_either_port(live: Federation) -> None:
    silo, admin = live.silos["north"].identity(), IdentityFiles.load(live.home / "admin")
    modules = (admin_pb2, rounds_pb2, identity_pb2, registry_pb2, enrolment_pb2)
    services = [one for module in modules for one in module.DESCRIPTOR.services_by_name.values()]

    async def tried() -> dict[str, str]:
        codes: dict[str, str] = {}
        channels = {
            "AdminService": secure_channel(admin.coordinator_address, admin),
            "EnrolmentService": enrolment_channel(
                f"localhost:{live.enrolment_port}", silo.authorities_pem
            ),
        }
        members = secure_channel(silo.coordinator_address, silo)
        for service in services:
            channel = channels.get(service.name, members)
            for method in service.methods:
                for field, message in oversized(method.input_type):
                    call = channel.stream_unary(
                        f"/{service.full_name}/{method.name}",
                        request_serializer=lambda one: one.SerializeToString(),
                    )
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await call(iter([message]), timeout=60)
                    refusal = from_rpc(caught.value)
                    codes[f"{method.name} {field}"] = refusal.code if refusal else str(caught.value)
        for channel in (*channels.values(), members):
            await channel.close()
        return codes

    codes = asyncio.run(tried())
    assert set(codes.values()) == {FIELD_TOO_LONG.code}, codes
    assert len(codes) > 40


def test_giant_texts_leave_few_bytes_in_the_log(live: Federation) -> None:
    files = live.silos["north"].identity()
    before = live.coordinator.log.stat().st_size

    async def flood() -> None:
        async with secure_channel(files.coordinator_address, files) as channel:
            stub = rounds_pb2_grpc.RoundsServiceStub(channel)
            for _ in range(25):
                with pytest.raises(grpc.aio.AioRpcError):
                    await stub.Heartbeat(
                        rounds_pb2.HeartbeatRequest(instance=LONGEST),
                        metadata=(("x-noise", "n" * 4000),),
                        timeout=60,
                    )

    asyncio.run(flood())
    assert live.coordinator.log.stat().st_size - before < 25 * 1024


def test_after_all_that_a_federation_votes_as_ever(live: Federation) -> None:
    live.run(*live.silos.values())
    live.start("honest", rounds={"max_rounds": 2}, silos=["north", "south"])
    assert len(live.until_finished("honest").history) == 2
