"""The store on SQLite and on PostgreSQL: one contract, and what each engine promises besides."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from member_contract import MemberContract
from patience import PATIENCE
from postgres import PostgresServer
from privacy_contract import PrivacyContract
from race_contract import RaceContract
from sqlalchemy import make_url
from standing_contract import StandingContract
from store_agreement import AgreementContract
from store_contract import StoreContract
from store_scenes import (
    ADMIN,
    LATER,
    SCHEMA,
    SET_DIGEST,
    caller,
    consensus,
    join,
    open_task,
    running,
)

from coordinator.round_engine import ClosedBy
from coordinator.store import Store
from coordinator.store.actors import Caller
from coordinator.store.engine import open_engine
from wire.errors import ADMIN_REVOKED, Refusal
from wire.identity.identity import Role

pytestmark = pytest.mark.slow


def publish_set_as(store: Store, by: Caller) -> None:
    store.public_sets.add("wards", SET_DIGEST, 8, 100, SCHEMA, LATER, by)


class WholeContract(
    StoreContract,
    MemberContract,
    StandingContract,
    RaceContract,
    PrivacyContract,
    AgreementContract,
):
    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        opened = Store(url)
        yield opened
        opened.close()


class TestSqlite(WholeContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'coordinator.db'}"

    def test_every_commit_reaches_the_disk(self, url: str) -> None:
        Store(url).close()
        engine = open_engine(url)
        with engine.begin() as tx:
            pragmas = {
                name: tx.exec_driver_sql(f"PRAGMA {name}").scalar()
                for name in ("journal_mode", "synchronous", "foreign_keys")
            }
        engine.dispose()
        # 2 is FULL: a receipt is given only for what survives a power cut.
        assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


class TestPostgres(WholeContract):
    @pytest.fixture
    def url(self, postgres: PostgresServer) -> Iterator[str]:
        fresh = postgres.fresh_url()
        yield fresh
        postgres.drop(fresh)

    def test_an_act_that_waits_while_its_caller_is_revoked_is_refused(
        self, store: Store, url: str, postgres: PostgresServer
    ) -> None:
        join(store, "ada", "zoe", role=Role.ADMIN)
        ada = caller(store, "ada", Role.ADMIN)
        with (
            ThreadPoolExecutor(2) as threads,
            psycopg.connect(postgres.conninfo(make_url(url).database or "")) as holder,
        ):
            holder.execute("SELECT * FROM audit_head FOR UPDATE")
            # Holds the admins' rows until the audit chain is free.
            revoked = threads.submit(store.members.revoke, Role.ADMIN, "ada", LATER, ADMIN)
            postgres.until_waiting(url, 1)
            acted = threads.submit(publish_set_as, store, ada)
            postgres.until_waiting(url, 2)
            holder.rollback()
            revoked.result(PATIENCE)
            with pytest.raises(Refusal) as caught:
                acted.result(PATIENCE)
        assert caught.value.is_a(ADMIN_REVOKED)
        assert store.public_sets.all() == []

    @pytest.mark.parametrize("opening", ["publish", "start"])
    def test_a_round_opened_while_a_silo_is_being_shut_out_does_not_expect_it(
        self, store: Store, url: str, postgres: PostgresServer, opening: str
    ) -> None:
        current = open_task(store, "east", "north", "south")
        if opening == "publish":
            store.tasks.begin_close(current, ClosedBy.DEADLINE)
        else:
            store.tasks.pause("sepsis", "Paused.", LATER, ADMIN)

        def open_round() -> None:
            if opening == "publish":
                store.tasks.publish(current, consensus(), LATER)
            else:
                store.tasks.start("sepsis", LATER, ADMIN)

        with (
            ThreadPoolExecutor(2) as threads,
            psycopg.connect(postgres.conninfo(make_url(url).database or "")) as holder,
        ):
            # What every act needs in the end, so that each gets as far as it can and waits.
            holder.execute("SELECT * FROM audit_head FOR UPDATE")
            acts = [
                lambda: store.members.suspend("north", LATER, ADMIN, drop_ballots=True),
                open_round,
            ]
            done = []
            for waiting, act in enumerate(acts, start=1):
                done.append(threads.submit(act))
                postgres.until_waiting(url, waiting)
            holder.rollback()
            for outcome in done:
                outcome.result(PATIENCE)
        assert running(store.tasks.get("sepsis")).expected == {"east", "south"}
