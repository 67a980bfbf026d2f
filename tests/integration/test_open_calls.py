"""Calls opened before their caller was shut out or its certificate replaced: none of them acts, all of them end.

A raw client opens each call and holds its request back, over real TLS, against real coordinators: one on SQLite, one on
PostgreSQL, and two on one PostgreSQL where the change is made at the other replica.
"""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message
from patience import PATIENCE
from postgres import PostgresServer
from prometheus_client.parser import text_string_to_metric_families
from replicas import (
    Replica,
    consilium,
    definition,
    first_replica,
    publish_points,
    replicas,
    token_from,
)
from service import eventually

from coordinator.settings import Limits
from wire.consilium.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    identity_pb2,
    identity_pb2_grpc,
    rounds_pb2,
)
from wire.identity.files import IdentityFiles, new_key
from wire.identity.identity import Role
from wire.net.channels import secure_channel, translated
from wire.net.enrolment import join, request_pem
from wire.net.renewal import renew_identity

pytestmark = pytest.mark.slow

ADMIN, ROUNDS, IDENTITY = "AdminService", "RoundsService", "IdentityService"


@pytest.fixture(params=["sqlite", "postgresql", "replicas"])
def places(
    request: pytest.FixtureRequest, tmp_path: Path, postgres: PostgresServer
) -> Iterator[tuple[Replica, Replica]]:
    """Where members are shut out, and where the attacker's calls are open."""
    if request.param == "sqlite":
        one = first_replica(tmp_path, f"sqlite:///{tmp_path / 'one.db'}")
        try:
            one.serve()
            yield one, one
        finally:
            one.end()
        return
    url = postgres.fresh_url()
    with replicas(tmp_path, url) as (one, other):
        one.serve()
        if request.param == "replicas":
            other.serve()
        yield one, other if request.param == "replicas" else one
    postgres.drop(url)


class HeldCall:
    """A call whose request is not complete."""

    def __init__(self, method: str, call: Any, files: IdentityFiles) -> None:
        self.method, self._call, self._files = method, call, files

    async def code(self) -> str:
        """With what it ended."""
        try:
            print("awaiting", self.method, flush=True)
            await asyncio.wait_for(self._call, PATIENCE)
        except grpc.aio.AioRpcError as error:
            told = await translated(error, self._files.coordinator_address, self._files)
            return told.code
        return "OK"


@asynccontextmanager
async def attacker(files: IdentityFiles, at: Replica) -> AsyncIterator[Attacker]:
    address = f"localhost:{at.ports[0]}"
    async with secure_channel(address, files) as channel:
        yield Attacker(channel, files, at)


class Attacker:
    """A member that opens calls and holds them."""

    def __init__(self, channel: grpc.aio.Channel, files: IdentityFiles, at: Replica) -> None:
        self.channel, self.files, self._at = channel, files, at

    async def hold(self, service: str, method: str, *messages: Message) -> HeldCall:
        """Opens a call, sends these messages and no end, and waits until the coordinator serves it."""
        name = f"{service}/{method}"
        call = self.channel.stream_unary(
            f"/consilium.v1.{name}", request_serializer=lambda message: message.SerializeToString()
        )(timeout=10 * PATIENCE)
        for message in messages:
            await call.write(message)
        await asyncio.to_thread(
            eventually, f"{name} is served", lambda: in_progress(self._at, name) >= 1
        )
        return HeldCall(name, call, self.files)

    async def late(self, service: str, method: str, message: Message) -> str:
        """How a whole call ends."""
        call = self.channel.unary_unary(
            f"/consilium.v1.{service}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
        )(message, timeout=PATIENCE)
        return await HeldCall(method, call, self.files).code()


async def begun(call: Any) -> Any:
    """A stream that has begun to answer; awaited, it ends as the stream does."""
    first = asyncio.Event()

    async def read() -> None:
        async for _ in call:
            first.set()

    reading = asyncio.create_task(read())
    await asyncio.wait_for(first.wait(), PATIENCE)
    return reading


