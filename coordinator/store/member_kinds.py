"""What differs between the two kinds of members, silos and admins: their table and their refusals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import Select, Table

from coordinator.store.certificates import status_query
from coordinator.store.member_states import Refused
from coordinator.store.schema import admins, silos
from wire import errors
from wire.errors import Fault
from wire.identity.identity import Role


@dataclass(frozen=True)
class MemberKind:
    """Silos or admins."""

    table: Table
    status: Select[tuple[str, str | None]]
    """Asked with every call, hence built once; see `status_query`."""
    exists: Fault
    unknown: Fault
    revoked: Fault

    def fault(self, why: Refused) -> Fault:
        """What a person is told when a step cannot be made."""
        match why:
            case Refused.UNKNOWN:
                return self.unknown
            case Refused.EXISTS:
                return self.exists
            case Refused.SUSPENDED:
                return errors.SILO_SUSPENDED
            case Refused.REVOKED:
                return self.revoked


_SILO: Final = MemberKind(
    silos,
    status_query(Role.SILO, silos),
    errors.SILO_EXISTS,
    errors.SILO_UNKNOWN,
    errors.SILO_REVOKED,
)
_ADMIN: Final = MemberKind(
    admins,
    status_query(Role.ADMIN, admins),
    errors.ADMIN_EXISTS,
    errors.ADMIN_UNKNOWN,
    errors.ADMIN_REVOKED,
)
MEMBER_ROLES: Final = tuple(role for role in Role if role is not Role.COORDINATOR)


def member_kind(role: Role) -> MemberKind:
    """What members of this role are; ValueError for the coordinator, which is no member."""
    match role:
        case Role.SILO:
            return _SILO
        case Role.ADMIN:
            return _ADMIN
        case Role.COORDINATOR:
            raise ValueError("the coordinator is no member")
