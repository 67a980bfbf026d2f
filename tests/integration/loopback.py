"""A consortium on loopback: an authority, real gRPC servers behind the admission interceptor, and identities to call them with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import grpc
import grpc.aio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from patience import PATIENCE

from coordinator.api.interceptor import SERVICE_TABLE, AdmissionInterceptor, Admitted
from coordinator.pki.authority import Authority, IssuedKey
from coordinator.store.actors import Caller
from wire.consilium.v1 import rounds_pb2, rounds_pb2_grpc
from wire.identity.files import IdentityFiles, key_pem, new_key
from wire.identity.identity import Identity, Role
from wire.net.channels import server_options

DAY = timedelta(days=1)


@dataclass
class Consortium:
    """An authority and what its coordinator noticed."""

    folder: Path
    authority: Authority
    now: datetime
    admitted: list[tuple[Identity, str]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)

    async def admit(self, caller: Caller) -> None:
        """Lets everyone in and remembers whom."""
        self.admitted.append((caller.identity, caller.fingerprint))

    def issue(self, role: Role, name: str, at: datetime | None = None) -> IssuedKey:
        """A key certified for one day from `at`."""
        at = at or self.now
        if role is Role.ADMIN:
            return self.authority.issue_admin(name, DAY, at)
        key = new_key()
        request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
        request_pem = request.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
        return IssuedKey(key_pem(key), self.authority.issue(request_pem, role, name, DAY, at))

    def files(self, issued: IssuedKey, name: str) -> IdentityFiles:
        """The folder of someone who trusts this consortium and holds `issued`."""
        files = IdentityFiles(
            folder=self.folder / f"files-{name}",
            key_pem=issued.key_pem,
            certificate_pem=issued.certificate_pem,
            authorities_pem=self.authority.certificate_pem,
            coordinator_address="",
            consortium=self.authority.consortium,
            name=name,
        )
        files.store()
        return files

    def member(self, role: Role, name: str, at: datetime | None = None) -> IdentityFiles:
        """The folder of a proper member."""
        return self.files(self.issue(role, name, at), name)

    @asynccontextmanager
    async def serving(
        self,
        *register: Callable[[grpc.aio.Server], None],
        table: dict[str, Admitted] | None = None,
        server: IssuedKey | None = None,
        clients: bytes | None = b"",
        gate: AdmissionInterceptor | None = None,
    ) -> AsyncIterator[str]:
        """A server behind the admission interceptor; yields its address. `clients=None` asks for no certificates."""
        gate = gate or AdmissionInterceptor(
            table or SERVICE_TABLE, self.admit, lambda *refusal: self.refused.append(refusal)
        )
        issued = server or self.authority.issue_server(["localhost"], DAY, self.now)
        roots = self.authority.certificate_pem if clients == b"" else clients
        credentials = grpc.ssl_server_credentials(
            [(issued.key_pem, issued.certificate_pem)], roots, roots is not None
        )
        running = grpc.aio.server(interceptors=[gate], options=server_options())
        for add in register:
            add(running)
        port = running.add_secure_port("127.0.0.1:0", credentials)
        await running.start()
        try:
            yield f"localhost:{port}"
        finally:
            await running.stop(None)


class Heart(rounds_pb2_grpc.RoundsServiceServicer):
    """Answers heartbeats; fails the first `outages` calls of each method."""

    def __init__(self, outages: int = 0) -> None:
        self.outages = outages
        self.calls = 0

    async def Heartbeat(
        self, request: rounds_pb2.HeartbeatRequest, context: grpc.aio.ServicerContext
    ) -> rounds_pb2.HeartbeatResponse:
        self.calls += 1
        if self.calls <= self.outages:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "restarting")
        return rounds_pb2.HeartbeatResponse()

    async def Watch(
        self, request: rounds_pb2.WatchRequest, context: grpc.aio.ServicerContext
    ) -> None:
        self.calls += 1
        if self.calls <= self.outages:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "restarting")

    def register(self, server: grpc.aio.Server) -> None:
        rounds_pb2_grpc.add_RoundsServiceServicer_to_server(self, server)


async def beat(channel: grpc.aio.Channel) -> rounds_pb2.HeartbeatResponse:
    stub = rounds_pb2_grpc.RoundsServiceStub(channel)
    return await stub.Heartbeat(rounds_pb2.HeartbeatRequest(), timeout=PATIENCE)
