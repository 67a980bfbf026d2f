"""Renews a member's certificate over the connection authenticated by its current one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime

from cryptography.hazmat.primitives.asymmetric import ec

from wire.consilium.v1 import identity_pb2
from wire.errors import AUTHORITY_MISMATCH, MESSAGE_MALFORMED, REQUEST_INVALID, Refusal
from wire.identity.certificates import certificate_in
from wire.identity.files import IdentityFiles, discard_pending_key, key_pem, pending_key
from wire.identity.identity import Certificate, describe, signed_by
from wire.net.enrolment import request_pem
from wire.runtime.crash_points import crash_point

RenewCall = Callable[[identity_pb2.RenewRequest], Awaitable[identity_pb2.RenewResponse]]

_DUE_FRACTION = 2 / 3
_JITTER_FRACTION = 1 / 20


def renewal_due_at(certificate: Certificate, jitter: float = 0.0) -> datetime:
    """When to renew: after two thirds of its lifetime, less `jitter` in [0, 1) times a twentieth of it."""
    return certificate.issued_at + (_DUE_FRACTION - _JITTER_FRACTION * jitter) * certificate.life


async def renew_identity(files: IdentityFiles, call: RenewCall, now: datetime) -> IdentityFiles:
    """The next identity, verified and stored; until it is used, the current one stays valid.

    A crash anywhere leaves one of the two in the folder. The new key is stored before it is used, so that the
    request repeated after a lost answer gives the same certificate.
    """
    try:
        fresh, certificate = await _request_certificate(files, call)
        stale = renewal_due_at(certificate) <= now
    except Refusal as refusal:
        if not refusal.is_a(REQUEST_INVALID):
            raise
        stale = True
    if stale:
        # The key was certified long ago and the answer lost; that certificate is old or revoked by now.
        discard_pending_key(files.folder)
        fresh, _ = await _request_certificate(files, call)
    crash_point("renewal-answered")
    fresh.store()
    crash_point("renewal-stored")
    return fresh


async def _request_certificate(
    files: IdentityFiles, call: RenewCall
) -> tuple[IdentityFiles, Certificate]:
    key = pending_key(files.folder)
    crash_point("renewal-asking")
    request = identity_pb2.RenewRequest(certificate_request_pem=request_pem(key, files.name))
    response = await call(request)
    fresh = replace(
        files,
        key_pem=key_pem(key),
        certificate_pem=response.certificate_pem.encode(),
        authorities_pem=response.authorities_pem.encode(),
    )
    return fresh, _checked(fresh, files, key)


def _checked(
    fresh: IdentityFiles, files: IdentityFiles, key: ec.EllipticCurvePrivateKey
) -> Certificate:
    """The new certificate, if it is for our key and our name and from an authority in the new bundle.

    The bundle itself needs no further proof: it came from a server that the current bundle verified.
    """
    try:
        issued = certificate_in(fresh.certificate_pem)
        trusted = signed_by(fresh.certificate_pem, fresh.authorities_pem)
    except ValueError as error:
        why = "the coordinator's answer holds no certificate"
        raise Refusal(MESSAGE_MALFORMED, why=why) from error
    if not trusted:
        raise Refusal(AUTHORITY_MISMATCH, address=files.coordinator_address)
    certificate = describe(issued)
    if certificate.identity != files.certificate.identity:
        raise Refusal(MESSAGE_MALFORMED, why="the new certificate is for another name than ours")
    if issued.public_key() != key.public_key():
        raise Refusal(MESSAGE_MALFORMED, why="the new certificate is for another key than ours")
    return certificate
