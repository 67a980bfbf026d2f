"""The scheduler counts beside the store: while an election takes its time, everyone else is served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event, Lock, Semaphore
from time import sleep
from typing import Any, ParamSpec, TypeVar

import psycopg
import pytest
from postgres import PostgresServer
from prometheus_client import CollectorRegistry
from sqlalchemy import make_url, text
from sqlalchemy.exc import ProgrammingError
from store_scenes import ADMIN, NOW, definition, join, publish_set, running, vote

from coordinator.consensus import Outcome, elect
from coordinator.metrics.instruments import Metrics
from coordinator.round_engine import ClosedBy
from coordinator.rounds import close, scheduler
from coordinator.rounds.change_bus import ChangeBus, Topic
from coordinator.rounds.close import RoundCloser
from coordinator.rounds.scheduler import CLOSES_AT_ONCE, RoundScheduler
from coordinator.store import Store, close_lock
from coordinator.store.executor import StoreExecutor
from wire.errors import BALLOT_DIGEST, STORE_UNAVAILABLE, Refusal

pytestmark = pytest.mark.slow

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE = 60.0
"""Seconds after which something that should happen counts as never happening; no test needs them."""
SILOS = ("north", "south")


class Elections:
    """Stands before the real election: counts who comes, and holds up the rounds of some tasks."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._held: dict[str, tuple[Event, Event]] = {}
        self.held: list[tuple[str, int]] = []
        self.errors: list[Exception] = []

    def hold(self, *tasks: str) -> None:
        self._held = {task: (Event(), Event()) for task in tasks}

    def elect(self, task: Any, round_number: int, *others: Any) -> Outcome:
        with self._lock:
            self.held.append((task.name, round_number))
            error = self.errors.pop() if self.errors else None
        if error is not None:
            raise error
        if task.name in self._held:
            begun, released = self._held[task.name]
            begun.set()
            assert released.wait(PATIENCE), f"nobody released {task.name}"
        return elect(task, round_number, *others)

    async def begun(self, task: str) -> None:
        assert await asyncio.to_thread(self._held[task][0].wait, PATIENCE)

    def release(self, task: str) -> None:
        self._held[task][1].set()

    def release_all(self) -> None:
        for task in self._held:
            self.release(task)


