"""Silos, their join tokens and their leases."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine, RowMapping, delete, insert, select, update

from coordinator.store.records import IssuedCertificate, SiloRecord, SiloStatus, TokenRecord
from coordinator.store.schema import silos, tokens
from wire.errors import (
    LEASE_LOST,
    SILO_EXISTS,
    SILO_REVOKED,
    SILO_RUNNING_ELSEWHERE,
    SILO_UNKNOWN,
    TOKEN_EXPIRED,
    TOKEN_UNKNOWN,
    TOKEN_USED,
    Refusal,
)


class SiloStore:
    """Each method is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def register(self, token: TokenRecord, now: datetime, *, replace_token: bool) -> SiloRecord:
        """Adds the silo named by `token`, or replaces the unused token of one that has not joined."""
        with self._engine.begin() as tx:
            held = _find(tx, token.silo)
            if held is None:
                tx.execute(
                    insert(silos).values(
                        name=token.silo, status=SiloStatus.INVITED, registered_at=now
                    )
                )
            elif replace_token and held.status is SiloStatus.INVITED:
                tx.execute(delete(tokens).where(tokens.c.silo == token.silo))
            else:
                raise Refusal(SILO_EXISTS, name=token.silo, status=held.status)
            tx.execute(
                insert(tokens).values(
                    id=token.id,
                    silo=token.silo,
                    secret_hash=token.secret_hash,
                    expires_at=token.expires_at,
                )
            )
            return _get(tx, token.silo)

    def redeem(
        self,
        token_id: str,
        secret_hash: str,
        key_hash: str,
        now: datetime,
        issue: Callable[[str], IssuedCertificate],
    ) -> tuple[str, str]:
        """Spends a token for the key with `key_hash`; returns the silo's name and its certificate.

        The same key may ask again and gets the same certificate: an answer lost on the way does not lock
        the hospital out. Another key is refused.
        """
        with self._engine.begin() as tx:
            row = (
                tx.execute(select(tokens).where(tokens.c.id == token_id).with_for_update())
                .mappings()
                .first()
            )
            if row is None or not hmac.compare_digest(row["secret_hash"], secret_hash):
                raise Refusal(TOKEN_UNKNOWN)
            name: str = row["silo"]
            if _get(tx, name).status is SiloStatus.REVOKED:
                raise Refusal(SILO_REVOKED, name=name)
            if row["redeemed_by"] is not None:
                if row["redeemed_by"] != key_hash:
                    raise Refusal(TOKEN_USED, name=name)
                return name, row["certificate_pem"]
            if now >= row["expires_at"]:
                raise Refusal(TOKEN_EXPIRED, name=name, expired=f"{row['expires_at']:%F %T} UTC")
            certificate = issue(name)
            tx.execute(
                update(tokens)
                .where(tokens.c.id == token_id)
                .values(redeemed_by=key_hash, certificate_pem=certificate.pem)
            )
            _set(
                tx,
                name,
                status=SiloStatus.ACTIVE,
                certificate_fingerprint=certificate.fingerprint,
                certificate_expires_at=certificate.expires_at,
            )
            return name, certificate.pem

    def all(self) -> list[SiloRecord]:
        """Every silo by name."""
        with self._engine.begin() as tx:
            return [
                _record(row) for row in tx.execute(select(silos).order_by(silos.c.name)).mappings()
            ]

    def get(self, name: str) -> SiloRecord:
        """One silo, or SILO_UNKNOWN."""
        with self._engine.begin() as tx:
            return _get(tx, name)

    def revoke(self, name: str) -> SiloRecord:
        """Shuts a silo out for good and ends its lease."""
        with self._engine.begin() as tx:
            _get(tx, name)
            _set(tx, name, status=SiloStatus.REVOKED, lease_instance=None, lease_until=None)
            return _get(tx, name)

    def take_lease(
        self, name: str, instance: str, version: str, now: datetime, length: timedelta
    ) -> datetime:
        """Gives the lease to `instance`, unless another one holds it still; returns its end."""
        with self._engine.begin() as tx:
            silo = _get(tx, name)
            if silo.lease_until and silo.lease_instance != instance and silo.connected(now):
                raise Refusal(SILO_RUNNING_ELSEWHERE, name=name, until=f"{silo.lease_until:%T} UTC")
            _set(
                tx,
                name,
                lease_instance=instance,
                lease_until=now + length,
                last_seen_at=now,
                agent_version=version,
            )
            return now + length

    def renew_lease(
        self, name: str, instance: str, activity: int, now: datetime, length: timedelta
    ) -> datetime:
        """Prolongs the lease of the instance that holds it; returns its new end."""
        with self._engine.begin() as tx:
            if _get(tx, name).lease_instance != instance:
                raise Refusal(LEASE_LOST, name=name)
            _set(tx, name, lease_until=now + length, last_seen_at=now, activity=activity)
            return now + length

    def release_lease(self, name: str, instance: str, now: datetime) -> None:
        """Ends the lease at once, if `instance` holds it."""
        with self._engine.begin() as tx:
            if _get(tx, name).lease_instance == instance:
                _set(tx, name, lease_instance=None, lease_until=None, last_seen_at=now)


def active_silos(tx: Connection) -> list[str]:
    """Names of the silos that hold a certificate and are not revoked."""
    query = select(silos.c.name).where(silos.c.status == SiloStatus.ACTIVE).order_by(silos.c.name)
    return list(tx.execute(query).scalars())


def _find(tx: Connection, name: str) -> SiloRecord | None:
    row = tx.execute(select(silos).where(silos.c.name == name).with_for_update()).mappings().first()
    return None if row is None else _record(row)


def _get(tx: Connection, name: str) -> SiloRecord:
    silo = _find(tx, name)
    if silo is None:
        raise Refusal(SILO_UNKNOWN, name=name)
    return silo


def _set(tx: Connection, name: str, **values: object) -> None:
    tx.execute(update(silos).where(silos.c.name == name).values(**values))


def _record(row: RowMapping) -> SiloRecord:
    return SiloRecord(**{**row, "status": SiloStatus(row["status"])})
