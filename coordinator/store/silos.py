"""Silos and their leases: who is connected follows from timestamps alone."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine, RowMapping, select, update

from coordinator.store.actors import Caller
from coordinator.store.certificates import newest_expiry
from coordinator.store.engine import snapshot
from coordinator.store.records import MemberStatus, SiloRecord
from coordinator.store.schema import in_order, silos
from coordinator.store.standing import acting
from wire.errors import LEASE_LOST, SILO_RUNNING_ELSEWHERE, SILO_UNKNOWN, Refusal
from wire.identity.identity import Role

_COLUMNS = (silos, newest_expiry(Role.SILO, silos))


class SiloStore:
    """Each method is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def all(self) -> list[SiloRecord]:
        """Every silo by name."""
        with snapshot(self._engine) as tx:
            rows = tx.execute(select(*_COLUMNS).order_by(in_order(silos.c.name))).mappings()
            return [_record(row) for row in rows]

    def get(self, name: str) -> SiloRecord:
        """One silo, or SILO_UNKNOWN."""
        with snapshot(self._engine) as tx:
            return _get(tx, name)

    def take_lease(
        self, by: Caller, instance: str, version: str, now: datetime, length: timedelta
    ) -> datetime:
        """Gives the lease to `instance`, unless another one holds it still; returns its end."""
        with acting(self._engine, by) as tx:
            silo = _get(tx, by.name, lock=True)
            if silo.lease_until and silo.lease_instance != instance and silo.connected(now):
                raise Refusal(
                    SILO_RUNNING_ELSEWHERE, name=by.name, until=f"{silo.lease_until:%T} UTC"
                )
            _set(
                tx,
                by.name,
                lease_instance=instance,
                lease_until=now + length,
                last_seen_at=now,
                agent_version=version,
            )
            return now + length

    def renew_lease(
        self, by: Caller, instance: str, activity: int, now: datetime, length: timedelta
    ) -> datetime:
        """Prolongs the lease of the instance that holds it; returns its new end."""
        with acting(self._engine, by) as tx:
            if _get(tx, by.name, lock=True).lease_instance != instance:
                raise Refusal(LEASE_LOST, name=by.name)
            _set(tx, by.name, lease_until=now + length, last_seen_at=now, activity=activity)
            return now + length

    def release_lease(self, by: Caller, instance: str, now: datetime) -> None:
        """Ends the lease at once, if `instance` holds it."""
        with acting(self._engine, by) as tx:
            if _get(tx, by.name, lock=True).lease_instance == instance:
                _set(tx, by.name, lease_instance=None, lease_until=None, last_seen_at=now)


def active_silos(tx: Connection) -> list[str]:
    """Names of the silos that may vote; none of them is shut out before the transaction ends.

    Heartbeats go on: they change no key.
    """
    query = select(silos.c.name).where(silos.c.status == MemberStatus.ACTIVE)
    locked = query.order_by(in_order(silos.c.name)).with_for_update(read=True, key_share=True)
    return list(tx.execute(locked).scalars())


def _get(tx: Connection, name: str, *, lock: bool = False) -> SiloRecord:
    query = select(*_COLUMNS).where(silos.c.name == name)
    if lock:
        query = query.with_for_update(of=silos, key_share=True)
    row = tx.execute(query).mappings().first()
    if row is None:
        raise Refusal(SILO_UNKNOWN, name=name)
    return _record(row)


def _set(tx: Connection, name: str, **values: object) -> None:
    tx.execute(update(silos).where(silos.c.name == name).values(**values))


def _record(row: RowMapping) -> SiloRecord:
    return SiloRecord(**{**row, "status": MemberStatus(row["status"])})
