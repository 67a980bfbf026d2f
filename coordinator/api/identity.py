"""A member's identity: renew its certificate, verify receipts, ask how it is known here."""

from __future__ import annotations

from typing import Any

import structlog

from coordinator.api.interceptor import caller
from coordinator.api.translation import role_message, timestamp
from coordinator.context import ServiceContext
from coordinator.pki.key_request import key_hash
from coordinator.pki.members import certificate_issuer
from coordinator.rounds.change_bus import Topic
from wire import OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION, __version__
from wire.consilium.v1 import identity_pb2, identity_pb2_grpc
from wire.identity.identity import Role, read_certificate
from wire.runtime.crash_points import crash_point

log = structlog.get_logger()


class IdentityServicer(identity_pb2_grpc.IdentityServiceServicer):
    """Called by members that are not shut out, as the admission interceptor makes sure."""

    def __init__(self, service: ServiceContext) -> None:
        self._service = service

    async def Renew(
        self, request: identity_pb2.RenewRequest, context: Any
    ) -> identity_pb2.RenewResponse:
        """Certifies the caller's next key."""
        service, now, member = self._service, self._service.clock(), caller()
        request_pem = request.certificate_request_pem.encode()
        pem = await service.in_store(
            service.store.members.renew,
            member,
            key_hash(request_pem),
            now,
            certificate_issuer(service.authority, service.certificate_lifetime, request_pem, now),
        )
        crash_point("certificate-renewed")
        service.change_bus.announce(Topic.MEMBERS)
        service.metrics.renewals.labels(str(member.role)).inc()
        log.info("certificate_renewed", role=str(member.role), name=member.name)
        return identity_pb2.RenewResponse(
            certificate_pem=pem,
            authorities_pem=service.authorities.bundle_pem.decode(),
            expires_at=timestamp(read_certificate(pem.encode()).not_after),
        )

    async def GetSigner(
        self, request: identity_pb2.GetSignerRequest, context: Any
    ) -> identity_pb2.GetSignerResponse:
        """The certificate a receipt names."""
        service = self._service
        fingerprint = request.fingerprint or service.signer.fingerprint
        pem = await service.in_store(service.store.signers.get, fingerprint)
        return identity_pb2.GetSignerResponse(certificate_pem=pem)

    async def WhoAmI(
        self, request: identity_pb2.WhoAmIRequest, context: Any
    ) -> identity_pb2.WhoAmIResponse:
        """How the caller is known here, and what it will need."""
        service, member = self._service, caller()
        needed = (
            await service.task_cache.public_sets(member.name) if member.role is Role.SILO else []
        )
        return identity_pb2.WhoAmIResponse(
            consortium=member.identity.consortium,
            role=role_message(member.role),
            name=member.name,
            coordinator_version=__version__,
            oldest_protocol=OLDEST_PROTOCOL_VERSION,
            newest_protocol=PROTOCOL_VERSION,
            coordinator_time=timestamp(service.clock()),
            public_sets=needed,
        )
