"""Who belongs to the consortium: silos and admins, their join tokens and their certificates.

A member has one current certificate. While it renews, the old and the new one are both good, and never a third; the
first call with the new one withdraws the old. Nobody is locked out by an answer lost on the way, and nothing stays
valid longer than it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime

from sqlalchemy import (
    Connection,
    Engine,
    insert,
    select,
    update,
)

from coordinator.store.actors import INIT, Actor, Caller, LocalActor, TokenHolder
from coordinator.store.audit import Act, record
from coordinator.store.certificates import (
    certificate_of_key,
    good_certificates,
    insert_certificate,
    newest_expiry,
    withdraw,
    withdraw_all,
)
from coordinator.store.engine import insert_new, snapshot
from coordinator.store.member_kinds import member_kind
from coordinator.store.member_states import TRANSITIONS, Refused, Step
from coordinator.store.records import AdminRecord, IssuedCertificate, MemberStatus, TokenRecord
from coordinator.store.rounds import leave_open_rounds, record_dropped
from coordinator.store.schema import admins, in_order, silos, tokens
from coordinator.store.standing import acting, locked_status, require_good, standing_refusal
from coordinator.store.tokens import (
    certificate_of_spent,
    known_token,
    void_tokens,
    void_tokens_made_by,
)
from wire import errors
from wire.errors import Refusal
from wire.identity.identity import Role
from wire.runtime.crash_points import crash_point

Issue = Callable[[Role, str], IssuedCertificate]


class MemberStore:
    """Each method is one transaction. `by` is who acts; a caller acts only while it is good."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def register(
        self, token: TokenRecord, now: datetime, by: Actor, *, replace_token: bool
    ) -> None:
        """Invites the member named by `token`.

        A revoked member may be invited anew; one that has not joined yet gets a new token only with
        `replace_token`.
        """
        role, name = token.role, token.name
        with acting(self._engine, by, changes=role) as tx:
            table, invited = member_kind(role).table, MemberStatus.INVITED
            if not insert_new(tx, table, name=name, status=invited, registered_at=now):
                _step(tx, role, name, Step.INVITE_AGAIN if replace_token else Step.INVITE)
                void_tokens(tx, role, name)
            tx.execute(insert(tokens).values(**vars(token)))
            record(tx, now, by, Act.MEMBER_REGISTERED, f"{role}/{name}", token=token.id)

    def redeem(
        self, token_id: str, secret_hash: str, key_hash: str, now: datetime, issue: Issue
    ) -> tuple[Role, str, str]:
        """Spends a token for the key with `key_hash`; the member's role, name and certificate.

        The same key may ask again and gets the same certificate while that is good; another key is refused, and
        so is everybody while the member is shut out.
        """
        with self._engine.begin() as tx:
            row = known_token(tx, token_id, secret_hash)
            role, name = Role(row["role"]), str(row["name"])
            status = locked_status(tx, role, name)
            # Tokens change only under their member's lock, which has just been taken.
            row = known_token(tx, token_id, secret_hash)
            if row["redeemed_by"] is not None and status is MemberStatus.ACTIVE:
                return role, name, certificate_of_spent(tx, row, key_hash)
            reached = _reached(role, name, status, Step.JOIN)
            if now >= row["expires_at"]:
                expired = f"{row['expires_at']:%F %T} UTC"
                raise Refusal(errors.TOKEN_EXPIRED, name=name, expired=expired)
            certificate = issue(role, name)
            tx.execute(update(tokens).where(tokens.c.id == token_id).values(redeemed_by=key_hash))
            withdraw_all(tx, role, name)
            insert_certificate(tx, role, name, key_hash, certificate)
            _set_status(tx, role, name, reached)
            member, fingerprint = TokenHolder(role, name), certificate.fingerprint
            record(tx, now, member, Act.MEMBER_JOINED, str(member), certificate=fingerprint)
            crash_point("member-joining")
            return role, name, certificate.pem

    def adopt(
        self, role: Role, name: str, key_hash: str, certificate: IssuedCertificate, now: datetime
    ) -> None:
        """Takes in a member whose certificate was made beside the database: the first admin."""
        with acting(self._engine, INIT) as tx:
            tx.execute(
                insert(member_kind(role).table).values(
                    name=name, status=MemberStatus.ACTIVE, registered_at=now
                )
            )
            insert_certificate(tx, role, name, key_hash, certificate)
            subject = f"{role}/{name}"
            fingerprint = certificate.fingerprint
            record(tx, now, INIT, Act.MEMBER_JOINED, subject, certificate=fingerprint)

    def readmit_admin(
        self,
        name: str,
        key_hash: str,
        certificate: IssuedCertificate,
        now: datetime,
        by: LocalActor,
    ) -> None:
        """Lets an admin in by a certificate made beside the database, whoever it was before.

        All that it held, certificates and an open token, is void, and so are open tokens that it made for others.
        """
        role = Role.ADMIN
        with acting(self._engine, by, changes=role) as tx:
            if not insert_new(tx, admins, name=name, status=MemberStatus.ACTIVE, registered_at=now):
                _step(tx, role, name, Step.READMIT)
            void_tokens(tx, role, name)
            void_tokens_made_by(tx, name)
            withdraw_all(tx, role, name)
            insert_certificate(tx, role, name, key_hash, certificate)
            subject = f"{role}/{name}"
            fingerprint = certificate.fingerprint
            record(tx, now, by, Act.ADMIN_ADMITTED, subject, certificate=fingerprint)

    def renew(self, by: Caller, key_hash: str, now: datetime, issue: Issue) -> str:
        """A certificate for the caller's next key; idempotent by key.

        It follows the one presented: whatever else was issued behind that, and so never used, is withdrawn.
        A member thus holds two good certificates at most, and one whose answers got lost can always ask again.
        """
        role, name = by.role, by.name
        with self._engine.begin() as tx:
            require_good(tx, by, exclusively=True)
            held = certificate_of_key(tx, key_hash, role, name)
            if held is not None:
                return held
            withdraw(
                tx, [one for one in good_certificates(tx, role, name) if one != by.fingerprint]
            )
            certificate = issue(role, name)
            insert_certificate(tx, role, name, key_hash, certificate)
            fingerprint = certificate.fingerprint
            record(tx, now, by, Act.CERTIFICATE_RENEWED, str(by), certificate=fingerprint)
            crash_point("certificate-renewing")
            return certificate.pem

    def admit(self, caller: Caller) -> bool:
        """Raises the refusal a caller deserves. True if this was the first use of a certificate, which withdraws
        the one before.
        """
        with self._engine.begin() as tx:
            status, good = _member_status(tx, caller.role, caller.name)
            if caller.fingerprint in good[1:]:
                # Rare, so only here the member is locked, and everything is read again.
                status = locked_status(tx, caller.role, caller.name)
                good = good_certificates(tx, caller.role, caller.name)
            refusal = standing_refusal(caller, status, good)
            if refusal is not None:
                raise refusal
            superseded = good[: good.index(caller.fingerprint)]
            withdraw(tx, superseded)
            return bool(superseded)

    def refusals(self, callers: Collection[Caller]) -> dict[Caller, Refusal]:
        """Those of the callers that may no longer act, and why."""
        found = {}
        with snapshot(self._engine) as tx:
            for caller in callers:
                refusal = standing_refusal(caller, *_member_status(tx, caller.role, caller.name))
                if refusal is not None:
                    found[caller] = refusal
        return found

    def suspend(self, name: str, now: datetime, by: Actor, *, drop_ballots: bool) -> None:
        """Shuts a silo out until it is resumed; a join token that is still open counts for nothing meanwhile."""
        with acting(self._engine, by) as tx:
            _step(tx, Role.SILO, name, Step.SUSPEND)
            _end_lease(tx, name)
            dropped = leave_open_rounds(tx, name, drop_ballots=drop_ballots)
            record(tx, now, by, Act.SILO_SUSPENDED, f"silo/{name}")
            record_dropped(tx, now, by, dropped)

    def resume(self, name: str, now: datetime, by: Actor) -> None:
        """Lets a suspended silo in again; it takes part from the next round on."""
        with acting(self._engine, by) as tx:
            before = locked_status(tx, Role.SILO, name)
            joined = good_certificates(tx, Role.SILO, name)
            step = Step.RESUME if joined else Step.RESUME_INVITED
            if _step(tx, Role.SILO, name, step) is not before:
                record(tx, now, by, Act.SILO_RESUMED, f"silo/{name}")

    def revoke(
        self, role: Role, name: str, now: datetime, by: Actor, *, drop_ballots: bool = False
    ) -> None:
        """Shuts a member out for good: every certificate it holds is withdrawn, its open token is void.

        Of an admin also the open tokens it made: by them it could come back under another name.
        """
        with acting(self._engine, by, changes=role) as tx:
            if role is Role.ADMIN and _active_admins(tx) == [name]:
                raise Refusal(errors.LAST_ADMIN, name=name)
            _step(tx, role, name, Step.REVOKE)
            withdraw_all(tx, role, name)
            dropped, details = [], {}
            if role is Role.SILO:
                _end_lease(tx, name)
                dropped = leave_open_rounds(tx, name, drop_ballots=drop_ballots)
            elif voided := void_tokens_made_by(tx, name):
                details = {"tokens_voided": voided}
            record(tx, now, by, Act.MEMBER_REVOKED, f"{role}/{name}", **details)
            record_dropped(tx, now, by, dropped)

    def admins(self) -> list[AdminRecord]:
        """Every admin by name."""
        expiry = newest_expiry(Role.ADMIN, admins)
        with snapshot(self._engine) as tx:
            rows = tx.execute(select(admins, expiry).order_by(in_order(admins.c.name))).mappings()
            return [AdminRecord(**{**row, "status": MemberStatus(row["status"])}) for row in rows]


