"""A party's identity folder: key, certificate, trusted authorities and connection, stored crash-safely."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from wire.errors import ConfigurationError
from wire.identity.certificates import certificate_in, certificates_in
from wire.identity.identity import Certificate, Role, fingerprint_of, read_certificate
from wire.runtime.files import sync_folder, write_atomically

_KEY = "key.pem"
_PENDING_KEY = "pending-key.pem"
_CERTIFICATE = "certificate.pem"
_AUTHORITIES = "authorities.pem"
_CONNECTION = "connection.json"


def new_key() -> ec.EllipticCurvePrivateKey:
    """A new P-256 key, which every TLS library involved supports."""
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
    """Identifier of the join token it was enrolled with; empty if there was none or an older version enrolled it."""

    @property
    def certificate(self) -> Certificate:
        """The parsed certificate."""
        return read_certificate(self.certificate_pem)

    @property
    def key_path(self) -> Path:
        """Path of the key, for libraries that only read files."""
        return self.folder / _KEY

    @property
    def certificate_path(self) -> Path:
        """Path of the certificate, for libraries that only read files."""
        return self.folder / _CERTIFICATE

    @property
    def authorities(self) -> dict[str, x509.Certificate]:
        """The trusted authorities by fingerprint."""
        found = certificates_in(self.authorities_pem)
        return {fingerprint_of(authority): authority for authority in found}

    @classmethod
    def load(cls, folder: Path, role: Role = Role.SILO) -> IdentityFiles:
        """Reads the folder; ConfigurationError if a file is missing or damaged or the key is not the certificate's."""
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
        # From this write on the pending key is the matching one, and `load` uses it.
        write_atomically(self.folder / _CERTIFICATE, self.certificate_pem)
        _promote_pending_key(self.folder)


def pending_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    """The key of the next certificate, stored before that is requested, so that the request can be repeated."""
    path = folder / _PENDING_KEY
    try:
        kept = load_pem_private_key(path.read_bytes(), None)
        if isinstance(kept, ec.EllipticCurvePrivateKey):
            return kept
    except (FileNotFoundError, ValueError, TypeError):
        # It has no certificate yet, so an unreadable one is replaced.
        pass
    key = new_key()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(path, key_pem(key), 0o600)
    return key


def stored_key(files: IdentityFiles) -> ec.EllipticCurvePrivateKey:
    """The key of an identity; ConfigurationError if it is not an elliptic-curve key."""
    key = load_pem_private_key(files.key_pem, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigurationError(f"{files.key_path} is no P-256 key.", "Join with a new token.")
    return key


def discard_pending_key(folder: Path) -> None:
    """Deletes the key of a certificate that will not be requested."""
    (folder / _PENDING_KEY).unlink(missing_ok=True)
    sync_folder(folder)


def _promote_pending_key(folder: Path) -> None:
    # A process that loads the folder at the same time may have done it already.
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
            matches = load_pem_private_key(pem, None).public_key() == public
        except (ValueError, TypeError) as error:
            raise _damaged(path, role) from error
        if matches:
            # A crash in `store` left the matching key pending: finish what it began.
            if path.name == _PENDING_KEY:
                _promote_pending_key(folder)
            return pem
    raise ConfigurationError(
        f"{folder / _KEY} does not belong to the certificate beside it.", _ABSENT[role][1]
    )
