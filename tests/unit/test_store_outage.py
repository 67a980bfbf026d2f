"""A database that is missing, goes away or undoes a transaction: what callers are told, and that it passes."""

from __future__ import annotations

import asyncio
import sqlite3
from functools import partial
from pathlib import Path
from threading import Barrier, Event, Thread

import psycopg
import pytest
from patience import PATIENCE
from postgres import PostgresServer
from prometheus_client import CollectorRegistry
from sqlalchemy import make_url, text
from store_scenes import NOW, invite, join, refused

from coordinator.metrics.store import StoreCollector, read_snapshot
from coordinator.store import Store
from coordinator.store.engine import lost_a_race, open_engine
from coordinator.store.executor import StoreExecutor
from wire.errors import STORE_UNAVAILABLE, ConfigurationError

pytestmark = pytest.mark.slow


def test_a_stopped_server_is_told_as_unavailable_and_needs_no_restart_here(
    own_postgres: PostgresServer,
) -> None:
    store = Store(own_postgres.fresh_url())
    join(store, "north")
    before = store.silos.all()
    own_postgres.stop()
    for act in (store.silos.all, store.tasks.all, lambda: invite(store, "south")):
        refused(STORE_UNAVAILABLE, act)
    own_postgres.start()
    assert store.silos.all() == before
    invite(store, "south")
    store.close()


def test_a_server_that_goes_away_in_a_transaction_undoes_it(own_postgres: PostgresServer) -> None:
    url = own_postgres.fresh_url()
    store = Store(url)
    database = own_postgres.conninfo(make_url(url).database or "")
    # The registration waits for this lock when the server goes.
    other = psycopg.connect(database)
    other.execute("SELECT * FROM audit_head FOR UPDATE")
    outcomes: list[BaseException | None] = []

    def register() -> None:
        try:
            invite(store, "north")
            outcomes.append(None)
        except Exception as error:
            outcomes.append(error)

    waiting = Thread(target=register)
    waiting.start()
    own_postgres.until_waiting(url, 1)
    own_postgres.crash()
    waiting.join()
    other.close()
    assert [getattr(outcome, "code", outcome) for outcome in outcomes] == [STORE_UNAVAILABLE.code]
    own_postgres.start()
    assert store.silos.all() == []
    store.close()


def test_a_dead_connection_in_the_pool_is_replaced_unnoticed(postgres: PostgresServer) -> None:
    url = postgres.fresh_url()
    store = Store(url)
    join(store, "north")
    with psycopg.connect(postgres.conninfo(), autocommit=True) as onlooker:
        name = make_url(url).database
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        assert onlooker.execute(end, (name,)).fetchall()
    assert [silo.name for silo in store.silos.all()] == ["north"]
    store.close()


def test_a_full_disk_is_told_as_unavailable(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'coordinator.db'}"
    store = Store(url)
    with store._engine.connect() as connection:
        driver = connection.connection.dbapi_connection
        assert isinstance(driver, sqlite3.Connection)
        (pages,) = driver.execute("PRAGMA page_count").fetchone()
        driver.execute(f"PRAGMA max_page_count={pages}")

    def fill() -> None:
        for number in range(1000):
            store.signers.keep(f"{number:064}", "certificate" * 100)

    refused(STORE_UNAVAILABLE, fill)
    assert store.silos.all() == []
    store.close()


def test_the_metrics_page_survives_the_outage(own_postgres: PostgresServer) -> None:
    store = Store(own_postgres.fresh_url())
    registry = CollectorRegistry()
    registry.register(StoreCollector(partial(read_snapshot, store), lambda: NOW))
    assert registry.get_sample_value("consilium_store_up") == 1
    assert registry.get_sample_value("consilium_silos", {"status": "active"}) == 0
    own_postgres.stop()
    assert registry.get_sample_value("consilium_store_up") == 0
    assert registry.get_sample_value("consilium_silos", {"status": "active"}) is None
    store.close()


def test_a_database_that_cannot_be_opened_is_named_without_its_password(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    for url in (
        f"postgresql+psycopg://chief:secret@/wards?host={missing}",
        f"postgresql://chief:secret@/wards?host={missing}",
        f"sqlite:///{missing / 'coordinator.db'}",
    ):
        with pytest.raises(ConfigurationError) as caught:
            Store(url)
        assert "nowhere" in caught.value.sentence
        assert "secret" not in caught.value.sentence


@pytest.mark.parametrize("url", ["mysql://localhost/wards", "wards", "oracle://x"])
def test_other_databases_are_refused_with_an_example(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Store(url)
    assert "postgresql+psycopg://" in caught.value.hint


def test_a_transaction_that_lost_a_deadlock_is_made_again(postgres: PostgresServer) -> None:
    url = postgres.fresh_url()
    Store(url).close()
    engine = open_engine(url)
    both_hold_one = Barrier(2)
    attempts: list[str] = []

    def swap(name: str, *tables: str) -> None:
        attempts.append(name)
        with engine.begin() as tx:
            tx.execute(text(f"SELECT * FROM {tables[0]} FOR UPDATE"))
            if len(attempts) <= 2:
                both_hold_one.wait(PATIENCE)
            tx.execute(text(f"SELECT * FROM {tables[1]} FOR UPDATE"))

    async def both() -> None:
        in_store = StoreExecutor(shared=True)
        await asyncio.gather(
            in_store(swap, "one", "revisions", "audit_head"),
            in_store(swap, "other", "audit_head", "revisions"),
        )
        in_store.close()

    asyncio.run(both())
    assert len(attempts) == 3
    engine.dispose()


def test_a_transaction_that_always_loses_is_given_up_as_unavailable(
    postgres: PostgresServer,
) -> None:
    engine = open_engine(postgres.fresh_url())
    attempts: list[int] = []

    def lose() -> None:
        attempts.append(1)
        with engine.begin() as tx:
            tx.execute(text("DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$"))

    async def try_it() -> None:
        await StoreExecutor(shared=True)(lose)

    refused(STORE_UNAVAILABLE, lambda: asyncio.run(try_it()))
    assert len(attempts) == 5
    engine.dispose()


def test_an_error_of_ours_is_never_tried_again(tmp_path: Path) -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise ValueError("ours")

    async def try_it() -> None:
        await StoreExecutor()(fail)

    with pytest.raises(ValueError, match="ours"):
        asyncio.run(try_it())
    assert len(calls) == 1
    assert not lost_a_race(ValueError())


def test_a_shared_store_is_used_by_several_threads() -> None:
    together = Barrier(2)

    async def both() -> None:
        threads = StoreExecutor(shared=True)
        await asyncio.gather(*(threads(together.wait, 30) for _ in range(2)))

    asyncio.run(both())


def test_calls_to_a_store_of_ones_own_are_made_in_order() -> None:
    second_is_asked_for = Event()
    order: list[str] = []

    def first() -> None:
        second_is_asked_for.wait(PATIENCE)
        order.append("first")

    async def both() -> None:
        threads = StoreExecutor()
        calls = [
            asyncio.create_task(threads(call)) for call in (first, partial(order.append, "2nd"))
        ]
        await asyncio.sleep(0)
        second_is_asked_for.set()
        await asyncio.gather(*calls)

    asyncio.run(both())
    assert order == ["first", "2nd"]
