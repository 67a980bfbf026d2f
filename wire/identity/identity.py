"""A party's identity: the role and name in the SAN URI of its certificate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes

from wire.errors import (
    ADMIN_CERTIFICATE_EXPIRED,
    CERTIFICATE_EXPIRED,
    Refusal,
)
from wire.identity.certificates import certificate_in, certificates_in
from wire.identity.naming import valid_name

# Certificates are backdated, because a hospital's clock may be a little behind. Both ends know by how much, so
# that a lifetime can be counted from the time of issue.
BACKDATED = timedelta(minutes=5)

_SCHEME = "spiffe"


class Role(StrEnum):
    """The kinds of parties; one certificate has one role."""

    SILO = "silo"
    ADMIN = "admin"
    COORDINATOR = "coordinator"


@dataclass(frozen=True)
class Identity:
    """One party of a consortium; ValueError unless consortium and name are valid names."""

    consortium: str
    role: Role
    name: str

    def __post_init__(self) -> None:
        for part in (self.consortium, self.name):
            if not valid_name(part):
                raise ValueError(f"{part!r} is not a valid name")

    @property
    def uri(self) -> str:
        """`spiffe://<consortium>/<role>/<name>`."""
        return f"{_SCHEME}://{self.consortium}/{self.role}/{self.name}"

    @classmethod
    def from_uri(cls, uri: str) -> Identity | None:
        """The identity whose `uri` this is, character for character; else None."""
        try:
            parts = urlsplit(uri)
            _, role, name = parts.path.split("/")
            identity = cls(parts.netloc, Role(role), name)
        except ValueError:
            return None
        # A query, fragment, port or capital letter would make it another spelling of the same name.
        return identity if identity.uri == uri else None


@dataclass(frozen=True)
class Certificate:
    """The parts of a certificate we use; `identity` is None if it names no party of a consortium."""

    identity: Identity | None
    fingerprint: str
    issuer: str
    not_before: datetime
    not_after: datetime

    @property
    def issued_at(self) -> datetime:
        """When the authority signed it, by the coordinator's clock."""
        return self.not_before + BACKDATED

    @property
    def life(self) -> timedelta:
        """From issue to expiry."""
        return self.not_after - self.issued_at


def fingerprint_of(certificate: x509.Certificate) -> str:
    """Lower-case hexadecimal SHA-256 of the certificate's DER form."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def describe(certificate: x509.Certificate) -> Certificate:
    """Reads identity, fingerprint, issuer and validity (aware, UTC)."""
    return Certificate(
        identity=_identity_in(certificate),
        fingerprint=fingerprint_of(certificate),
        issuer=certificate.issuer.rfc4514_string(),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
    )


def read_certificate(pem: bytes) -> Certificate:
    """Reads the first certificate in a PEM text; ValueError if there is none."""
    return describe(certificate_in(pem))


def expiry_refusal(certificate: Certificate) -> Refusal:
    """The refusal for an expired certificate; silos and admins get a new one in different ways."""
    identity = certificate.identity
    is_admin = identity is not None and identity.role is Role.ADMIN
    return Refusal(
        ADMIN_CERTIFICATE_EXPIRED if is_admin else CERTIFICATE_EXPIRED,
        name=identity.name if identity else "the caller",
        expired=f"{certificate.not_after:%Y-%m-%d %H:%M:%S} UTC",
    )


def signed_by(certificate_pem: bytes, authorities_pem: bytes) -> bool:
    """True if one of the authorities issued the first certificate of a PEM text."""
    return issuer_of(certificate_pem, authorities_pem) is not None


def issuer_of(certificate_pem: bytes, authorities_pem: bytes) -> str | None:
    """Fingerprint of the authority that issued the first certificate of a PEM text; None if it is none of these."""
    certificate = certificate_in(certificate_pem)
    for authority in certificates_in(authorities_pem):
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            continue
        return fingerprint_of(authority)
    return None


def presented_certificate(auth_context: Mapping[str, Iterable[bytes]]) -> Certificate | None:
    """The certificate a gRPC caller presented (`context.auth_context()`), or None."""
    presented = list(auth_context.get("x509_pem_cert", ()))
    return _read_once(presented[0]) if len(presented) == 1 else None


@lru_cache(maxsize=1024)
def _read_once(pem: bytes) -> Certificate | None:
    """Cached: callers present the same certificate with every call, and parsing it costs more than most calls."""
    try:
        return read_certificate(pem)
    except ValueError:
        return None


def _identity_in(certificate: x509.Certificate) -> Identity | None:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    identities = [uri for uri in uris if uri.lower().startswith(f"{_SCHEME}:")]
    # Two identities would be ambiguous, hence count as none.
    return Identity.from_uri(identities[0]) if len(identities) == 1 else None
