"""Which public sets there are; their content lies in a folder beside the database."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, Engine, RowMapping, func, insert, select

from coordinator.store.records import PublicSetRecord
from coordinator.store.schema import public_sets
from wire.errors import PUBLIC_SET_UNKNOWN, Refusal


class PublicSetStore:
    """Each method is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(
        self,
        name: str,
        digest: str,
        rows: int,
        size_bytes: int,
        schema: dict[str, object],
        now: datetime,
    ) -> tuple[PublicSetRecord, bool]:
        """Publishes content under the next version of `name`; the flag says it was there already."""
        with self._engine.begin() as tx:
            held = (
                tx.execute(
                    select(public_sets).where(
                        public_sets.c.name == name, public_sets.c.digest == digest
                    )
                )
                .mappings()
                .first()
            )
            if held is not None:
                return _record(held), True
            latest = tx.scalar(
                select(func.max(public_sets.c.version)).where(public_sets.c.name == name)
            )
            record = PublicSetRecord(name, (latest or 0) + 1, digest, rows, size_bytes, schema, now)
            tx.execute(insert(public_sets).values(**vars(record)))
            return record, False

    def all(self) -> list[PublicSetRecord]:
        """Every version of every set, newest version first."""
        query = select(public_sets).order_by(public_sets.c.name, public_sets.c.version.desc())
        with self._engine.begin() as tx:
            return [_record(row) for row in tx.execute(query).mappings()]

    def find(self, reference: str) -> PublicSetRecord:
        """By digest, by name (its latest version) or by name@version."""
        with self._engine.begin() as tx:
            return find_public_set(tx, reference)


def find_public_set(tx: Connection, reference: str) -> PublicSetRecord:
    """The set `reference` means, within a transaction, or PUBLIC_SET_UNKNOWN."""
    name, _, version = reference.partition("@")
    query = select(public_sets).order_by(public_sets.c.version.desc())
    if version.isdecimal():
        query = query.where(public_sets.c.name == name, public_sets.c.version == int(version))
    else:
        query = query.where((public_sets.c.digest == reference) | (public_sets.c.name == reference))
    row = tx.execute(query).mappings().first()
    if row is None:
        raise Refusal(PUBLIC_SET_UNKNOWN, reference=reference)
    return _record(row)


def _record(row: RowMapping) -> PublicSetRecord:
    return PublicSetRecord(**row)
