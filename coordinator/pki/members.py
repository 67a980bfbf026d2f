"""What members are given: a join token to begin with, then certificates for the keys they made themselves."""

from __future__ import annotations

from datetime import datetime, timedelta

from coordinator.pki.authority import Authority
from coordinator.pki.rotation import Authorities
from coordinator.settings import CoordinatorSettings
from coordinator.store.members import Issue
from coordinator.store.records import IssuedCertificate, TokenRecord
from wire.identity.identity import Role, read_certificate
from wire.identity.join_token import JoinToken, secret_digest


def new_token(
    settings: CoordinatorSettings,
    authorities: Authorities,
    role: Role,
    name: str,
    expires_at: datetime,
) -> tuple[JoinToken, TokenRecord]:
    """A join token for a member to be registered, and its record for the store, which holds no secret."""
    token = JoinToken.issue(
        settings.enrolment_address,
        settings.consortium,
        role,
        name,
        expires_at,
        # Signs what the server shows while the token is valid, also during a rotation.
        authorities.serving.certificate,
    )
    hashed = secret_digest(token.secret)
    return token, TokenRecord(token.token_id, role, token.name, hashed, token.expires_at)


def certificate_issuer(
    authority: Authority, lifetime: timedelta, request_pem: bytes, now: datetime
) -> Issue:
    """What the store calls to certify the key in `request_pem`, once it knows for whom."""

    def issue(role: Role, name: str) -> IssuedCertificate:
        pem = authority.issue(request_pem, role, name, lifetime, now)
        certificate = read_certificate(pem)
        return IssuedCertificate(pem.decode(), certificate.fingerprint, certificate.not_after)

    return issue
