"""Which public sets there are; their content lies in a folder beside the database."""

from __future__ import annotations

import re
from datetime import datetime

from sqlalchemy import Connection, Engine, RowMapping, func, select

from coordinator.store.actors import Actor
from coordinator.store.audit import Act, record
from coordinator.store.engine import insert_new, snapshot
from coordinator.store.records import PublicSetRecord
from coordinator.store.schema import in_order, public_sets
from coordinator.store.standing import acting
from wire.errors import PUBLIC_SET_UNKNOWN, Refusal
from wire.runtime.crash_points import crash_point

# No more digits than the column holds.
_NAME_AND_VERSION = re.compile(r"([^@]*)@([0-9]{1,9})")


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
        by: Actor,
    ) -> tuple[PublicSetRecord, bool]:
        """Publishes content under the next version of `name`; the flag says it was there already."""
        with acting(self._engine, by) as tx:
            published = None
            # Another replica may take the version, or publish the same content, in between.
            while published is None:
                if held := _held(tx, name, digest):
                    return held, True
                mine = public_sets.c.name == name
                latest = tx.scalar(select(func.max(public_sets.c.version)).where(mine))
                version = (latest or 0) + 1
                tried = PublicSetRecord(name, version, digest, rows, size_bytes, schema, now)
                published = tried if insert_new(tx, public_sets, **vars(tried)) else None
            record(
                tx,
                now,
                by,
                Act.PUBLIC_SET_PUBLISHED,
                f"public-set/{name}@{published.version}",
                digest=digest,
                rows=rows,
            )
            crash_point("public-set-publishing")
            return published, False

    def all(self) -> list[PublicSetRecord]:
        """Every version of every set, newest version first."""
        query = select(public_sets).order_by(
            in_order(public_sets.c.name), public_sets.c.version.desc()
        )
        with snapshot(self._engine) as tx:
            return [_record(row) for row in tx.execute(query).mappings()]

    def find(self, reference: str) -> PublicSetRecord:
        """By digest, by name (its latest version) or by name@version."""
        with snapshot(self._engine) as tx:
            return find_public_set(tx, reference)


def find_public_set(tx: Connection, reference: str) -> PublicSetRecord:
    """The set `reference` means, within a transaction, or PUBLIC_SET_UNKNOWN."""
    named = _NAME_AND_VERSION.fullmatch(reference)
    query = select(public_sets).order_by(public_sets.c.version.desc())
    if named:
        name, version = named.groups()
        query = query.where(public_sets.c.name == name, public_sets.c.version == int(version))
    else:
        query = query.where((public_sets.c.digest == reference) | (public_sets.c.name == reference))
    row = tx.execute(query).mappings().first()
    if row is None:
        raise Refusal(PUBLIC_SET_UNKNOWN, reference=reference)
    return _record(row)


def _held(tx: Connection, name: str, digest: str) -> PublicSetRecord | None:
    query = select(public_sets).where(public_sets.c.name == name, public_sets.c.digest == digest)
    row = tx.execute(query).mappings().first()
    return None if row is None else _record(row)


def _record(row: RowMapping) -> PublicSetRecord:
    return PublicSetRecord(**row)
