"""Every RPC of the coordinator as a decoder: the bytes of a call in, an answer or a refusal out.

A real service context with a store of its own; the caller is let in already, so this is what a member with a
good certificate can do.
"""

from __future__ import annotations

import asyncio
import atexit
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import Message
from prometheus_client import CollectorRegistry
from targets import Target

from coordinator.api.admin import AdminServicer
from coordinator.api.enrolment import EnrolmentServicer
from coordinator.api.identity import IdentityServicer
from coordinator.api.interceptor import _caller
from coordinator.api.registry import RegistryServicer
from coordinator.api.rounds import RoundsServicer
from coordinator.api.upload import Piece, Upload, measuring
from coordinator.cli.coordinator import init
from coordinator.context import ServiceContext
from coordinator.metrics.instruments import Metrics
from coordinator.server import build_context
from coordinator.settings import CoordinatorHome
from coordinator.store.actors import Caller
from coordinator.store.records import IssuedCertificate
from wire.ballot import digest, pack
from wire.consilium.v1 import (
    admin_pb2,
    ballot_pb2,
    enrolment_pb2,
    identity_pb2,
    registry_pb2,
    rounds_pb2,
)
from wire.errors import Refusal
from wire.extractor_file import ExtractorFile, ExtractorHeader, ExtractorKind, write_extractor
from wire.identity.identity import Identity, Role
from wire.public_content import write_array
from wire.task.definition import RoundPolicy, TaskDefinition

_FINGERPRINTS = {Role.SILO: "0" * 64, Role.ADMIN: "1" * 64}
_ANSWERS = 3
_SECONDS = 0.05


class Method(NamedTuple):
    """One RPC."""

    name: str
    serve: Callable[[Any, Any], Any]
    request: Any
    client_streaming: bool
    server_streaming: bool
    role: Role


class Context:
    """What servicers ask of gRPC."""

    async def send_initial_metadata(self, metadata: object) -> None:
        """Nobody listens."""


class House:
    """The service context, and one event loop for all calls."""

    def __init__(self, database: str = "") -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="consilium-fuzz-"))
        init(home=self._folder / "home", host=["localhost"], database=database)
        home = CoordinatorHome(self._folder / "home")
        self._runner = asyncio.Runner()
        self.service: ServiceContext = self._runner.run(self._opened(home))
        self.methods = list(self._methods())

    def close(self) -> None:
        """Leaves nothing behind."""
        self.service.in_store.close()
        self.service.store.close()
        self._runner.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _opened(self, home: CoordinatorHome) -> ServiceContext:
        service = build_context(home, home.settings(), Metrics(CollectorRegistry()))
        # The silo and the admin whose calls these are.
        now = service.clock()
        for role, fingerprint in _FINGERPRINTS.items():
            certificate = IssuedCertificate("", fingerprint, now + timedelta(days=7))
            service.store.members.adopt(role, "north", fingerprint, certificate, now)
        return service

    def _methods(self) -> Iterator[Method]:
        service = self.service
        for module, servicer, role in (
            (rounds_pb2, RoundsServicer(service), Role.SILO),
            (registry_pb2, RegistryServicer(service), Role.SILO),
            (identity_pb2, IdentityServicer(service), Role.SILO),
            (enrolment_pb2, EnrolmentServicer(service), Role.SILO),
            (admin_pb2, AdminServicer(service), Role.ADMIN),
        ):
            for service in module.DESCRIPTOR.services_by_name.values():
                for method in service.methods:
                    yield Method(
                        method.name,
                        getattr(servicer, method.name),
                        method.input_type._concrete_class,
                        method.client_streaming,
                        method.server_streaming,
                        role,
                    )

    def method(self, name: str) -> Method:
        """The RPC of that name."""
        return next(method for method in self.methods if method.name == name)

    def run(self, method: Method, messages: Iterable[bytes]) -> None:
        """Makes one call; what it leaves in the store is there for the next."""
        self._runner.run(self._serve(method, messages))

    async def _serve(self, method: Method, messages: Iterable[bytes]) -> None:
        identity = Identity(self.service.settings.consortium, method.role, "north")
        _caller.set(Caller(identity, _FINGERPRINTS[method.role]))
        upload = Upload(_pieces(method, messages), silence=5)
        request = upload if method.client_streaming else await upload.only()
        answer = method.serve(request, Context())
        if not method.server_streaming:
            await answer
            return
        # Some streams end only with their caller.
        with suppress(TimeoutError):
            async with asyncio.timeout(_SECONDS), aclosing(answer) as answers:
                count = 0
                async for _ in answers:
                    count += 1
                    if count == _ANSWERS:
                        break


async def _pieces(method: Method, messages: Iterable[bytes]) -> AsyncIterator[Piece]:
    decode = measuring(method.request.FromString)
    for message in messages:
        yield decode(message)


