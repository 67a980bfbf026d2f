"""Who someone is: the name in a certificate's SAN URI, and the files that prove it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from wire.certificates import certificate_in, certificates_in
from wire.errors import (
    ADMIN_CERTIFICATE_EXPIRED,
    CERTIFICATE_EXPIRED,
    ConfigurationError,
    Refusal,
)
from wire.files import sync_folder, write_atomically
from wire.naming import valid_name

# Hospitals' clocks drift; a certificate must hold on a machine that is a little behind. Both ends know by how
# much certificates begin before they are issued, so that their life can be counted from their issue.
BACKDATED = timedelta(minutes=5)

_SCHEME = "spiffe"
_KEY = "key.pem"
_PENDING_KEY = "pending-key.pem"
_CERTIFICATE = "certificate.pem"
_AUTHORITIES = "authorities.pem"
_CONNECTION = "connection.json"


class Role(StrEnum):
    """What a certificate entitles its holder to be."""

    SILO = "silo"
    ADMIN = "admin"
    COORDINATOR = "coordinator"


@dataclass(frozen=True)
class Identity:
    """One party of a consortium; all three parts are valid names."""

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
        """The identity a URI spells, or None unless it spells one exactly as `uri` would."""
        try:
            parts = urlsplit(uri)
            _, role, name = parts.path.split("/")
            identity = cls(parts.netloc, Role(role), name)
        except ValueError:
            return None
        # Queries, fragments, ports and capitals are variants of a name, hence nobody.
        return identity if identity.uri == uri else None


@dataclass(frozen=True)
class Certificate:
    """What we read in a certificate; `identity` is None if it names no party of a consortium."""

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
        """From its issue to its end."""
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
    """What its holder is told of a certificate that has ended: silos and admins come back by different ways."""
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
    """Callers present the same certificate with every call, and reading it costs more than many of their calls."""
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
    # Two identities in one certificate are as good as none: we would have to choose.
    return Identity.from_uri(identities[0]) if len(identities) == 1 else None


def new_key() -> ec.EllipticCurvePrivateKey:
    """A fresh P-256 key: what every TLS stack in the system accepts."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The key as unencrypted PKCS#8; it may only go into a file of mode 0600."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


_ABSENT = {
    Role.SILO: (
        "This silo has not joined yet: {path} is missing.",
        "Join with the token the consortium's admin sent: `consilium agent join TOKEN`.",
    ),
    Role.ADMIN: (
        "There is no admin's identity here: {path} is missing.",
        "Name the folder that `consilium coordinator init` made for the admin; if it is lost, `consilium coordinator admit-admin` on the coordinator's host makes another.",
    ),
    Role.COORDINATOR: (
        "The coordinator has no identity yet: {path} is missing.",
        "Make it with `consilium coordinator init`.",
    ),
}