def in_progress(at: Replica, method: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{at.ports[2]}/metrics") as page:
        families = text_string_to_metric_families(str(page.read(), "utf-8"))
    samples = [sample for family in families for sample in family.samples]
    name = "consilium_grpc_calls_in_progress"
    return sum(s.value for s in samples if s.name == name and s.labels["method"] == method)


async def new_admin(by: Replica, name: str) -> IdentityFiles:
    request = admin_pb2.RegisterAdminRequest(name=name)
    request.token_lifetime.FromSeconds(600)
    answer = await by.admin(lambda link: link.admin.RegisterAdmin(request))
    folder = by.home.with_name(name)
    joined = await join(answer.join_token, folder, lambda: datetime.now(UTC), role=Role.ADMIN)
    return joined.files


async def new_silo(by: Replica, name: str, folder: str = "") -> IdentityFiles:
    token = await token_from(by, name)
    joined = await join(token, by.home.with_name(folder or name), lambda: datetime.now(UTC))
    return joined.files


def renewal(name: str) -> identity_pb2.RenewRequest:
    return identity_pb2.RenewRequest(certificate_request_pem=request_pem(new_key(), name))


async def held_calls_of_a_silo(thief: Attacker) -> list[HeldCall]:
    watch = thief.channel.unary_stream(
        "/consilium.v1.RoundsService/Watch",
        request_serializer=lambda message: message.SerializeToString(),
    )(rounds_pb2.WatchRequest(instance="thief", agent_version="test"))
    await watch.initial_metadata()
    return [
        await thief.hold(IDENTITY, "Renew"),
        await thief.hold(IDENTITY, "WhoAmI"),
        await thief.hold(ROUNDS, "Heartbeat"),
        await thief.hold(ROUNDS, "Leave"),
        await thief.hold(ROUNDS, "CastBallot"),
        await thief.hold("RegistryService", "FetchPublicSet"),
        HeldCall("Watch", drained(watch), thief.files),
    ]


async def drained(call: Any) -> None:
    async for _ in call:
        pass


async def codes(calls: list[HeldCall]) -> dict[str, str]:
    return {call.method: await call.code() for call in calls}


def test_a_revoked_admins_calls_end_and_none_of_them_acts(places: tuple[Replica, Replica]) -> None:
    by, at = places
    publish_points(by)

    async def scene() -> None:
        eve = await new_admin(by, "eve")
        create = admin_pb2.CreateTaskRequest(definition=definition().to_proto())
        await by.admin(lambda link: link.admin.CreateTask(create))
        async with attacker(eve, at) as thief:
            upload = admin_pb2.PublishPublicSetRequest(
                header=admin_pb2.PublicSetHeader(name="late", digest="a" * 64, size_bytes=8)
            )
            piece = admin_pb2.PublishPublicSetRequest(data=b"1234")
            stub = admin_pb2_grpc.AdminServiceStub(thief.channel)
            watching = stub.WatchTask(admin_pb2.WatchTaskRequest(name="trial"))
            calls = [
                await thief.hold(ADMIN, "RegisterAdmin"),
                await thief.hold(ADMIN, "RevokeAdmin"),
                await thief.hold(ADMIN, "StartTask"),
                await thief.hold(ADMIN, "ListAudit"),
                await thief.hold(ADMIN, "PublishPublicSet", upload, piece),
                await thief.hold(ADMIN, "PublishExtractor"),
                await thief.hold(IDENTITY, "Renew"),
                HeldCall("WatchTask", await begun(watching), eve),
            ]
            revoke = admin_pb2.RevokeAdminRequest(name="eve")
            await by.admin(lambda link: link.admin.RevokeAdmin(revoke))
            ended = await codes(calls)
        assert set(ended.values()) == {"ADMIN_REVOKED"}, ended
        listed = await by.admin(lambda link: link.admin.ListAdmins(admin_pb2.ListAdminsRequest()))
        assert sorted(one.name for one in listed.admins) == ["admin", "eve"]

    asyncio.run(scene())


async def revoke_and_join_again(by: Replica, files: IdentityFiles) -> str:
    request = admin_pb2.RevokeSiloRequest(name=files.name)
    await by.admin(lambda link: link.admin.RevokeSilo(request))
    await new_silo(by, files.name, "again")
    # Whichever of the two the replica saw first.
    return "SILO_REVOKED CERTIFICATE_SUPERSEDED"


async def suspend(by: Replica, files: IdentityFiles) -> str:
    request = admin_pb2.SuspendSiloRequest(name=files.name)
    await by.admin(lambda link: link.admin.SuspendSilo(request))
    return "SILO_SUSPENDED"


async def renew(by: Replica, files: IdentityFiles) -> str:
    """The honest agent renews and uses the new certificate once."""
    async with secure_channel(f"localhost:{by.ports[0]}", files) as channel:
        stub = identity_pb2_grpc.IdentityServiceStub(channel)
        fresh = await renew_identity(files, stub.Renew, datetime.now(UTC))
    async with secure_channel(f"localhost:{by.ports[0]}", fresh) as channel:
        stub = identity_pb2_grpc.IdentityServiceStub(channel)
        await stub.WhoAmI(identity_pb2.WhoAmIRequest(), timeout=PATIENCE)
    return "CERTIFICATE_SUPERSEDED"


@pytest.mark.parametrize("change", [revoke_and_join_again, suspend, renew])
def test_a_copied_key_ends_with_its_certificate(
    places: tuple[Replica, Replica], change: Callable[[Replica, IdentityFiles], Awaitable[str]]
) -> None:
    by, at = places

    async def scene() -> None:
        north = await new_silo(by, "north")
        async with attacker(north, at) as thief:
            calls = await held_calls_of_a_silo(thief)
            expected = (await change(by, north)).split()
            ended = await codes(calls)
            assert set(ended.values()) <= set(expected), ended
            late = await thief.late(IDENTITY, "Renew", renewal("north"))
            assert late in expected
        issued = [
            entry
            async for entry in audit(by)
            if entry.act in ("certificate_renewed", "member_joined") and "north" in entry.subject
        ]
        # Joining once, and what the change itself brought: nothing the thief asked for.
        assert len(issued) == (1 if change is suspend else 2)

    asyncio.run(scene())


async def audit(by: Replica) -> AsyncIterator[admin_pb2.ListAuditResponse]:
    found: list[admin_pb2.ListAuditResponse] = []

    async def read(link: Any) -> None:
        async for entry in link.admin.ListAudit(admin_pb2.ListAuditRequest()):
            found.append(entry)

    await by.admin(read)
    for entry in found:
        yield entry


def test_renewing_gives_nobody_more_renewals(tmp_path: Path) -> None:
    one = first_replica(tmp_path, f"sqlite:///{tmp_path / 'one.db'}")

    async def scene() -> tuple[int, float]:
        files, renewed, begun_at = await new_silo(one, "north"), 0, time.monotonic()
        while True:
            async with secure_channel(f"localhost:{one.ports[0]}", files) as channel:
                stub = identity_pb2_grpc.IdentityServiceStub(channel)
                try:
                    # Each is asked for with the certificate that the one before brought.
                    files = await renew_identity(files, stub.Renew, datetime.now(UTC))
                except grpc.aio.AioRpcError as error:
                    told = await translated(error, files.coordinator_address, files)
                    assert told.code == "RATE_LIMITED"
                    return renewed, time.monotonic() - begun_at
            renewed += 1

    try:
        one.serve()
        renewed, seconds = asyncio.run(scene())
    finally:
        one.end()
    allowed = Limits().renewals
    assert renewed <= allowed.burst + 1 + seconds * allowed.per_second


def test_what_is_done_on_the_host_ends_calls_too(tmp_path: Path) -> None:
    one = first_replica(tmp_path, f"sqlite:///{tmp_path / 'one.db'}")

    async def scene() -> str:
        lost = IdentityFiles.load(one.home / "admin", Role.ADMIN)
        async with attacker(lost, one) as thief:
            held = await thief.hold(ADMIN, "RegisterAdmin")
            arguments = ("coordinator", "admit-admin", "--home", one.home, "--yes")
            await asyncio.to_thread(consilium, *arguments)
            return await held.code()

    try:
        one.serve()
        assert asyncio.run(scene()) == "CERTIFICATE_SUPERSEDED"
    finally:
        one.end()
