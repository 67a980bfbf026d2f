"""Extractors in the store, on SQLite and on PostgreSQL: published once, newest first, pinned by tasks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from postgres import PostgresServer
from store_scenes import (
    ADMIN,
    HOUR,
    LATER,
    NOW,
    SCHEMA,
    SET_DIGEST,
    acts,
    at_once,
    definition,
    publish_set,
    refused,
)

from coordinator.store import Store
from coordinator.store.actors import LocalActor
from coordinator.store.records import ExtractorRecord
from wire.errors import EXTRACTOR_UNKNOWN, TASK_EXISTS, TASK_INVALID
from wire.task.definition import TaskDefinition

pytestmark = pytest.mark.slow

OLD, NEW, FOREIGN = "1" * 64, "2" * 64, "3" * 64
OTHER_SET = "b" * 64


def extractor(
    digest: str = OLD, public_set: str = SET_DIGEST, at: datetime = NOW
) -> ExtractorRecord:
    return ExtractorRecord(digest, public_set, "pca", 2, 640, at)


def asking(reference: str, name: str = "sepsis") -> TaskDefinition:
    return definition(name).model_copy(update={"extractor": reference})


class Contract:
    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        opened = Store(url)
        publish_set(opened)
        opened.public_sets.add("clinics", OTHER_SET, 9, 100, SCHEMA, NOW, ADMIN)
        yield opened
        opened.close()

    def test_what_was_published_is_found_newest_first_and_by_set(self, store: Store) -> None:
        published = [
            extractor(OLD),
            extractor(NEW, at=LATER),
            extractor(FOREIGN, OTHER_SET, at=NOW + HOUR),
        ]
        # The order of publication is that of the clock, not of the calls.
        for one in (published[1], published[0], published[2]):
            assert store.extractors.add(one, ADMIN) == (one, False)
        assert store.extractors.all() == published[::-1]
        assert store.extractors.all(SET_DIGEST) == [published[1], published[0]]
        assert store.extractors.all("c" * 64) == []
        assert store.extractors.get(NEW) == published[1]
        refused(EXTRACTOR_UNKNOWN, lambda: store.extractors.get("9" * 64), "9" * 64)

    def test_publishing_again_changes_nothing_and_is_no_act(self, store: Store) -> None:
        store.extractors.add(extractor(), ADMIN)
        before = acts(store)
        assert before[-1] == f"extractor_published extractor/{OLD[:16]} by {ADMIN}"
        assert store.audit.page()[-1].entry["details"] == {
            "digest": OLD,
            "public_set": SET_DIGEST,
            "kind": "pca",
            "dimensions": 2,
        }
        held, already = store.extractors.add(extractor(at=LATER), LocalActor("admin/other"))
        assert (held, already) == (extractor(), True)
        assert acts(store) == before

    def test_replicas_that_publish_the_same_at_once_publish_it_once(
        self, store: Store, url: str
    ) -> None:
        racers = [lambda replica: replica.extractors.add(extractor(), ADMIN)[1]] * 4
        assert sorted(at_once(url, racers)) == [False, True, True, True]
        assert sum("extractor_published" in act for act in acts(store)) == 1
        assert store.extractors.all() == [extractor()]

    def test_a_task_pins_the_latest_for_good(self, store: Store) -> None:
        store.extractors.add(extractor(OLD), ADMIN)
        store.extractors.add(extractor(FOREIGN, OTHER_SET, at=NOW + HOUR), ADMIN)
        first = store.tasks.create(asking("latest"), NOW, ADMIN)
        assert first.definition.extractor == OLD
        assert store.tasks.create(asking(OLD), NOW, ADMIN).digest == first.digest
        store.extractors.add(extractor(NEW, at=LATER), ADMIN)
        assert store.tasks.get("sepsis").definition.extractor == OLD
        # The file says `latest` as before, and means another extractor now.
        refused(TASK_EXISTS, lambda: store.tasks.create(asking("latest"), LATER, ADMIN))
        assert store.tasks.create(asking("latest", "flu"), LATER, ADMIN).definition.extractor == NEW
        assert store.tasks.create(asking(OLD, "cold"), LATER, ADMIN).definition.extractor == OLD

    def test_a_task_may_do_without(self, store: Store) -> None:
        store.extractors.add(extractor(), ADMIN)
        kept = store.tasks.create(definition(), NOW, ADMIN)
        assert kept.definition.extractor == ""
        assert "extractor" not in kept.definition.canonical()

    @pytest.mark.parametrize(
        ("reference", "words"),
        [
            ("latest", ["wards@1 has no extractor yet", "public-set pretrain wards@1"]),
            (OLD, [f"wards@1 has no extractor {OLD}", "public-set extractors wards@1"]),
            (FOREIGN, [f"wards@1 has no extractor {FOREIGN}"]),
            (FOREIGN[:12], [f"no extractor {FOREIGN[:12]};"]),
            ("x" * 9000, ["no extractor xxx"]),
        ],
        ids=["none yet", "unknown", "of another set", "a prefix", "nonsense"],
    )
    def test_a_task_whose_set_has_no_such_extractor_is_not_made(
        self, store: Store, reference: str, words: list[str]
    ) -> None:
        store.extractors.add(extractor(FOREIGN, OTHER_SET), ADMIN)
        refused(TASK_INVALID, lambda: store.tasks.create(asking(reference), NOW, ADMIN), *words)
        assert store.tasks.all() == []

    def test_a_new_version_of_a_set_has_no_extractor_of_the_old_one(self, store: Store) -> None:
        store.extractors.add(extractor(), ADMIN)
        store.public_sets.add("wards", "d" * 64, 8, 100, SCHEMA, LATER, ADMIN)
        refused(
            TASK_INVALID,
            lambda: store.tasks.create(asking("latest"), LATER, ADMIN),
            "wards@2 has no extractor yet",
        )


class TestSqlite(Contract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'coordinator.db'}"


class TestPostgres(Contract):
    @pytest.fixture
    def url(self, postgres: PostgresServer) -> Iterator[str]:
        fresh = postgres.fresh_url()
        yield fresh
        postgres.drop(fresh)