def _reached(role: Role, name: str, status: MemberStatus | None, step: Step) -> MemberStatus:
    """Where a step leads from a status; the refusal if it leads nowhere."""
    reached = TRANSITIONS[step][status]
    if isinstance(reached, Refused):
        raise Refusal(member_kind(role).fault(reached), name=name, status=status or "unknown")
    return reached


def _step(tx: Connection, role: Role, name: str, step: Step) -> MemberStatus:
    """Makes a step under the member's lock; the status it leads to."""
    reached = _reached(role, name, locked_status(tx, role, name), step)
    _set_status(tx, role, name, reached)
    return reached


def _end_lease(tx: Connection, silo: str) -> None:
    lease = update(silos).where(silos.c.name == silo)
    tx.execute(lease.values(lease_instance=None, lease_until=None))


def _member_status(tx: Connection, role: Role, name: str) -> tuple[MemberStatus | None, list[str]]:
    """A member's status and good certificates, oldest first; in one question, since every call asks it."""
    rows = tx.execute(member_kind(role).status, {"name": name}).all()
    status = MemberStatus(rows[0].status) if rows else None
    return status, [row.fingerprint for row in rows if row.fingerprint is not None]


def _set_status(tx: Connection, role: Role, name: str, status: MemberStatus) -> None:
    table = member_kind(role).table
    tx.execute(update(table).where(table.c.name == name).values(status=status))


def _active_admins(tx: Connection) -> list[str]:
    """By name; all admins are locked."""
    query = select(admins.c.name).where(admins.c.status == MemberStatus.ACTIVE)
    return list(tx.execute(query.order_by(in_order(admins.c.name))).scalars())
