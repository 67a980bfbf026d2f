"""The private side's one thread: who leaves, what goes on, and what is not begun any more."""

from __future__ import annotations

import asyncio
from threading import Event

import pytest
from patience import PATIENCE

from silo_agent.trainer.worker_thread import Closed, WorkerThread

pytestmark = pytest.mark.slow


class Job:
    """Work that waits for leave to end."""

    def __init__(self, done: list[str], name: str) -> None:
        self.begun, self.leave = Event(), Event()
        self._done, self._name = done, name

    def __call__(self) -> str:
        self.begun.set()
        assert self.leave.wait(PATIENCE)
        self._done.append(self._name)
        return self._name


async def begun(job: Job) -> None:
    assert await asyncio.to_thread(job.begun.wait, 60)


def test_a_caller_who_leaves_does_not_let_the_next_one_in_before_the_work_is_done() -> None:
    done: list[str] = []
    first, second, third = (Job(done, name) for name in ("first", "second", "third"))

    async def scenario() -> None:
        bench = WorkerThread()
        leaving = asyncio.create_task(bench(first))
        await begun(first)
        waiting, withdrawn = asyncio.create_task(bench(second)), asyncio.create_task(bench(third))
        await asyncio.sleep(0)
        for task in (leaving, withdrawn):
            task.cancel()
        await asyncio.gather(leaving, withdrawn, return_exceptions=True)
        assert not second.begun.is_set()
        first.leave.set()
        second.leave.set()
        assert await waiting == "second"
        await bench.close()

    asyncio.run(scenario())
    assert done == ["first", "second"]
    assert not third.begun.is_set()


def test_closing_waits_for_what_has_begun_and_begins_nothing_more() -> None:
    done: list[str] = []
    first, second = Job(done, "first"), Job(done, "second")

    async def scenario() -> None:
        bench = WorkerThread()
        under_way = asyncio.create_task(bench(first))
        await begun(first)
        waiting = asyncio.create_task(bench(second))
        await asyncio.sleep(0)
        closing = asyncio.create_task(bench.close())
        with pytest.raises(Closed):
            await waiting
        with pytest.raises(Closed):
            await bench(second)
        assert not closing.done()
        first.leave.set()
        assert await under_way == "first"
        await closing

    asyncio.run(scenario())
    assert done == ["first"]


def test_what_fails_fails_for_who_asked() -> None:
    async def scenario() -> None:
        bench = WorkerThread()
        with pytest.raises(ZeroDivisionError):
            await bench(lambda: 1 // 0)
        assert await bench(divmod, 7, 2) == (3, 1)
        await bench.close()

    asyncio.run(scenario())
