"""The consortium's certificate authority: a key on disk that signs silos, admins and servers."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coordinator.pki.key_request import PublicKey, requested_key
from wire.errors import NAME_INVALID, ConfigurationError, Refusal
from wire.identity.files import key_pem, new_key
from wire.identity.identity import BACKDATED, Identity, Role, fingerprint_of
from wire.identity.naming import valid_name
from wire.runtime.files import sync_folder, write_atomically

AUTHORITY_LIFETIME = timedelta(days=3650)
_KEY_FILE = "authority-key.pem"
_CERTIFICATE_FILE = "authority.pem"
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


@dataclass(frozen=True)
class IssuedKey:
    """A private key made here, with its certificate followed by the authority's (PEM)."""

    key_pem: bytes = field(repr=False)
    certificate_pem: bytes = field(repr=False)

    def store(self, key_path: Path, certificate_path: Path) -> None:
        """Writes both files; only the owner may read the key."""
        write_atomically(key_path, self.key_pem, 0o600)
        write_atomically(certificate_path, self.certificate_pem)


@dataclass(frozen=True)
class Authority:
    """Signs certificates for one consortium. `now` is always an aware UTC time."""

    consortium: str
    certificate: x509.Certificate
    _key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def create(
        cls,
        folder: Path,
        consortium: str,
        now: datetime,
        lifetime: timedelta = AUTHORITY_LIFETIME,
        *,
        generation: int = 1,
    ) -> Authority:
        """Makes a new authority in `folder`; never replaces one that is there."""
        if not valid_name(consortium):
            raise Refusal(NAME_INVALID, what="The consortium", name=consortium)
        if (folder / _CERTIFICATE_FILE).exists():
            raise ConfigurationError(
                f"{folder / _CERTIFICATE_FILE} exists: this folder already holds an authority.",
                "Keep it: a new one would lock out every silo. For another consortium choose another folder.",
            )
        # A key without a certificate is what an interrupted `create` leaves: go on with it.
        if (folder / _KEY_FILE).exists():
            key = _load_key(folder / _KEY_FILE)
        else:
            key = new_key()
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(folder / _KEY_FILE, key_pem(key), 0o600)
        title = "Consilium authority" + (f" {generation}" if generation > 1 else "")
        name = _subject(title, consortium)
        public = key.public_key()
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACKDATED)
            .not_valid_after(now + lifetime)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(key, hashes.SHA256())
        )
        write_atomically(folder / _CERTIFICATE_FILE, certificate.public_bytes(Encoding.PEM))
        return cls(consortium, certificate, key)

    @classmethod
    def load(cls, folder: Path) -> Authority:
        """Reads the authority that `create` made; ConfigurationError if it is not whole."""
        path = folder / _CERTIFICATE_FILE
        try:
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
            organisation = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
            consortium = str(organisation[0].value)
        except FileNotFoundError:
            raise ConfigurationError(
                f"There is no authority in {folder}.",
                "Make one with `consilium coordinator init`, or name the folder that holds it.",
            ) from None
        except (ValueError, IndexError) as error:
            raise _unusable(path) from error
        key = _load_key(folder / _KEY_FILE)
        if key.public_key() != certificate.public_key():
            raise _unusable(folder / _KEY_FILE)
        return cls(consortium, certificate, key)

    @staticmethod
    def destroy_key(folder: Path) -> None:
        """Makes sure that the authority in `folder` never signs again; its certificate stays."""
        (folder / _KEY_FILE).unlink(missing_ok=True)
        sync_folder(folder)

    @property
    def certificate_pem(self) -> bytes:
        """What everyone in the consortium trusts."""
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the authority's certificate, for people to compare."""
        return fingerprint_of(self.certificate)

    def issue(
        self, request_pem: bytes, role: Role, name: str, lifetime: timedelta, now: datetime
    ) -> bytes:
        """Certifies the key in a request as `role` `name`; whatever else the request says is ignored."""
        return self._issue(requested_key(request_pem), role, name, lifetime, now)

    def issue_admin(self, name: str, lifetime: timedelta, now: datetime) -> IssuedKey:
        """Makes a key and its certificate for admin `name`."""
        key = new_key()
        certificate = self._issue(key.public_key(), Role.ADMIN, name, lifetime, now)
        return IssuedKey(key_pem(key), certificate)

    def issue_server(
        self,
        hosts: Sequence[str],
        lifetime: timedelta,
        now: datetime,
        name: str = "coordinator",
    ) -> IssuedKey:
        """Makes a key and its certificate for a server reached as `hosts` (names or IP addresses)."""
        if not hosts:
            raise ConfigurationError(
                "The server has no host name.",
                "Name every host name or IP address under which silos reach the coordinator.",
            )
        key = new_key()
        names = [_host_name(host) for host in hosts]
        certificate = self._issue(key.public_key(), Role.COORDINATOR, name, lifetime, now, names)
        return IssuedKey(key_pem(key), certificate)

    def _issue(
        self,
        public: PublicKey,
        role: Role,
        name: str,
        lifetime: timedelta,
        now: datetime,
        hosts: Sequence[x509.GeneralName] = (),
    ) -> bytes:
        if not valid_name(name):
            raise Refusal(NAME_INVALID, what=f"The {role}", name=name)
        uri = x509.UniformResourceIdentifier(Identity(self.consortium, role, name).uri)
        issuer = self._key.public_key()
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_subject(name, self.consortium))
            .issuer_name(self.certificate.subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACKDATED)
            .not_valid_after(min(now + lifetime, self.certificate.not_valid_after_utc))
            .add_extension(x509.SubjectAlternativeName([uri, *hosts]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([_purpose(role)]), critical=False)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(Encoding.PEM) + self.certificate_pem


def names_hosts(certificate_pem: bytes, hosts: Sequence[str]) -> bool:
    """True if a server's certificate is for exactly these hosts."""
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    shown = {name for name in names if not isinstance(name, x509.UniformResourceIdentifier)}
    return shown == {_host_name(host) for host in hosts}


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except FileNotFoundError:
        raise ConfigurationError(
            f"{path} is missing; without it the authority cannot sign.",
            "Restore it from the backup of this folder.",
        ) from None
    except (ValueError, TypeError) as error:
        raise _unusable(path) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise _unusable(path)
    return key


def _unusable(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is damaged or not this authority's.", "Restore it from the backup of its folder."
    )


def _subject(common_name: str, consortium: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, consortium),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _HOST.fullmatch(host):
        raise ConfigurationError(
            f"{host!r} is not a host name.", "Give names or IP addresses without a port."
        )
    return x509.DNSName(host)


def _purpose(role: Role) -> x509.ObjectIdentifier:
    """A silo must not be able to pose as the coordinator, nor the coordinator as a silo."""
    match role:
        case Role.COORDINATOR:
            return ExtendedKeyUsageOID.SERVER_AUTH
        case Role.SILO | Role.ADMIN:
            return ExtendedKeyUsageOID.CLIENT_AUTH


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
