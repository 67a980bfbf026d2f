"""The key in a certificate request: whether it may be certified, and the hash by which it is recognised."""

from __future__ import annotations

import hashlib
from typing import TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from wire.errors import REQUEST_INVALID, Refusal

PublicKey: TypeAlias = ec.EllipticCurvePublicKey | rsa.RSAPublicKey

_RSA_BITS = range(2048, 8193)


def requested_key(request_pem: bytes) -> PublicKey:
    """The key a certificate request is for; REQUEST_INVALID unless we would certify it."""
    try:
        request = x509.load_pem_x509_csr(request_pem)
        signed = request.is_signature_valid
        public = request.public_key()
    except Exception as error:
        # Whatever the parser raises on arbitrary bytes, they are refused.
        raise Refusal(REQUEST_INVALID, why="it is not a PKCS#10 request in PEM") from error
    if not signed:
        raise Refusal(REQUEST_INVALID, why="its signature does not fit its key")
    if isinstance(public, ec.EllipticCurvePublicKey):
        if not isinstance(public.curve, ec.SECP256R1 | ec.SECP384R1):
            raise Refusal(
                REQUEST_INVALID, why=f"the curve {public.curve.name} is not P-256 or P-384"
            )
        return public
    if isinstance(public, rsa.RSAPublicKey):
        if public.key_size not in _RSA_BITS:
            raise Refusal(REQUEST_INVALID, why=f"an RSA key of {public.key_size} bits")
        return public
    # gRPC's TLS (BoringSSL) does not offer Ed25519 by default: such a silo could never connect.
    raise Refusal(REQUEST_INVALID, why="its key is neither ECDSA (P-256, P-384) nor RSA")


def key_hash(request_pem: bytes) -> str:
    """SHA-256 of the key a request is for: the same in every request made with that key."""
    return _hash(requested_key(request_pem))


def certificate_key_hash(certificate_pem: bytes) -> str:
    """The same of a key that has been certified."""
    return _hash(x509.load_pem_x509_certificate(certificate_pem).public_key())


def _hash(public: CertificatePublicKeyTypes) -> str:
    encoded = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(encoded).hexdigest()
