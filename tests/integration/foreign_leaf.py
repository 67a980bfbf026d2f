"""A server certificate as some other program would make it of an authority's files."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NOW = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
DAY = timedelta(days=1)
ExtendedKeyUsages = tuple[x509.ObjectIdentifier, ...]


@dataclass(frozen=True)
class Order:
    """What that program is asked for; by default what a coordinator of `rhine-clinics` needs."""

    names: tuple[str, ...] = ("c.example.org", "also.example.org")
    addresses: tuple[str, ...] = ("10.0.0.7",)
    uris: tuple[str, ...] = ("spiffe://rhine-clinics/coordinator/coordinator",)
    begins: datetime = NOW - DAY
    ends: datetime = NOW + 30 * DAY
    purposes: ExtendedKeyUsages = (ExtendedKeyUsageOID.SERVER_AUTH,)
    signs: bool = True
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )

    def bring(self, folder: Path, authority_folder: Path) -> None:
        """Signs with the authority's files and lays `tls.key` and `tls.crt` into `folder`, no chain."""
        issuer = x509.load_pem_x509_certificate((authority_folder / "authority.pem").read_bytes())
        signing = load_pem_private_key((authority_folder / "authority-key.pem").read_bytes(), None)
        assert isinstance(signing, ec.EllipticCurvePrivateKey)
        alternatives: Sequence[x509.GeneralName] = [
            *map(x509.DNSName, self.names),
            *(x509.IPAddress(ipaddress.ip_address(one)) for one in self.addresses),
            *map(x509.UniformResourceIdentifier, self.uris),
        ]
        usage = dict.fromkeys(
            [
                *("content_commitment", "data_encipherment", "key_agreement", "key_cert_sign"),
                *("crl_sign", "encipher_only", "decipher_only"),
            ],
            False,
        )
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "coordinator")]))
            .issuer_name(issuer.subject)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.begins)
            .not_valid_after(self.ends)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(x509.ExtendedKeyUsage(self.purposes), critical=False)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=self.signs, key_encipherment=not self.signs, **usage
                ),
                critical=True,
            )
            .sign(signing, hashes.SHA256())
        )
        folder.mkdir(exist_ok=True)
        (folder / "tls.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
        form = (Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        (folder / "tls.key").write_bytes(self.key.private_bytes(*form))
