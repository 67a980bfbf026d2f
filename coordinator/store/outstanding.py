"""Outstanding certificates and join tokens: what the end of an authority would make void."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine, select

from coordinator.store.actors import OPERATOR
from coordinator.store.audit import Act, record
from coordinator.store.certificates import withdraw
from coordinator.store.engine import snapshot
from coordinator.store.member_kinds import MEMBER_ROLES, member_kind
from coordinator.store.records import MemberStatus
from coordinator.store.schema import certificates, tokens
from coordinator.store.standing import acting, locked_status
from wire.identity.identity import Role

_IN = (MemberStatus.ACTIVE, MemberStatus.SUSPENDED)


@dataclass(frozen=True)
class HeldCertificate:
    """A good certificate of a member that is not shut out for good."""

    role: Role
    name: str
    status: MemberStatus
    fingerprint: str
    pem: str


@dataclass(frozen=True)
class OpenInvitation:
    """A join token that can still be redeemed."""

    role: Role
    name: str
    expires_at: datetime


class OutstandingStore:
    """Each method is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def certificates(self, now: datetime) -> list[HeldCertificate]:
        """Every certificate someone may still present, by role and name."""
        with snapshot(self._engine) as tx:
            held = [held for role in MEMBER_ROLES for held in _held(tx, role, now)]
        return sorted(held, key=lambda one: (one.role, one.name))

    def invitations(self, now: datetime) -> list[OpenInvitation]:
        """Every token someone may still redeem, by role and name."""
        with snapshot(self._engine) as tx:
            found = [invited for role in MEMBER_ROLES for invited in _invited(tx, role, now)]
        return sorted(found, key=lambda one: (one.role, one.name))

    def authority_changed(
        self,
        act: Act,
        fingerprint: str,
        now: datetime,
        withdrawn: Sequence[HeldCertificate] = (),
    ) -> None:
        """Records an operator's act on the authority and withdraws what it makes void."""
        with acting(self._engine, OPERATOR, changes=Role.ADMIN) as tx:
            for held in sorted(withdrawn, key=lambda one: one.name):
                if held.role is Role.SILO:
                    locked_status(tx, held.role, held.name)
            withdraw(tx, [held.fingerprint for held in withdrawn])
            record(
                tx, now, OPERATOR, act, f"authority/{fingerprint[:16]}", withdrawn=len(withdrawn)
            )


def _invited(tx: Connection, role: Role, now: datetime) -> list[OpenInvitation]:
    table = member_kind(role).table
    query = select(tokens.c.name, tokens.c.expires_at).where(
        (tokens.c.role == role) & (tokens.c.name == table.c.name),
        tokens.c.redeemed_by.is_(None),
        tokens.c.expires_at > now,
        table.c.status != MemberStatus.REVOKED,
    )
    rows = tx.execute(query).mappings()
    return [OpenInvitation(role, row["name"], row["expires_at"]) for row in rows]


def _held(tx: Connection, role: Role, now: datetime) -> list[HeldCertificate]:
    table = member_kind(role).table
    theirs = (certificates.c.role == role) & (certificates.c.name == table.c.name)
    query = select(
        table.c.name, table.c.status, certificates.c.fingerprint, certificates.c.pem
    ).where(
        theirs,
        ~certificates.c.withdrawn,
        certificates.c.expires_at > now,
        table.c.status.in_(_IN),
    )
    return [
        HeldCertificate(
            role, row["name"], MemberStatus(row["status"]), row["fingerprint"], row["pem"]
        )
        for row in tx.execute(query).mappings()
    ]
