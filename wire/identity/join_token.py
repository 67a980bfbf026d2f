"""The join token, one line of text: the enrolment address, the authority to trust, and a one-time secret.

`consilium-join-1.` and, in base64url, length-prefixed fields followed by a checksum. The token carries the
authority's certificate itself, not only its fingerprint: the hospital can then verify the server in the TLS
handshake, with nothing fetched from a server it does not trust yet.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from wire.errors import TOKEN_MALFORMED, Refusal
from wire.identity.certificates import certificate_from_der
from wire.identity.identity import Role, fingerprint_of
from wire.identity.naming import valid_name

_PREFIX = "consilium-join-1."
_SECRET_BYTES = 32
_ID_BYTES = 8
_CHECKSUM_BYTES = 6


@dataclass(frozen=True)
class JoinToken:
    """Entitles its holder to one certificate for `role` `name`. `expires_at` is aware UTC, in whole seconds."""

    enrolment_address: str
    consortium: str
    role: Role
    name: str
    token_id: str
    secret: str = field(repr=False)
    expires_at: datetime
    authority: x509.Certificate = field(repr=False)

    @classmethod
    def issue(
        cls,
        enrolment_address: str,
        consortium: str,
        role: Role,
        name: str,
        expires_at: datetime,
        authority: x509.Certificate,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> JoinToken:
        """A new token with a fresh identifier and a fresh secret of 256 bits."""
        return cls(
            enrolment_address=enrolment_address,
            consortium=consortium,
            role=role,
            name=name,
            token_id=random_bytes(_ID_BYTES).hex(),
            secret=random_bytes(_SECRET_BYTES).hex(),
            expires_at=expires_at.astimezone(UTC).replace(microsecond=0),
            authority=authority,
        )

    @property
    def authority_pem(self) -> bytes:
        """The only authority to trust when redeeming the token."""
        return self.authority.public_bytes(Encoding.PEM)

    @property
    def authority_fingerprint(self) -> str:
        """SHA-256 of the authority's certificate, for people to compare."""
        return fingerprint_of(self.authority)

    @property
    def line(self) -> str:
        """The token as text, secret included: show it once, to one person."""
        payload = _join(
            [
                self.enrolment_address.encode(),
                self.consortium.encode(),
                self.role.encode(),
                self.name.encode(),
                bytes.fromhex(self.token_id),
                bytes.fromhex(self.secret),
                int(self.expires_at.timestamp()).to_bytes(8, "big"),
                self.authority.public_bytes(Encoding.DER),
            ]
        )
        text = base64.urlsafe_b64encode(payload + _checksum(payload)).decode().rstrip("=")
        return _PREFIX + text

    @classmethod
    def parse(cls, line: str) -> JoinToken:
        """Reads a token; Refusal TOKEN_MALFORMED unless every character of it is there."""
        # Mail programs and terminals wrap long lines; white space carries nothing.
        text = "".join(line.split())
        if not text.startswith(_PREFIX):
            raise Refusal(TOKEN_MALFORMED)
        text = text.removeprefix(_PREFIX)
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            payload, checksum = raw[:-_CHECKSUM_BYTES], raw[-_CHECKSUM_BYTES:]
            if checksum != _checksum(payload):
                raise Refusal(TOKEN_MALFORMED)
            address, consortium, role, name, token_id, secret, expiry, authority = _split(payload)
            token = cls(
                enrolment_address=address.decode(),
                consortium=consortium.decode(),
                role=Role(role.decode()),
                name=name.decode(),
                token_id=token_id.hex(),
                secret=secret.hex(),
                expires_at=datetime.fromtimestamp(int.from_bytes(expiry, "big"), UTC),
                authority=certificate_from_der(authority),
            )
        except (ValueError, OverflowError, OSError, binascii.Error) as error:
            raise Refusal(TOKEN_MALFORMED) from error
        if not (valid_name(token.name) and valid_name(token.consortium)):
            raise Refusal(TOKEN_MALFORMED)
        return token


def secret_digest(secret: str) -> str:
    """What the coordinator keeps of a secret: SHA-256, enough for 256 random bits."""
    return hashlib.sha256(secret.encode()).hexdigest()


def secret_matches(secret: str, digest: str) -> bool:
    """True if `digest` is that of `secret`; takes the same time either way."""
    return hmac.compare_digest(secret_digest(secret), digest)


def _checksum(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest()[:_CHECKSUM_BYTES]


def _join(fields: Sequence[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(2, "big") + part for part in fields)


def _split(payload: bytes) -> list[bytes]:
    fields = []
    while payload:
        end = 2 + int.from_bytes(payload[:2], "big")
        if len(payload) < end:
            raise ValueError("a field is cut short")
        fields.append(payload[2:end])
        payload = payload[end:]
    return fields
