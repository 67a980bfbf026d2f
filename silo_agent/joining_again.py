"""Whether a silo that has joined joins again: what a container asks at every start.

A new token means to join again, whatever became of the identity here: only the coordinator knows whether that was
revoked. A token that was redeemed here before means nothing, nor does one that nobody takes.
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
from wire.identity import IdentityFiles, expiry_refusal
from wire.join_token import JoinToken

_WORTHLESS = (TOKEN_EXPIRED, TOKEN_MALFORMED, TOKEN_UNKNOWN, TOKEN_USED)


def held_identity(folder: Path) -> IdentityFiles | None:
    """The identity in a folder, if there is one that can be read."""
    try:
        return IdentityFiles.load(folder)
    except ConfigurationError:
        return None


async def joined_again(
    held: IdentityFiles,
    line: str,
    now: datetime,
    redeem: Callable[[str], Awaitable[IdentityFiles]],
    warn: Callable[[str], None],
) -> IdentityFiles | None:
    """The identity that the token in `line` gave; None if the one held is good and is kept.

    CERTIFICATE_EXPIRED if it is not good any longer and there is no token to replace it. A coordinator that cannot
    be reached is an error too: the token may be the only way in.
    """
    expired = now >= held.certificate.not_after
    try:
        if _asks_anew(held, line, expired=expired):
            fresh = await redeem(line)
            # A token redeemed here long ago gives the certificate of that day.
            if now < fresh.certificate.not_after:
                return fresh
    except (Refusal, ConfigurationError) as error:
        if isinstance(error, Refusal) and not error.is_a(*_WORTHLESS):
            raise
        warn(_left(error))
    if expired:
        raise expiry_refusal(held.certificate)
    return None


def _asks_anew(held: IdentityFiles, line: str, *, expired: bool) -> bool:
    if not line.strip():
        return False
    # Of an older identity nobody knows its token: most likely it is this one.
    if not held.token_id and not expired:
        return False
    return JoinToken.parse(line).token_id != held.token_id


def _left(error: ConsiliumError) -> str:
    return f"The join token is left unused. {error.sentence} {error.hint}"
