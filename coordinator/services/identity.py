"""Members keep their identity: renewal, the certificate behind receipts, and how they are known."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import structlog

from coordinator.authority import key_hash
from coordinator.desk import Desk
from coordinator.gate import caller
from coordinator.store.members import Issue
from coordinator.store.records import IssuedCertificate
from coordinator.translation import role_message, timestamp
from wire import OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION, __version__
from wire.consilium.v1 import identity_pb2, identity_pb2_grpc, task_pb2
from wire.crash_points import crash_point
from wire.identity import Role, read_certificate

log = structlog.get_logger()


class IdentityServicer(identity_pb2_grpc.IdentityServiceServicer):
    """Called by members in good standing; the gate has seen to that."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def Renew(
        self, request: identity_pb2.RenewRequest, context: Any
    ) -> identity_pb2.RenewResponse:
        """Certifies the caller's next key."""
        desk, now, member = self._desk, self._desk.clock(), caller()
        request_pem = request.certificate_request_pem.encode()
        pem = await desk.in_store(
            desk.store.members.renew,
            member.role,
            member.name,
            key_hash(request_pem),
            now,
            issuing(desk, request_pem, now),
        )
        crash_point("certificate-renewed")
        desk.metrics.renewals.labels(str(member.role)).inc()
        log.info("certificate_renewed", role=str(member.role), name=member.name)
        return identity_pb2.RenewResponse(
            certificate_pem=pem,
            authorities_pem=desk.authorities.bundle_pem.decode(),
            expires_at=timestamp(read_certificate(pem.encode()).not_after),
        )

    async def GetSigner(
        self, request: identity_pb2.GetSignerRequest, context: Any
    ) -> identity_pb2.GetSignerResponse:
        """The certificate a receipt names."""
        desk = self._desk
        fingerprint = request.fingerprint or desk.signer.fingerprint
        pem = await desk.in_store(desk.store.signers.get, fingerprint)
        return identity_pb2.GetSignerResponse(certificate_pem=pem)

    async def WhoAmI(
        self, request: identity_pb2.WhoAmIRequest, context: Any
    ) -> identity_pb2.WhoAmIResponse:
        """How the caller is known here, and what it will need."""
        desk, member = self._desk, caller()
        notices = await desk.board.notices(member.name, 0) if member.role is Role.SILO else []
        running = (task for task in notices if task.status == task_pb2.TASK_STATUS_RUNNING)
        return identity_pb2.WhoAmIResponse(
            consortium=member.consortium,
            role=role_message(member.role),
            name=member.name,
            coordinator_version=__version__,
            oldest_protocol=OLDEST_PROTOCOL_VERSION,
            newest_protocol=PROTOCOL_VERSION,
            coordinator_time=timestamp(desk.clock()),
            public_sets=sorted({task.definition.public_set for task in running}),
        )


def issuing(desk: Desk, request_pem: bytes, now: datetime) -> Issue:
    """What the store calls to certify the key in `request_pem`, once it knows for whom."""

    def issue(role: Role, name: str) -> IssuedCertificate:
        lifetime = timedelta(seconds=desk.settings.certificate_lifetime)
        pem = desk.authority.issue(request_pem, role, name, lifetime, now)
        certificate = read_certificate(pem)
        return IssuedCertificate(pem.decode(), certificate.fingerprint, certificate.not_after)

    return issue
