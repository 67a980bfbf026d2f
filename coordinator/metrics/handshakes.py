"""Why connections were refused before they became calls, as labels of a counter."""

from __future__ import annotations

from enum import StrEnum


class HandshakeRefusal(StrEnum):
    """Why a handshake failed, or a call before it became one, as a metric's label."""

    NO_CERTIFICATE = "no_certificate"
    UNTRUSTED_CERTIFICATE = "untrusted_certificate"
    EXPIRED_CERTIFICATE = "expired_certificate"
    NOT_YET_VALID_CERTIFICATE = "not_yet_valid_certificate"
    NOT_TLS = "not_tls"
    OTHER = "other"
    COMPRESSED_MESSAGE = "compressed_message"
    OVERSIZED_HEADERS = "oversized_headers"
