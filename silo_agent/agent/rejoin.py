"""Decides at a container's start whether a silo that has joined before joins again (`join --if-missing`).

A token other than the one redeemed here means to join again, whatever the state of the identity: only the
coordinator knows whether that was revoked. A token redeemed here before, or one that is refused, is ignored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path

from wire.errors import (
    TOKEN_EXPIRED,
    TOKEN_MALFORMED,
    TOKEN_UNKNOWN,
    TOKEN_USED,
    ConfigurationError,
    ConsiliumError,
    Refusal,
)
from wire.identity.files import IdentityFiles
from wire.identity.identity import expiry_refusal
from wire.identity.join_token import JoinToken

_UNUSABLE_TOKEN = (TOKEN_EXPIRED, TOKEN_MALFORMED, TOKEN_UNKNOWN, TOKEN_USED)


def existing_identity(folder: Path) -> IdentityFiles | None:
    """The identity in a folder; None if there is none or it cannot be read."""
    try:
        return IdentityFiles.load(folder)
    except ConfigurationError:
        return None


async def rejoin(
    existing: IdentityFiles,
    token: str,
    now: datetime,
    redeem: Callable[[str], Awaitable[IdentityFiles]],
    warn: Callable[[str], None],
) -> IdentityFiles | None:
    """The identity that `token` gave; None if `existing` is still valid and is kept.

    CERTIFICATE_EXPIRED if it has expired and the token does not replace it. A coordinator that cannot be reached
    is an error too: the token may be the only way in.
    """
    expired = now >= existing.certificate.not_after
    try:
        if _is_another_token(existing, token, expired=expired):
            fresh = await redeem(token)
            # A token redeemed here before gives the certificate issued then, which may have expired.
            if now < fresh.certificate.not_after:
                return fresh
    except (Refusal, ConfigurationError) as error:
        if isinstance(error, Refusal) and not error.is_a(*_UNUSABLE_TOKEN):
            raise
        warn(_ignored(error))
    if expired:
        raise expiry_refusal(existing.certificate)
    return None


def _is_another_token(existing: IdentityFiles, token: str, *, expired: bool) -> bool:
    if not token.strip():
        return False
    # Older versions did not store the token's identifier: most likely it is the same token.
    if not existing.token_id and not expired:
        return False
    return JoinToken.parse(token).token_id != existing.token_id


def _ignored(error: ConsiliumError) -> str:
    return f"The join token is left unused. {error.sentence} {error.hint}"
