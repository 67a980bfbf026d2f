"""Notifications between replicas: two in one process, a real PostgreSQL between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from patience import PATIENCE
from postgres import PostgresServer

from coordinator.rounds import change_bus as module
from coordinator.rounds.change_bus import ChangeBus, Topic
from coordinator.store import Store
from coordinator.store.executor import StoreExecutor

pytestmark = pytest.mark.slow


@asynccontextmanager
async def replica(url: str) -> AsyncIterator[ChangeBus]:
    """A replica's change bus, already listening."""
    store = Store(url)
    in_store = StoreExecutor(shared=store.shared)
    change_bus = ChangeBus(store, in_store)
    heard = change_bus.tasks.waiter()
    running = asyncio.create_task(change_bus.run())
    if store.shared:
        await asyncio.wait_for(heard.wait(), PATIENCE)
    try:
        yield change_bus
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        in_store.close()
        store.close()


@pytest.fixture(autouse=True)
def nobody_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fires was announced."""
    monkeypatch.setattr(module, "POLL_SECONDS", 3600.0)


def test_what_one_replica_announces_fires_on_the_other(postgres: PostgresServer) -> None:
    async def scene() -> None:
        url = postgres.fresh_url()
        async with replica(url) as one, replica(url) as other:
            for topic in Topic:
                waiters = {
                    Topic.TASKS: other.tasks.waiter(),
                    Topic.BALLOTS: other.ballots.waiter(),
                    Topic.MEMBERS: other.members.waiter(),
                }
                one.announce(topic)
                await asyncio.wait_for(waiters.pop(topic).wait(), PATIENCE)
                assert not any(waiter.is_set() for waiter in waiters.values())

    asyncio.run(scene())


def test_an_announcement_fires_at_home_at_once_and_only_once(postgres: PostgresServer) -> None:
    async def scene() -> None:
        url = postgres.fresh_url()
        async with replica(url) as one, replica(url) as other:
            before, elsewhere = one.tasks.waiter(), other.tasks.waiter()
            one.announce(Topic.TASKS)
            assert before.is_set()
            after = one.tasks.waiter()
            # By the time an answer has come back, our own message has passed us by.
            await asyncio.wait_for(elsewhere.wait(), PATIENCE)
            answer = one.ballots.waiter()
            other.announce(Topic.BALLOTS)
            await asyncio.wait_for(answer.wait(), PATIENCE)
            assert not after.is_set()

    asyncio.run(scene())


def test_after_an_interruption_every_signal_fires_because_something_may_be_missed(
    own_postgres: PostgresServer,
) -> None:
    async def scene() -> None:
        async with replica(own_postgres.fresh_url()) as one:
            tasks, ballots = one.tasks.waiter(), one.ballots.waiter()
            own_postgres.stop()
            # Cannot be sent; must neither be waited for nor end anything.
            one.announce()
            assert not tasks.is_set()
            own_postgres.start()
            for waiter in (tasks, ballots):
                await asyncio.wait_for(waiter.wait(), PATIENCE)

    asyncio.run(scene())


def test_a_lost_notification_is_made_up_for_by_polling(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)

    async def scene() -> None:
        async with replica(postgres.fresh_url()) as one:
            for signal in (one.tasks, one.ballots):
                await asyncio.wait_for(signal.waiter().wait(), PATIENCE)

    asyncio.run(scene())


def test_a_store_of_ones_own_announces_within_the_process_only(tmp_path: Path) -> None:
    async def scene() -> None:
        async with replica(f"sqlite:///{tmp_path / 'coordinator.db'}") as one:
            waiter = one.tasks.waiter()
            one.announce(Topic.TASKS)
            assert waiter.is_set()
            await one.run()

    asyncio.run(scene())
