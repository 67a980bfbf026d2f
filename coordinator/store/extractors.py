"""Which extractors were trained on which public set; their content lies in a folder beside the database."""

from __future__ import annotations

from sqlalchemy import Connection, Engine, RowMapping, select

from coordinator.store.actors import Actor
from coordinator.store.audit import Act, record
from coordinator.store.engine import insert_new, snapshot
from coordinator.store.records import ExtractorRecord, PublicSetRecord
from coordinator.store.schema import extractors
from coordinator.store.standing import acting
from wire.errors import EXTRACTOR_UNKNOWN, TASK_INVALID, Refusal

LATEST = "latest"
"""What task.yaml may say in place of a digest: the newest when the task is created."""


class ExtractorStore:
    """Each method is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, published: ExtractorRecord, by: Actor) -> tuple[ExtractorRecord, bool]:
        """Publishes an extractor; the flag says that it was there already, and since when stands."""
        with acting(self._engine, by) as tx:
            fresh = insert_new(tx, extractors, **vars(published))
            if fresh:
                record(
                    tx,
                    published.added_at,
                    by,
                    Act.EXTRACTOR_PUBLISHED,
                    f"extractor/{published.digest[:16]}",
                    digest=published.digest,
                    public_set=published.public_set,
                    kind=published.kind,
                    dimensions=published.dimensions,
                )
            return _get(tx, published.digest), not fresh

    def all(self, public_set: str = "") -> list[ExtractorRecord]:
        """Every extractor, or those of one public set by its digest; newest first."""
        with snapshot(self._engine) as tx:
            return _newest_first(tx, public_set)

    def get(self, digest: str) -> ExtractorRecord:
        """One extractor, or EXTRACTOR_UNKNOWN."""
        with snapshot(self._engine) as tx:
            return _get(tx, digest)


def resolved_extractor(tx: Connection, reference: str, public: PublicSetRecord) -> str:
    """The digest a task means by `reference`, empty for none; TASK_INVALID if `public` has no such extractor."""
    if not reference:
        return ""
    held = [extractor.digest for extractor in _newest_first(tx, public.digest)]
    name = f"{public.name}@{public.version}"
    if reference == LATEST:
        if not held:
            why = f"public set {name} has no extractor yet; train one with `consilium public-set pretrain {name}`"
            raise Refusal(TASK_INVALID, why=why)
        return held[0]
    if reference not in held:
        why = (
            f"public set {name} has no extractor {reference[:64]}; write `latest` or a digest from "
            f"`consilium public-set extractors {name}`"
        )
        raise Refusal(TASK_INVALID, why=why)
    return reference


def _newest_first(tx: Connection, public_set: str) -> list[ExtractorRecord]:
    query = select(extractors).order_by(extractors.c.added_at.desc(), extractors.c.digest)
    if public_set:
        query = query.where(extractors.c.public_set == public_set)
    return [_record(row) for row in tx.execute(query).mappings()]


def _get(tx: Connection, digest: str) -> ExtractorRecord:
    row = tx.execute(select(extractors).where(extractors.c.digest == digest)).mappings().first()
    if row is None:
        raise Refusal(EXTRACTOR_UNKNOWN, reference=digest[:80])
    return _record(row)


def _record(row: RowMapping) -> ExtractorRecord:
    return ExtractorRecord(**row)
