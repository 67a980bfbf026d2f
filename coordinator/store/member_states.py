"""The states of a member and every step between them, as one table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeAlias

from coordinator.store.records import MemberStatus


class Step(StrEnum):
    """What can be done to a member."""

    INVITE = "invite"
    """It is registered and a join token made."""
    INVITE_AGAIN = "invite_again"
    """The same, and a token that was not redeemed yet may be replaced."""
    JOIN = "join"
    """Somebody redeems its join token."""
    SUSPEND = "suspend"
    RESUME = "resume"
    """A suspension ends; the member had joined before."""
    RESUME_INVITED = "resume_invited"
    """A suspension ends; the member had not joined yet, and its token counts again."""
    REVOKE = "revoke"
    READMIT = "readmit"
    """It is given a certificate on the coordinator's own host, whatever it was before."""


class Refused(StrEnum):
    """Why a step cannot be made."""

    UNKNOWN = "unknown"
    EXISTS = "exists"
    SUSPENDED = "suspended"
    REVOKED = "revoked"


State: TypeAlias = MemberStatus | None
"""None: nobody has this name."""

_INVITED, _ACTIVE = MemberStatus.INVITED, MemberStatus.ACTIVE
_SUSPENDED, _REVOKED = MemberStatus.SUSPENDED, MemberStatus.REVOKED

TRANSITIONS: Final[Mapping[Step, Mapping[State, MemberStatus | Refused]]] = MappingProxyType(
    {
        Step.INVITE: {
            None: _INVITED,
            _INVITED: Refused.EXISTS,
            _ACTIVE: Refused.EXISTS,
            _SUSPENDED: Refused.EXISTS,
            _REVOKED: _INVITED,
        },
        Step.INVITE_AGAIN: {
            None: _INVITED,
            _INVITED: _INVITED,
            _ACTIVE: Refused.EXISTS,
            _SUSPENDED: Refused.EXISTS,
            _REVOKED: _INVITED,
        },
        Step.JOIN: {
            None: Refused.UNKNOWN,
            _INVITED: _ACTIVE,
            _ACTIVE: Refused.EXISTS,
            _SUSPENDED: Refused.SUSPENDED,
            _REVOKED: Refused.REVOKED,
        },
        Step.SUSPEND: {
            None: Refused.UNKNOWN,
            _INVITED: _SUSPENDED,
            _ACTIVE: _SUSPENDED,
            _SUSPENDED: _SUSPENDED,
            _REVOKED: Refused.REVOKED,
        },
        Step.RESUME: {
            None: Refused.UNKNOWN,
            _INVITED: _INVITED,
            _ACTIVE: _ACTIVE,
            _SUSPENDED: _ACTIVE,
            _REVOKED: Refused.REVOKED,
        },
        Step.RESUME_INVITED: {
            None: Refused.UNKNOWN,
            _INVITED: _INVITED,
            _ACTIVE: _ACTIVE,
            _SUSPENDED: _INVITED,
            _REVOKED: Refused.REVOKED,
        },
        Step.REVOKE: {
            None: Refused.UNKNOWN,
            _INVITED: _REVOKED,
            _ACTIVE: _REVOKED,
            _SUSPENDED: _REVOKED,
            _REVOKED: _REVOKED,
        },
        Step.READMIT: {
            None: _ACTIVE,
            _INVITED: _ACTIVE,
            _ACTIVE: _ACTIVE,
            _SUSPENDED: _ACTIVE,
            _REVOKED: _ACTIVE,
        },
    }
)