def good_calls(house: House) -> dict[str, list[bytes]]:
    """Messages of one good call of many kinds; the store has what they need."""
    with tempfile.TemporaryDirectory() as folder:
        write_array(np.arange(8, dtype=np.uint8), Path(folder) / "set")
        content = (Path(folder) / "set").read_bytes()
    header = admin_pb2.PublicSetHeader(
        name="scans", digest=digest(content), size_bytes=len(content)
    )
    task = TaskDefinition(
        name="t",
        public_set="scans",
        labels=("a", "b"),
        extractor="latest",
        silos=("north",),
        rounds=RoundPolicy(quorum=1),
    )
    extractor = _extractor(digest(content))
    publish = admin_pb2.ExtractorHeader(
        public_set=digest(content), digest=digest(extractor), size_bytes=len(extractor)
    )
    register = admin_pb2.RegisterSiloRequest(name="south")
    register.token_lifetime.FromSeconds(600)
    lasting = admin_pb2.RegisterAdminRequest(name="second")
    lasting.token_lifetime.FromSeconds(600)
    calls: dict[str, list[Message]] = {
        "PublishPublicSet": [
            admin_pb2.PublishPublicSetRequest(header=header),
            admin_pb2.PublishPublicSetRequest(data=content),
        ],
        "PublishExtractor": [
            admin_pb2.PublishExtractorRequest(header=publish),
            admin_pb2.PublishExtractorRequest(data=extractor),
        ],
        "CreateTask": [admin_pb2.CreateTaskRequest(definition=task.to_proto())],
        "StartTask": [admin_pb2.StartTaskRequest(name="t")],
    }
    for name, messages in calls.items():
        house.run(house.method(name), [message.SerializeToString() for message in messages])
    held = house.service.store.tasks.get("t")
    bits = pack(np.array([0, 1, 1, 0, 1, 0, -1, 1]), held.definition.shape)
    ballot = ballot_pb2.BallotHeader(
        task="t",
        task_digest=held.digest,
        round=1,
        encoding=held.definition.encoding.to_proto(),
        size_bytes=len(bits),
        digest=digest(bits),
    )
    calls |= {
        "RegisterSilo": [register],
        "RegisterAdmin": [lasting],
        "GetTask": [admin_pb2.GetTaskRequest(name="t")],
        "ListAudit": [admin_pb2.ListAuditRequest(after_sequence=1)],
        "Watch": [rounds_pb2.WatchRequest(instance="i", after_revision=1)],
        "Heartbeat": [rounds_pb2.HeartbeatRequest(instance="i")],
        "FetchConsensus": [rounds_pb2.FetchConsensusRequest(task="t", round=1)],
        "GetReceipt": [rounds_pb2.GetReceiptRequest(task="t", round=1)],
        "GetPublicSet": [registry_pb2.GetPublicSetRequest(reference="scans@1")],
        "FetchPublicSet": [registry_pb2.FetchPublicSetRequest(digest=digest(content), offset=3)],
        "ListExtractors": [registry_pb2.ListExtractorsRequest(public_set=digest(content))],
        "GetExtractor": [registry_pb2.GetExtractorRequest(digest=digest(extractor))],
        "FetchExtractor": [registry_pb2.FetchExtractorRequest(digest=digest(extractor), offset=3)],
        "Enrol": [enrolment_pb2.EnrolRequest(token_id="0" * 16, token_secret="x")],
        "CastBallot": [
            rounds_pb2.CastBallotRequest(header=ballot),
            rounds_pb2.CastBallotRequest(data=bits),
        ],
    }
    return {
        name: [message.SerializeToString() for message in messages]
        for name, messages in calls.items()
    }


def _extractor(public_set: str) -> bytes:
    header = ExtractorHeader(
        kind=ExtractorKind.PCA,
        public_set=public_set,
        row_shape=(1,),
        dimensions=1,
        public_norm=1.0,
        seed=0,
        steps=0,
    )
    numbers = {"mean": np.zeros(1), "scale": np.ones(1), "components": np.ones((1, 1))}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "extractor"
        write_extractor(ExtractorFile.of(header, **numbers), path)
        return path.read_bytes()


@cache
def _house() -> House:
    made = House()
    atexit.register(made.close)
    return made


def servicers(data: bytes) -> None:
    """A call: byte 0 picks the method; the rest is its message, or length-prefixed messages."""
    if not data:
        return
    house = _house()
    method, rest = house.methods[data[0] % len(house.methods)], data[1:]
    messages = [rest]
    if method.client_streaming:
        messages = []
        while rest:
            size = int.from_bytes(rest[:2])
            messages.append(rest[2 : 2 + size])
            rest = rest[2 + size :]
    house.run(method, messages)


@cache
def _calls() -> list[bytes]:
    """Good calls as `servicers` reads them."""
    house = _house()
    encoded = []
    for name, messages in good_calls(house).items():
        method = house.method(name)
        number = bytes([house.methods.index(method)])
        if method.client_streaming:
            encoded.append(number + b"".join(len(m).to_bytes(2) + m for m in messages))
        else:
            encoded.append(number + messages[0])
    return encoded


SERVICERS = Target(servicers, (Refusal,), _calls, runs=2000)