class Coordinator:
    """As much of a coordinator as closes rounds."""

    def __init__(self, url: str) -> None:
        self.store = Store(url)
        self.in_store = StoreExecutor(shared=self.store.shared)
        self.change_bus = ChangeBus(self.store, self.in_store)
        self.registry = CollectorRegistry()
        self.scheduler = RoundScheduler(
            self.store, self.in_store, self.change_bus, lambda: NOW, Metrics(self.registry)
        )

    async def ask(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the store answers; fails if it never does."""
        return await asyncio.wait_for(self.in_store(call, *args, **kwargs), PATIENCE)

    async def until_round(self, task: str, round_number: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                waiter = self.change_bus.tasks.waiter()
                if running(await self.ask(self.store.tasks.get, task)).number == round_number:
                    return
                await waiter.wait()

    def closed(self) -> float:
        samples = (one for family in self.registry.collect() for one in family.samples)
        return sum(one.value for one in samples if one.name == "consilium_rounds_closed_total")


@asynccontextmanager
async def scheduling(url: str) -> AsyncIterator[tuple[Coordinator, asyncio.Task[None]]]:
    coordinator = Coordinator(url)
    running = asyncio.create_task(coordinator.scheduler.run())
    try:
        yield coordinator, running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        coordinator.in_store.close()
        coordinator.store.close()


def everyone_voted(url: str, *tasks: str) -> None:
    """Running tasks whose first round is due."""
    store = Store(url)
    join(store, *SILOS)
    publish_set(store)
    for task in tasks:
        store.tasks.create(definition(task), NOW, ADMIN)
        store.tasks.start(task, NOW, ADMIN)
        for silo in SILOS:
            vote(store, silo, task=task)
    store.close()


@pytest.fixture
def elections(monkeypatch: pytest.MonkeyPatch) -> Iterator[Elections]:
    made = Elections()
    monkeypatch.setattr(close, "elect", made.elect)
    yield made
    made.release_all()


class SchedulerContract:
    """Mixed into a class with the fixture `url`."""

    def test_the_store_answers_while_ballots_are_counted(
        self, url: str, elections: Elections
    ) -> None:
        tasks = [f"task{number}" for number in range(CLOSES_AT_ONCE)]
        everyone_voted(url, *tasks)
        elections.hold(*tasks)

        async def scene() -> None:
            async with scheduling(url) as (coordinator, _):
                for task in tasks:
                    await elections.begun(task)
                found = await coordinator.ask(coordinator.store.tasks.all)
                assert [running(task).number for task in found] == [1] * len(tasks)
                elections.release_all()
                for task in tasks:
                    await coordinator.until_round(task, 2)

        asyncio.run(scene())

    def test_a_task_does_not_wait_for_the_count_of_another(
        self, url: str, elections: Elections
    ) -> None:
        everyone_voted(url, "large", "small")
        elections.hold("large")

        async def scene() -> None:
            async with scheduling(url) as (coordinator, _):
                await elections.begun("large")
                await coordinator.until_round("small", 2)
                assert running(await coordinator.ask(coordinator.store.tasks.get, "large")).closing
                elections.release("large")
                await coordinator.until_round("large", 2)
                assert coordinator.closed() == 2

        asyncio.run(scene())

    def test_a_round_is_counted_once_however_often_the_scheduler_is_woken(
        self, url: str, elections: Elections, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        everyone_voted(url, "sepsis")
        elections.hold("sepsis")
        looked = Semaphore(0)

        async def scene() -> None:
            async with scheduling(url) as (coordinator, _):
                await elections.begun("sepsis")
                tasks = coordinator.store.tasks
                read = tasks.running
                monkeypatch.setattr(tasks, "running", lambda: (read(), looked.release())[0])
                for _ in range(3):
                    coordinator.change_bus.announce(Topic.BALLOTS)
                    assert await asyncio.to_thread(looked.acquire, timeout=PATIENCE)
                elections.release("sepsis")
                await coordinator.until_round("sepsis", 2)
                assert elections.held == [("sepsis", 1)]
                assert coordinator.closed() == 1

        asyncio.run(scene())

    def test_a_count_that_fails_is_made_again(
        self, url: str, elections: Elections, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(scheduler, "_RETRY_SECONDS", 0.0)
        everyone_voted(url, "sepsis")
        elections.errors = [MemoryError(), Refusal(STORE_UNAVAILABLE), Refusal(BALLOT_DIGEST)]

        async def scene() -> None:
            async with scheduling(url) as (coordinator, _):
                await coordinator.until_round("sepsis", 2)
                assert elections.held == [("sepsis", 1)] * 4

        asyncio.run(scene())

    def test_a_count_under_way_is_finished_before_the_scheduler_ends(
        self, url: str, elections: Elections
    ) -> None:
        everyone_voted(url, "sepsis")
        elections.hold("sepsis")

        async def scene() -> None:
            async with scheduling(url) as (coordinator, run):
                await elections.begun("sepsis")
                run.cancel()
                # It has been told to end by the time the store answers, and has not.
                await coordinator.ask(coordinator.store.tasks.all)
                assert not run.done()
                elections.release("sepsis")
                await asyncio.wait([run], timeout=PATIENCE)
                assert run.cancelled()
                assert coordinator.closed() == 1

        asyncio.run(scene())

    def test_rounds_that_wait_for_their_turn_are_closed_after_the_next_start(
        self, url: str, elections: Elections
    ) -> None:
        tasks = [f"task{number}" for number in range(CLOSES_AT_ONCE + 1)]
        everyone_voted(url, *tasks)
        elections.hold(*tasks)

        async def scene() -> None:
            async with scheduling(url) as (coordinator, run):
                for task in tasks[:-1]:
                    await elections.begun(task)
                run.cancel()
                elections.release_all()
                await asyncio.wait([run], timeout=PATIENCE)
                assert coordinator.closed() == CLOSES_AT_ONCE
                left = await coordinator.ask(coordinator.store.tasks.get, tasks[-1])
                assert (running(left).number, running(left).closing) == (1, None)
            async with scheduling(url) as (coordinator, _):
                await coordinator.until_round(tasks[-1], 2)

        asyncio.run(scene())


class TestSqlite(SchedulerContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'coordinator.db'}"


class TestPostgres(SchedulerContract):
    @pytest.fixture
    def url(self, postgres: PostgresServer) -> Iterator[str]:
        fresh = postgres.fresh_url()
        yield fresh
        postgres.drop(fresh)

    def test_a_replica_leaves_a_round_to_the_one_that_counts_it(
        self, url: str, elections: Elections
    ) -> None:
        everyone_voted(url, "sepsis")
        elections.hold("sepsis")

        async def scene() -> None:
            async with scheduling(url) as (one, _):
                await elections.begun("sepsis")
                task = one.store.tasks.get("sepsis")
                closer = RoundCloser(one.store, one.in_store, lambda: NOW)
                close = asyncio.to_thread(closer.close, task, running(task), ClosedBy.EVERYONE)
                assert await asyncio.wait_for(close, PATIENCE) is None
                elections.release("sepsis")
                await one.until_round("sepsis", 2)
                assert elections.held == [("sepsis", 1)]

        asyncio.run(scene())

    def test_a_lock_lasts_until_it_is_released_or_its_connection_ends(
        self, url: str, postgres: PostgresServer
    ) -> None:
        one, other = Store(url), Store(url)
        held = one.try_close_lock("sepsis", 1)
        assert held is not None
        assert other.try_close_lock("sepsis", 1) is None
        apart = other.try_close_lock("sepsis", 2)
        assert apart is not None
        apart.release()
        held.release()
        inherited = other.try_close_lock("sepsis", 1)
        assert inherited is not None
        with psycopg.connect(postgres.conninfo(), autocommit=True) as onlooker:
            end = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = %s"
            assert onlooker.execute(end, (make_url(url).database,)).fetchall()
        again = one.try_close_lock("sepsis", 1)
        assert again is not None
        # Its connection is gone, which must trouble nobody.
        inherited.release()
        again.release()
        assert other.tasks.all() == []
        one.close()
        other.close()

    def test_a_lock_that_cannot_be_released_takes_its_connection_along(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, other = Store(url), Store(url)
        held = one.try_close_lock("sepsis", 1)
        assert held is not None
        assert held.session is not None
        with monkeypatch.context() as broken:
            broken.setattr(close_lock, "text", lambda _: text("SELECT no_such_function(:key)"))
            with pytest.raises(ProgrammingError):
                held.release()
        assert held.session.closed
        # The server ends the session a moment after its connection is gone.
        attempts = (other.try_close_lock("sepsis", 1) for _ in iter(lambda: sleep(0.05), True))
        next(lock for lock in attempts if lock is not None).release()
        one.close()
        other.close()
