"""Whether a member and the certificate it presents are good now; and transactions that depend on it.

Whoever shuts a member out, or withdraws a certificate, first takes the member's row FOR UPDATE. A transaction that
acts for a caller holds that row FOR KEY SHARE and reads under it, so that what it found stays true until it ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import assert_never

from sqlalchemy import Connection, Engine, select

from coordinator.store.actors import Actor, Caller, LocalActor
from coordinator.store.certificates import good_certificates
from coordinator.store.member_kinds import member_kind
from coordinator.store.records import MemberStatus
from coordinator.store.schema import admins, in_order
from wire import errors
from wire.errors import Refusal
from wire.identity.identity import Role


@contextmanager
def acting(engine: Engine, by: Actor, *, changes: Role | None = None) -> Iterator[Connection]:
    """A transaction in which `by` acts; refused unless a caller's membership and certificate are good in it.

    `changes=Role.ADMIN` locks every admin first: of two who act on each other at once, the second must see the
    first, and neither waits for the other.
    """
    with engine.begin() as tx:
        if changes is Role.ADMIN:
            lock_admins(tx)
        match by:
            case Caller():
                require_good(tx, by)
            case LocalActor():
                pass
            case unknown:
                assert_never(unknown)
        yield tx


def require_good(tx: Connection, caller: Caller, *, exclusively: bool = False) -> None:
    """The refusal a caller deserves; it is neither shut out nor superseded before the transaction ends.

    `exclusively` also keeps every other transaction of the same caller waiting.
    """
    status = locked_status(tx, caller.role, caller.name, shared=not exclusively)
    good = good_certificates(tx, caller.role, caller.name)
    refusal = standing_refusal(caller, status, good)
    if refusal is not None:
        raise refusal


def standing_refusal(
    caller: Caller, status: MemberStatus | None, good: list[str]
) -> Refusal | None:
    """Why a caller with this status and these good certificates may not act; None if it may."""
    kind = member_kind(caller.role)
    match status:
        case None:
            return Refusal(kind.unknown, name=caller.name)
        case MemberStatus.REVOKED:
            return Refusal(kind.revoked, name=caller.name)
        case MemberStatus.SUSPENDED:
            return Refusal(errors.SILO_SUSPENDED, name=caller.name)
        case MemberStatus.ACTIVE | MemberStatus.INVITED:
            # One that is only invited holds no good certificate.
            if caller.fingerprint in good:
                return None
            return Refusal(errors.CERTIFICATE_SUPERSEDED, name=caller.name)
        case unknown:
            assert_never(unknown)


def locked_status(
    tx: Connection, role: Role, name: str, *, shared: bool = False
) -> MemberStatus | None:
    """A member's status; nobody changes it before the transaction ends. `shared` lets others hold it, too."""
    table = member_kind(role).table
    query = select(table.c.status).where(table.c.name == name)
    status = tx.execute(query.with_for_update(read=shared, key_share=shared)).scalar()
    return None if status is None else MemberStatus(status)


def lock_admins(tx: Connection) -> None:
    """Nobody else changes an admin before the transaction ends."""
    tx.execute(select(admins.c.name).order_by(in_order(admins.c.name)).with_for_update()).all()
