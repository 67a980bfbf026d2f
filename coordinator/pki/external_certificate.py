"""A server certificate that another program provides and renews, such as cert-manager: checked before it is used.

It must come from the authority members trust. The coordinator serves a copy in its own folder and never writes to the
folder of the other program, so the last good one survives a restart and whatever is provided next.
"""

from __future__ import annotations

import ipaddress
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from coordinator.pki.authority import IssuedKey
from coordinator.pki.credentials import ServerLeaf, server_files
from coordinator.pki.rotation import Authorities
from coordinator.settings import CoordinatorHome, CoordinatorSettings
from wire.errors import ConfigurationError
from wire.identity.certificates import certificate_in
from wire.identity.identity import Role, signed_by
from wire.runtime.files import locked

_GUIDE = "docs/certificates.md says what it must contain."


def external_files(folder: Path) -> tuple[Path, Path]:
    """Key and certificate as a Secret of type kubernetes.io/tls names them."""
    return folder / "tls.key", folder / "tls.crt"


def adopt_external_leaf(
    home: CoordinatorHome,
    folder: Path,
    settings: CoordinatorSettings,
    authorities: Authorities,
    now: datetime,
) -> bool:
    """Copies the certificate in `folder` to where it is served from; False if it is there or has to wait.

    It waits, as long as the present one is valid, for the end of a rotation if the next authority signed it, and
    until clocks that are a little behind find it valid. ConfigurationError says in a sentence why it cannot be used.
    """
    leaf = _read(folder, authorities)
    present = _present(home, settings, authorities, now)
    if leaf == present:
        return False
    flaw = _flaw(leaf, settings, authorities.bundle_pem, now)
    if flaw is not None:
        raise _refused(folder, *flaw)
    known = signed_by(leaf.certificate_pem, authorities.serving.certificate_pem)
    if present is not None and (not known or now < leaf.certificate.issued_at):
        return False
    if not known:
        raise _refused(
            folder,
            "was signed by the new authority, which members may not know yet",
            "Provide one of the old authority until `consilium coordinator rotate-authority --finish`.",
        )
    with locked(home.server):
        IssuedKey(leaf.key_pem, leaf.certificate_pem).store(*server_files(home.server))
    return True


def check_before_finish(
    home: CoordinatorHome, settings: CoordinatorSettings, authorities: Authorities, now: datetime
) -> None:
    """ConfigurationError if the provided certificate would not be trusted once a rotation is finished."""
    folder = home.external_certificate_folder(settings)
    if folder is None or authorities.previous is None:
        return
    leaf = _read(folder, authorities)
    flaw = _flaw(leaf, settings, authorities.signing.certificate_pem, now)
    if flaw is not None:
        raise _refused(
            folder,
            flaw[0],
            "Have it issued by the new authority first; it is shown as soon as the rotation is finished.",
        )


def _read(folder: Path, authorities: Authorities) -> ServerLeaf:
    """The provided certificate with its key, followed by the authority that members trust."""
    key_path, certificate_path = external_files(folder)
    try:
        key = key_path.read_bytes()
        pem = certificate_in(certificate_path.read_bytes()).public_bytes(Encoding.PEM)
        ours = signed_by(pem, authorities.serving.certificate_pem)
        issuer = authorities.serving if ours else authorities.signing
        return ServerLeaf.of(key, pem + issuer.certificate_pem)
    except OSError as error:
        path = Path(error.filename or folder).name
        why = f"cannot be used: {path}: {error.strerror}"
        hint = "Whoever renews it puts `tls.crt` and `tls.key` there, readable by the coordinator."
        raise _refused(folder, why, hint) from error
    except (ValueError, TypeError) as error:
        raise _refused(folder, f"cannot be used: {error}", _GUIDE) from error


def _present(
    home: CoordinatorHome, settings: CoordinatorSettings, authorities: Authorities, now: datetime
) -> ServerLeaf | None:
    """The certificate served now, if it is still good."""
    try:
        leaf = ServerLeaf.read(home.server)
    except ConfigurationError:
        return None
    flawed = _flaw(leaf, settings, authorities.serving.certificate_pem, now)
    return None if flawed else leaf


def _flaw(
    leaf: ServerLeaf, settings: CoordinatorSettings, trusted_pem: bytes, now: datetime
) -> tuple[str, str] | None:
    """What is wrong with it and what to do; None if members would accept it and its receipts."""
    certificate, said = certificate_in(leaf.certificate_pem), leaf.certificate
    if not signed_by(leaf.certificate_pem, trusted_pem):
        return (
            f"was signed by {said.issuer}, which is not the authority members trust",
            "Have it issued by the authority in the coordinator's folder; " + _GUIDE,
        )
    if now > said.not_after:
        return f"expired at {said.not_after:%Y-%m-%d %H:%M UTC}", "See why nobody renewed it."
    if now < said.not_before:
        begins = f"{said.not_before:%Y-%m-%d %H:%M UTC}"
        return f"is not valid before {begins}", "Compare the clocks of the two machines."
    absent = _absent_hosts(certificate, settings.hosts)
    if absent:
        names = ", ".join(absent)
        return f"lacks {names} of `hosts`", "Have it issued for every name in coordinator.yaml."
    identity = said.identity
    if identity is None or (identity.role, identity.consortium) != (
        Role.COORDINATOR,
        settings.consortium,
    ):
        uri = f"spiffe://{settings.consortium}/{Role.COORDINATOR}/coordinator"
        return f"does not name the coordinator by the URI {uri}", _GUIDE
    if not _for_servers(certificate):
        return "is not for TLS servers with a P-256 or P-384 key", _GUIDE
    return None


def _absent_hosts(certificate: x509.Certificate, hosts: tuple[str, ...]) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return list(hosts)
    shown = {name.lower() for name in names.get_values_for_type(x509.DNSName)}
    addresses = {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    return [host for host in hosts if _canonical(host) not in shown | addresses]


def _canonical(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower()


def _for_servers(certificate: x509.Certificate) -> bool:
    """What TLS asks of a server's certificate and our clients' TLS of its key."""
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    if not isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1):
        return False
    try:
        uses = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
        purposes = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return False
    return uses.digital_signature and ExtendedKeyUsageOID.SERVER_AUTH in purposes


def _refused(folder: Path, why: str, hint: str) -> ConfigurationError:
    return ConfigurationError(f"The server's certificate in {folder} {why}.", hint)
