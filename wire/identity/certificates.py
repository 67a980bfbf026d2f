"""Parses untrusted certificates completely; anything wrong with their bytes is a ValueError.

`cryptography` parses lazily and raises many kinds of exceptions, also long after loading: for an unknown
version, a duplicate extension, an unsupported key type. Here every part is parsed at once.
"""

from __future__ import annotations

from collections.abc import Callable

from cryptography import x509

_PARTS = ("extensions", "issuer", "subject", "not_valid_before_utc", "not_valid_after_utc")


def certificate_in(pem: bytes) -> x509.Certificate:
    """The first certificate in a PEM text."""
    return _parsed(lambda: [x509.load_pem_x509_certificate(pem)])[0]


def certificates_in(pem: bytes) -> list[x509.Certificate]:
    """Every certificate in a PEM text, at least one."""
    return _parsed(lambda: x509.load_pem_x509_certificates(pem))


def certificate_from_der(der: bytes) -> x509.Certificate:
    """The certificate in DER form."""
    return _parsed(lambda: [x509.load_der_x509_certificate(der)])[0]


def _parsed(load: Callable[[], list[x509.Certificate]]) -> list[x509.Certificate]:
    try:
        certificates = load()
        for certificate in certificates:
            certificate.public_key()
            for part in _PARTS:
                getattr(certificate, part)
    except Exception as error:
        raise ValueError("it is not a certificate that can be read") from error
    return certificates
