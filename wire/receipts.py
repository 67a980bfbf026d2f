"""Signed receipts: the coordinator's word, which it cannot take back, that a ballot is stored.

The statement that is signed (ECDSA with SHA-256, key of the certificate named by `signer`):

    consilium/receipt/v1 LF consortium LF task LF round LF silo LF ballot digest LF time LF

`time` is when the ballot was stored, in microseconds since 1970 UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from wire.identity.certificates import certificate_in
from wire.identity.identity import Role, describe, read_certificate, signed_by

_DOMAIN = "consilium/receipt/v1"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Statement:
    """What a receipt says."""

    consortium: str
    task: str
    round: int
    silo: str
    digest: str
    accepted_at: datetime

    def encoded(self) -> bytes:
        """The bytes that are signed."""
        moment = (self.accepted_at - _EPOCH) // timedelta(microseconds=1)
        parts = (_DOMAIN, self.consortium, self.task, self.round, self.silo, self.digest, moment)
        return "".join(f"{part}\n" for part in parts).encode()


class Signer:
    """Signs statements with the key of a server certificate."""

    def __init__(self, key_pem: bytes, certificate_pem: bytes) -> None:
        key = load_pem_private_key(key_pem, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("receipts are signed with an elliptic-curve key")
        self._key = key
        self.certificate_pem = certificate_pem
        self.fingerprint = read_certificate(certificate_pem).fingerprint

    def sign(self, statement: Statement) -> bytes:
        """A signature that `verified` accepts."""
        return self._key.sign(statement.encoded(), ec.ECDSA(hashes.SHA256()))


def verified(
    statement: Statement,
    signature: bytes,
    signer: str,
    signer_pem: bytes,
    authorities_pem: bytes,
) -> bool:
    """True if `signer_pem` is the certificate `signer`, one of the authorities issued it to the statement's
    coordinator, it was valid when the ballot was stored, and its key signed.
    """
    try:
        certificate = certificate_in(signer_pem)
        public = certificate.public_key()
        if not isinstance(public, ec.EllipticCurvePublicKey):
            return False
        described = describe(certificate)
        identity = described.identity
        # The authority certifies silos and admins too, and none of them gives receipts.
        if identity is None or identity.role is not Role.COORDINATOR:
            return False
        if identity.consortium != statement.consortium or described.fingerprint != signer:
            return False
        if not described.not_before <= statement.accepted_at <= described.not_after:
            return False
        if not signed_by(signer_pem, authorities_pem):
            return False
        public.verify(signature, statement.encoded(), ec.ECDSA(hashes.SHA256()))
    except (ValueError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True