@dataclass(frozen=True)
class IdentityFiles:
    """A party's folder: key, certificate, trusted authorities (PEM) and where to connect."""

    folder: Path
    key_pem: bytes = field(repr=False)
    certificate_pem: bytes = field(repr=False)
    authorities_pem: bytes = field(repr=False)
    coordinator_address: str
    consortium: str
    name: str
    token_id: str = ""
    """Of the join token that began it; empty if it began without one, or before this was kept."""

    @property
    def certificate(self) -> Certificate:
        """What our own certificate says."""
        return read_certificate(self.certificate_pem)

    @property
    def key_path(self) -> Path:
        """Where the key lies, for libraries that only read files."""
        return self.folder / _KEY

    @property
    def certificate_path(self) -> Path:
        """Where the certificate lies, for libraries that only read files."""
        return self.folder / _CERTIFICATE

    @property
    def authorities(self) -> dict[str, x509.Certificate]:
        """The trusted authorities by fingerprint."""
        found = certificates_in(self.authorities_pem)
        return {fingerprint_of(authority): authority for authority in found}

    @classmethod
    def load(cls, folder: Path, role: Role = Role.SILO) -> IdentityFiles:
        """Reads the folder; ConfigurationError if a file is missing, damaged or another's."""
        connection_path = folder / _CONNECTION
        certificate_pem = _read(folder / _CERTIFICATE, role)
        try:
            connection = json.loads(_read(connection_path, role))
            address, consortium, name = (
                str(connection[key]) for key in ("coordinator_address", "consortium", "name")
            )
            token_id = str(connection.get("token_id", ""))
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged(connection_path, role) from error
        return cls(
            folder=folder,
            key_pem=_matching_key(folder, certificate_pem, role),
            certificate_pem=certificate_pem,
            authorities_pem=_read(folder / _AUTHORITIES, role),
            coordinator_address=address,
            consortium=consortium,
            name=name,
            token_id=token_id,
        )

    def store(self) -> None:
        """Writes the folder so that a crash leaves the old identity or the new one, never a mixture."""
        connection = {
            "coordinator_address": self.coordinator_address,
            "consortium": self.consortium,
            "name": self.name,
            "token_id": self.token_id,
        }
        write_atomically(self.folder / _PENDING_KEY, self.key_pem, 0o600)
        write_atomically(self.folder / _AUTHORITIES, self.authorities_pem)
        write_atomically(self.folder / _CONNECTION, json.dumps(connection, indent=2).encode())
        # From this write on the pending key is the one that fits, and `load` prefers it.
        write_atomically(self.folder / _CERTIFICATE, self.certificate_pem)
        _keep_pending_key(self.folder)


def pending_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    """A key kept on disk before its certificate is asked for, so that asking can be repeated."""
    path = folder / _PENDING_KEY
    try:
        kept = load_pem_private_key(path.read_bytes(), None)
        if isinstance(kept, ec.EllipticCurvePrivateKey):
            return kept
    except (FileNotFoundError, ValueError, TypeError):
        # Nothing was certified for it yet, so an unreadable one is no loss.
        pass
    key = new_key()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(path, key_pem(key), 0o600)
    return key


def stored_key(files: IdentityFiles) -> ec.EllipticCurvePrivateKey:
    """The key of an identity; ConfigurationError if it is of a kind that we never make."""
    key = load_pem_private_key(files.key_pem, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigurationError(f"{files.key_path} is no P-256 key.", "Join with a new token.")
    return key


def discard_pending_key(folder: Path) -> None:
    """Forgets a key that will not be used after all."""
    (folder / _PENDING_KEY).unlink(missing_ok=True)
    sync_folder(folder)


def _keep_pending_key(folder: Path) -> None:
    # Whoever loads the folder at this very moment may already have done it.
    with suppress(FileNotFoundError):
        (folder / _PENDING_KEY).replace(folder / _KEY)
    sync_folder(folder)


def _read(path: Path, role: Role) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        sentence, hint = _ABSENT[role]
        raise ConfigurationError(sentence.format(path=path), hint) from None
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error.strerror}.",
            "Run this as the user the folder belongs to.",
        ) from error


def _damaged(path: Path, role: Role) -> ConfigurationError:
    return ConfigurationError(f"{path} is damaged.", _ABSENT[role][1])


def _matching_key(folder: Path, certificate_pem: bytes, role: Role) -> bytes:
    try:
        public = certificate_in(certificate_pem).public_key()
    except ValueError as error:
        raise _damaged(folder / _CERTIFICATE, role) from error
    kept = [path for path in (folder / _KEY, folder / _PENDING_KEY) if path.exists()]
    for path in kept or [folder / _KEY]:
        pem = _read(path, role)
        try:
            fits = load_pem_private_key(pem, None).public_key() == public
        except (ValueError, TypeError) as error:
            raise _damaged(path, role) from error
        if fits:
            # A crash in `store` left the fitting key pending: finish what it began.
            if path.name == _PENDING_KEY:
                _keep_pending_key(folder)
            return pem
    raise ConfigurationError(
        f"{folder / _KEY} does not belong to the certificate beside it.", _ABSENT[role][1]
    )
