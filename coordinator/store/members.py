"""Who belongs to the consortium: silos and admins, their join tokens and their certificates.

A member has one current certificate. While it renews, the old and the new one are both good; the first call
with the new one withdraws the old. Nobody is locked out by an answer lost on the way, and nothing stays valid
longer than it is needed.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from datetime import datetime
from typing import assert_never

from sqlalchemy import (
    Connection,
    Engine,
    RowMapping,
    delete,
    insert,
    select,
    update,
)

from coordinator.store.audit import Act, record
from coordinator.store.certificates import (
    certificate_of_key,
    good_certificates,
    insert_certificate,
    newest_expiry,
    withdraw,
    withdraw_all,
)
from coordinator.store.engine import insert_new
from coordinator.store.member_kinds import member_kind
from coordinator.store.records import AdminRecord, IssuedCertificate, MemberStatus, TokenRecord
from coordinator.store.rounds import leave_open_rounds, record_dropped
from coordinator.store.schema import admins, in_order, silos, tokens
from wire import errors
from wire.errors import Refusal
from wire.identity.identity import Role
from wire.runtime.crash_points import crash_point

Issue = Callable[[Role, str], IssuedCertificate]


class MemberStore:
    """Each method is one transaction. `by` names who acts, for the audit chain."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def register(self, token: TokenRecord, now: datetime, by: str, *, replace_token: bool) -> None:
        """Invites the member named by `token`.

        A revoked member may be invited anew; one that has not joined yet gets a new token only with
        `replace_token`.
        """
        kind = member_kind(token.role)
        with self._engine.begin() as tx:
            invited = MemberStatus.INVITED
            if not insert_new(tx, kind.table, name=token.name, status=invited, registered_at=now):
                status = _status(tx, token.role, token.name)
                again = status is MemberStatus.REVOKED or (replace_token and status is invited)
                if not again:
                    raise Refusal(kind.exists, name=token.name, status=status)
                mine = (tokens.c.role == token.role) & (tokens.c.name == token.name)
                tx.execute(delete(tokens).where(mine))
                _set_status(tx, token.role, token.name, invited)
            tx.execute(insert(tokens).values(**vars(token)))
            record(tx, now, by, Act.MEMBER_REGISTERED, f"{token.role}/{token.name}", token=token.id)

    def redeem(
        self, token_id: str, secret_hash: str, key_hash: str, now: datetime, issue: Issue
    ) -> tuple[Role, str, str]:
        """Spends a token for the key with `key_hash`; the member's role, name and certificate.

        The same key may ask again and gets the same certificate; another key is refused.
        """
        with self._engine.begin() as tx:
            row = _token(tx, token_id, secret_hash)
            role, name = Role(row["role"]), str(row["name"])
            if _status(tx, role, name) is MemberStatus.REVOKED:
                raise Refusal(member_kind(role).revoked, name=name)
            # Tokens change only under their member's lock, which has just been taken.
            row = _token(tx, token_id, secret_hash)
            if row["redeemed_by"] is not None:
                if row["redeemed_by"] != key_hash:
                    raise Refusal(errors.TOKEN_USED, name=name)
                return role, name, certificate_of_key(tx, key_hash, role, name) or ""
            if now >= row["expires_at"]:
                expired = f"{row['expires_at']:%F %T} UTC"
                raise Refusal(errors.TOKEN_EXPIRED, name=name, expired=expired)
            certificate = issue(role, name)
            tx.execute(update(tokens).where(tokens.c.id == token_id).values(redeemed_by=key_hash))
            withdraw_all(tx, role, name)
            insert_certificate(tx, role, name, key_hash, certificate)
            _set_status(tx, role, name, MemberStatus.ACTIVE)
            record(
                tx,
                now,
                f"{role}/{name}",
                Act.MEMBER_JOINED,
                f"{role}/{name}",
                certificate=certificate.fingerprint,
            )
            crash_point("member-joining")
            return role, name, certificate.pem

    def adopt(
        self, role: Role, name: str, key_hash: str, certificate: IssuedCertificate, now: datetime
    ) -> None:
        """Takes in a member whose certificate was made beside the database: the first admin."""
        with self._engine.begin() as tx:
            tx.execute(
                insert(member_kind(role).table).values(
                    name=name, status=MemberStatus.ACTIVE, registered_at=now
                )
            )
            insert_certificate(tx, role, name, key_hash, certificate)
            subject = f"{role}/{name}"
            fingerprint = certificate.fingerprint
            record(tx, now, "init", Act.MEMBER_JOINED, subject, certificate=fingerprint)

    def readmit_admin(
        self, name: str, key_hash: str, certificate: IssuedCertificate, now: datetime, by: str
    ) -> None:
        """Lets an admin in by a certificate made beside the database, whoever it was before.

        All that it held, certificates and an open token, is void.
        """
        role = Role.ADMIN
        with self._engine.begin() as tx:
            if not insert_new(tx, admins, name=name, status=MemberStatus.ACTIVE, registered_at=now):
                # Locks the admin before anything of it is changed.
                _status(tx, role, name)
                _set_status(tx, role, name, MemberStatus.ACTIVE)
            tx.execute(delete(tokens).where((tokens.c.role == role) & (tokens.c.name == name)))
            withdraw_all(tx, role, name)
            insert_certificate(tx, role, name, key_hash, certificate)
            subject = f"{role}/{name}"
            fingerprint = certificate.fingerprint
            record(tx, now, by, Act.ADMIN_ADMITTED, subject, certificate=fingerprint)

    def renew(self, role: Role, name: str, key_hash: str, now: datetime, issue: Issue) -> str:
        """A certificate for a new key of a member in good standing; idempotent by key."""
        with self._engine.begin() as tx:
            # Read again under the lock: the member may have been shut out since the call was admitted.
            _require_not_shut_out(_status(tx, role, name), role, name)
            held = certificate_of_key(tx, key_hash, role, name)
            if held is not None:
                return held
            certificate = issue(role, name)
            insert_certificate(tx, role, name, key_hash, certificate)
            subject = f"{role}/{name}"
            fingerprint = certificate.fingerprint
            record(tx, now, subject, Act.CERTIFICATE_RENEWED, subject, certificate=fingerprint)
            crash_point("certificate-renewing")
            return certificate.pem

    def admit(self, role: Role, name: str, fingerprint: str) -> None:
        """Raises the refusal a caller deserves; the first use of a new certificate withdraws the old."""
        with self._engine.begin() as tx:
            status, good = _member_status(tx, role, name)
            _require_not_shut_out(status, role, name)
            if fingerprint in good and fingerprint != good[0]:
                # Rare, so only here the member is locked, and everything is read again.
                _require_not_shut_out(_status(tx, role, name), role, name)
                good = good_certificates(tx, role, name)
            if fingerprint not in good:
                raise Refusal(errors.CERTIFICATE_SUPERSEDED, name=name)
            withdraw(tx, good[: good.index(fingerprint)])

    def suspend(self, name: str, now: datetime, by: str, *, drop_ballots: bool) -> None:
        """Shuts a silo out until it is resumed."""
        with self._engine.begin() as tx:
            self._shut_out(tx, Role.SILO, name, MemberStatus.SUSPENDED)
            dropped = leave_open_rounds(tx, name, drop_ballots=drop_ballots)
            record(tx, now, by, Act.SILO_SUSPENDED, f"silo/{name}")
            record_dropped(tx, now, by, dropped)

    def resume(self, name: str, now: datetime, by: str) -> None:
        """Lets a suspended silo in again; it takes part from the next round on."""
        with self._engine.begin() as tx:
            status = _status(tx, Role.SILO, name)
            if status is None:
                raise Refusal(errors.SILO_UNKNOWN, name=name)
            if status is MemberStatus.REVOKED:
                raise Refusal(errors.SILO_REVOKED, name=name)
            if status is MemberStatus.SUSPENDED:
                _set_status(tx, Role.SILO, name, MemberStatus.ACTIVE)
                record(tx, now, by, Act.SILO_RESUMED, f"silo/{name}")

    def revoke(
        self, role: Role, name: str, now: datetime, by: str, *, drop_ballots: bool = False
    ) -> None:
        """Shuts a member out for good: every certificate it holds is withdrawn."""
        with self._engine.begin() as tx:
            if role is Role.ADMIN and _active_admins(tx) == [name]:
                raise Refusal(errors.LAST_ADMIN, name=name)
            self._shut_out(tx, role, name, MemberStatus.REVOKED)
            withdraw_all(tx, role, name)
            is_silo = role is Role.SILO
            dropped = leave_open_rounds(tx, name, drop_ballots=drop_ballots) if is_silo else []
            record(tx, now, by, Act.MEMBER_REVOKED, f"{role}/{name}")
            record_dropped(tx, now, by, dropped)

    def admins(self) -> list[AdminRecord]:
        """Every admin by name."""
        expiry = newest_expiry(Role.ADMIN, admins)
        with self._engine.begin() as tx:
            rows = tx.execute(select(admins, expiry).order_by(in_order(admins.c.name))).mappings()
            return [AdminRecord(**{**row, "status": MemberStatus(row["status"])}) for row in rows]

    def _shut_out(self, tx: Connection, role: Role, name: str, status: MemberStatus) -> None:
        if _status(tx, role, name) is None:
            raise Refusal(member_kind(role).unknown, name=name)
        _set_status(tx, role, name, status)
        if role is Role.SILO:
            lease = update(silos).where(silos.c.name == name)
            tx.execute(lease.values(lease_instance=None, lease_until=None))


