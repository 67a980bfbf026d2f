"""Redeems join tokens: the only service that is called without a certificate."""

from __future__ import annotations

from typing import Any

import structlog

from coordinator.api.translation import role_message, timestamp
from coordinator.context import ServiceContext
from coordinator.pki.key_request import key_hash
from coordinator.pki.members import certificate_issuer
from coordinator.rounds.change_bus import Topic
from wire.consilium.v1 import enrolment_pb2, enrolment_pb2_grpc
from wire.identity.identity import read_certificate
from wire.identity.join_token import secret_digest
from wire.runtime.crash_points import crash_point

log = structlog.get_logger()


class EnrolmentServicer(enrolment_pb2_grpc.EnrolmentServiceServicer):
    """Exchanges a join token for a certificate."""

    def __init__(self, service: ServiceContext) -> None:
        self._service = service

    async def Enrol(
        self, request: enrolment_pb2.EnrolRequest, context: Any
    ) -> enrolment_pb2.EnrolResponse:
        """Signs the request of whoever knows the token's secret."""
        service = self._service
        now = service.clock()
        request_pem = request.certificate_request_pem.encode()

        role, name, pem = await service.in_store(
            service.store.members.redeem,
            request.token_id,
            secret_digest(request.token_secret),
            key_hash(request_pem),
            now,
            certificate_issuer(service.authority, service.certificate_lifetime, request_pem, now),
        )
        crash_point("member-joined")
        log.info("member_joined", role=str(role), name=name)
        # A silo that comes back after it was revoked must be in good standing in the task cache, too.
        service.change_bus.announce(Topic.TASKS, Topic.BALLOTS, Topic.MEMBERS)
        return enrolment_pb2.EnrolResponse(
            name=name,
            role=role_message(role),
            consortium=service.settings.consortium,
            certificate_pem=pem,
            authorities_pem=service.authorities.bundle_pem.decode(),
            coordinator_address=service.settings.address,
            expires_at=timestamp(read_certificate(pem.encode()).not_after),
        )
