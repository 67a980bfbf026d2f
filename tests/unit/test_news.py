"""News between replicas: two in one process, a real PostgreSQL between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from postgres import PostgresServer

import coordinator.news as news_module
from coordinator.news import News, Topic
from coordinator.store import Store
from coordinator.store_thread import StoreThread

_PATIENCE = 30.0


@asynccontextmanager
async def replica(url: str) -> AsyncIterator[News]:
    """A replica's news, already listening."""
    store = Store(url)
    in_store = StoreThread(shared=store.shared)
    news = News(store, in_store)
    heard = news.tasks.ticket()
    running = asyncio.create_task(news.run())
    if store.shared:
        await asyncio.wait_for(heard.wait(), _PATIENCE)
    try:
        yield news
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        in_store.close()
        store.close()


@pytest.fixture(autouse=True)
def nobody_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is heard was sent."""
    monkeypatch.setattr(news_module, "POLL_SECONDS", 3600.0)


def test_what_one_replica_announces_rings_on_the_other(postgres: PostgresServer) -> None:
    async def scene() -> None:
        url = postgres.fresh_url()
        async with replica(url) as one, replica(url) as other:
            for topic in Topic:
                tickets = {Topic.TASKS: other.tasks.ticket(), Topic.BALLOTS: other.ballots.ticket()}
                one.announce(topic)
                await asyncio.wait_for(tickets.pop(topic).wait(), _PATIENCE)
                assert not any(ticket.is_set() for ticket in tickets.values())

    asyncio.run(scene())


def test_an_announcement_rings_at_home_at_once_and_only_once(postgres: PostgresServer) -> None:
    async def scene() -> None:
        url = postgres.fresh_url()
        async with replica(url) as one, replica(url) as other:
            before, elsewhere = one.tasks.ticket(), other.tasks.ticket()
            one.announce(Topic.TASKS)
            assert before.is_set()
            after = one.tasks.ticket()
            # By the time an answer has come back, our own message has passed us by.
            await asyncio.wait_for(elsewhere.wait(), _PATIENCE)
            answer = one.ballots.ticket()
            other.announce(Topic.BALLOTS)
            await asyncio.wait_for(answer.wait(), _PATIENCE)
            assert not after.is_set()

    asyncio.run(scene())


def test_after_an_interruption_everything_rings_because_something_may_be_missed(
    own_postgres: PostgresServer,
) -> None:
    async def scene() -> None:
        async with replica(own_postgres.fresh_url()) as one:
            tasks, ballots = one.tasks.ticket(), one.ballots.ticket()
            own_postgres.stop()
            # Cannot be sent; must neither be waited for nor end anything.
            one.announce()
            assert not tasks.is_set()
            own_postgres.start()
            for ticket in (tasks, ballots):
                await asyncio.wait_for(ticket.wait(), _PATIENCE)

    asyncio.run(scene())


def test_a_lost_message_is_made_up_for_by_looking(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news_module, "POLL_SECONDS", 0.01)

    async def scene() -> None:
        async with replica(postgres.fresh_url()) as one:
            for bell in (one.tasks, one.ballots):
                await asyncio.wait_for(bell.ticket().wait(), _PATIENCE)

    asyncio.run(scene())


def test_a_store_of_ones_own_has_news_within_the_process_only(tmp_path: Path) -> None:
    async def scene() -> None:
        async with replica(f"sqlite:///{tmp_path / 'coordinator.db'}") as one:
            ticket = one.tasks.ticket()
            one.announce(Topic.TASKS)
            assert ticket.is_set()
            await one.run()

    asyncio.run(scene())