def _status(tx: Connection, role: Role, name: str) -> MemberStatus | None:
    """A member's status; nobody else changes it before the transaction ends."""
    table = member_kind(role).table
    query = select(table.c.status).where(table.c.name == name)
    status = tx.execute(query.with_for_update()).scalar()
    return None if status is None else MemberStatus(status)


def _member_status(tx: Connection, role: Role, name: str) -> tuple[MemberStatus | None, list[str]]:
    """A member's status and good certificates, oldest first; in one question, since every call asks it."""
    rows = tx.execute(member_kind(role).status, {"name": name}).all()
    status = MemberStatus(rows[0].status) if rows else None
    return status, [row.fingerprint for row in rows if row.fingerprint is not None]


def _set_status(tx: Connection, role: Role, name: str, status: MemberStatus) -> None:
    table = member_kind(role).table
    tx.execute(update(table).where(table.c.name == name).values(status=status))


def _require_not_shut_out(status: MemberStatus | None, role: Role, name: str) -> None:
    match status:
        case None:
            raise Refusal(member_kind(role).unknown, name=name)
        case MemberStatus.REVOKED:
            raise Refusal(member_kind(role).revoked, name=name)
        case MemberStatus.SUSPENDED:
            raise Refusal(errors.SILO_SUSPENDED, name=name)
        case MemberStatus.ACTIVE | MemberStatus.INVITED:
            # One that is only invited holds no good certificate, for which it is refused.
            return
        case unknown:
            assert_never(unknown)


def _token(tx: Connection, token_id: str, secret_hash: str) -> RowMapping:
    row = tx.execute(select(tokens).where(tokens.c.id == token_id)).mappings().first()
    if row is None or not hmac.compare_digest(row["secret_hash"], secret_hash):
        raise Refusal(errors.TOKEN_UNKNOWN)
    return row


def _active_admins(tx: Connection) -> list[str]:
    """Locked, all of them: of two who revoke each other at once, the second must see the first."""
    query = select(admins.c.name).where(admins.c.status == MemberStatus.ACTIVE)
    return list(tx.execute(query.order_by(in_order(admins.c.name)).with_for_update()).scalars())
