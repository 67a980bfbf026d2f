"""Enrolment: redeems a one-time join token for a certificate. The private key never leaves the folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import grpc.aio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from wire.consilium.v1 import enrolment_pb2, enrolment_pb2_grpc
from wire.errors import (
    AUTHORITY_MISMATCH,
    MESSAGE_MALFORMED,
    REQUEST_INVALID,
    TOKEN_EXPIRED,
    TOKEN_USED,
    ConfigurationError,
    Refusal,
)
from wire.identity.certificates import certificate_in, certificates_in
from wire.identity.files import IdentityFiles, discard_pending_key, key_pem, pending_key, stored_key
from wire.identity.identity import Certificate, Identity, Role, describe, signed_by
from wire.identity.join_token import JoinToken
from wire.net.address import split_address
from wire.net.channels import enrolment_channel, translated
from wire.net.proxy import Proxy
from wire.runtime.crash_points import crash_point

_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class EnrolledIdentity:
    """The stored files and the certificate in them."""

    files: IdentityFiles
    certificate: Certificate


async def join(
    token_line: str,
    folder: Path,
    clock: Callable[[], datetime],
    *,
    role: Role = Role.SILO,
    proxy: Proxy | None = None,
) -> EnrolledIdentity:
    """Redeems a token and stores the identity in `folder`; may be repeated after an interruption.

    The key is stored before it is used, so a repetition sends the same request and the coordinator can tell it
    from another party's use of the token.
    """
    token = JoinToken.parse(token_line)
    now = clock()
    _require_usable(token, role, now)
    existing = _existing_identity(folder, token)
    response, key = await _enrol_with_stored_key(token, folder, existing, now, proxy)
    certificate = _checked(response, token, key)
    files = IdentityFiles(
        folder=folder,
        key_pem=key_pem(key),
        certificate_pem=response.certificate_pem.encode(),
        authorities_pem=response.authorities_pem.encode(),
        coordinator_address=response.coordinator_address,
        consortium=token.consortium,
        name=token.name,
        token_id=token.token_id,
    )
    crash_point("join-answered")
    files.store()
    crash_point("join-stored")
    return EnrolledIdentity(files, certificate)


def _require_usable(token: JoinToken, role: Role, now: datetime) -> None:
    if now >= token.expires_at:
        expired = token.expires_at.strftime("%Y-%m-%d %H:%M UTC")
        raise Refusal(TOKEN_EXPIRED, name=token.name, expired=expired)
    if token.role is not role:
        raise ConfigurationError(
            f"The token is for {token.role} {token.name}.",
            "Silos join with `consilium agent join`, admins with `consilium admin join`.",
        )


def _existing_identity(folder: Path, token: JoinToken) -> IdentityFiles | None:
    """The identity in the folder, if any; ConfigurationError if it is another party's."""
    try:
        existing = IdentityFiles.load(folder, token.role)
    except ConfigurationError:
        return None
    if (existing.consortium, existing.name) != (token.consortium, token.name):
        raise ConfigurationError(
            f"{folder} already holds the identity of {existing.name} of {existing.consortium}; "
            f"the token is for {token.name} of {token.consortium}.",
            "Join from an empty folder: a silo's ledger and ballots belong to one name.",
        )
    return existing


def request_pem(key: ec.EllipticCurvePrivateKey, name: str) -> str:
    """A certificate request for `key`, in PEM."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return request.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


async def _enrol_with_stored_key(
    token: JoinToken,
    folder: Path,
    existing: IdentityFiles | None,
    now: datetime,
    proxy: Proxy | None,
) -> tuple[enrolment_pb2.EnrolResponse, ec.EllipticCurvePrivateKey]:
    """The coordinator's answer and the key it certified: the pending one, or the one an earlier try used."""
    key = pending_key(folder)
    crash_point("join-asking")
    try:
        return await _enrol(token, request_pem(key, token.name), now, proxy), key
    except Refusal as refusal:
        if refusal.is_a(TOKEN_USED) and existing is not None:
            # Perhaps by ourselves: killed after storing the identity and before reporting it.
            key = stored_key(existing)
        elif refusal.is_a(REQUEST_INVALID):
            # The key was certified and revoked in a renewal whose answer was lost.
            discard_pending_key(folder)
            key = pending_key(folder)
        else:
            raise
    return await _enrol(token, request_pem(key, token.name), now, proxy), key


async def _enrol(
    token: JoinToken, request_pem: str, now: datetime, proxy: Proxy | None
) -> enrolment_pb2.EnrolResponse:
    request = enrolment_pb2.EnrolRequest(
        token_id=token.token_id,
        token_secret=token.secret,
        certificate_request_pem=request_pem,
    )
    address = token.enrolment_address
    async with enrolment_channel(address, token.authority_pem, proxy=proxy) as channel:
        try:
            stub = enrolment_pb2_grpc.EnrolmentServiceStub(channel)
            return await stub.Enrol(request, timeout=_TIMEOUT_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise await translated(
                error,
                address,
                None,
                now=now,
                proxy=proxy,
                authorities_pem=token.authority_pem,
                wrong_authority=AUTHORITY_MISMATCH,
            ) from error


def _checked(
    response: enrolment_pb2.EnrolResponse, token: JoinToken, key: ec.EllipticCurvePrivateKey
) -> Certificate:
    """The received certificate, if it is for our key, the token's name, and from one of the received authorities.

    While an authority is being replaced, the server's certificate is still of the old one, which the token pins,
    and members' certificates are of the new one: hence the pinned authority must be among those received, and any
    of them may have issued the certificate.
    """
    split_address(response.coordinator_address)
    certificate_pem = response.certificate_pem.encode()
    authorities_pem = response.authorities_pem.encode()
    try:
        issued = certificate_in(certificate_pem)
        pinned = token.authority in certificates_in(authorities_pem)
    except ValueError as error:
        why = "the coordinator's answer holds no certificate"
        raise Refusal(MESSAGE_MALFORMED, why=why) from error
    if not pinned or not signed_by(certificate_pem, authorities_pem):
        raise Refusal(AUTHORITY_MISMATCH, address=token.enrolment_address)
    certificate = describe(issued)
    if certificate.identity != Identity(token.consortium, token.role, token.name):
        raise Refusal(MESSAGE_MALFORMED, why="the certificate is for another name than the token")
    if issued.public_key() != key.public_key():
        raise Refusal(MESSAGE_MALFORMED, why="the certificate is for another key than ours")
    return certificate
