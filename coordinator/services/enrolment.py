"""Redeems join tokens: the only service that is called without a certificate."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import structlog

from coordinator.authority import key_hash
from coordinator.desk import Desk
from coordinator.store.records import IssuedCertificate
from coordinator.translation import timestamp
from wire.consilium.v1 import enrolment_pb2, enrolment_pb2_grpc
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

        def issue(name: str) -> IssuedCertificate:
            lifetime = timedelta(seconds=desk.settings.certificate_lifetime)
            pem = desk.authority.issue_silo(request_pem, name, lifetime, now)
            certificate = read_certificate(pem)
            return IssuedCertificate(pem.decode(), certificate.fingerprint, certificate.not_after)

        name, pem = await desk.in_store(
            desk.store.silos.redeem,
            request.token_id,
            secret_digest(request.token_secret),
            key_hash(request_pem),
            now,
            issue,
        )
        log.info("silo_joined", silo=name)
        desk.conductor.ballots.ring()
        return enrolment_pb2.EnrolResponse(
            silo=name,
            consortium=desk.settings.consortium,
            certificate_pem=pem,
            authorities_pem=desk.authority.certificate_pem.decode(),
            coordinator_address=desk.settings.address,
            expires_at=timestamp(read_certificate(pem.encode()).not_after),
        )
