"""Redeems join tokens: the only service that is called without a certificate."""

from __future__ import annotations

from typing import Any

import structlog

from coordinator.authority import key_hash
from coordinator.desk import Desk
from coordinator.news import Topic
from coordinator.services.identity import issuing
from coordinator.translation import role_message, timestamp
from wire.consilium.v1 import enrolment_pb2, enrolment_pb2_grpc
from wire.crash_points import crash_point
from wire.identity import read_certificate
from wire.join_token import secret_digest

log = structlog.get_logger()


class EnrolmentServicer(enrolment_pb2_grpc.EnrolmentServiceServicer):
    """A token against a certificate."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def Enrol(
        self, request: enrolment_pb2.EnrolRequest, context: Any
    ) -> enrolment_pb2.EnrolResponse:
        """Signs the request of whoever knows the token's secret."""
        desk = self._desk
        now = desk.clock()
        request_pem = request.certificate_request_pem.encode()

        role, name, pem = await desk.in_store(
            desk.store.members.redeem,
            request.token_id,
            secret_digest(request.token_secret),
            key_hash(request_pem),
            now,
            issuing(desk, request_pem, now),
        )
        crash_point("member-joined")
        log.info("member_joined", role=str(role), name=name)
        # A silo that comes back after it was revoked must be in good standing on the board, too.
        desk.news.announce(Topic.TASKS, Topic.BALLOTS)
        return enrolment_pb2.EnrolResponse(
            name=name,
            role=role_message(role),
            consortium=desk.settings.consortium,
            certificate_pem=pem,
            authorities_pem=desk.authorities.bundle_pem.decode(),
            coordinator_address=desk.settings.address,
            expires_at=timestamp(read_certificate(pem.encode()).not_after),
        )
