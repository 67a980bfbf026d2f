"""Looks at every running task when something happened or a deadline comes, and does what its round needs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from time import perf_counter
from typing import Final, TypeVar

import structlog

from coordinator.metrics.instruments import Metrics
from coordinator.round_engine import Close, ClosedBy, Extend, Pause, Round, Wait, decide
from coordinator.rounds.change_bus import ChangeBus, Topic
from coordinator.rounds.change_signal import ChangeSignal, wait_for_any
from coordinator.rounds.close import RoundCloser
from coordinator.store import Store
from coordinator.store.executor import StoreExecutor
from coordinator.store.records import TaskRecord
from wire.errors import STORE_UNAVAILABLE, Refusal

log = structlog.get_logger()

T = TypeVar("T")

CLOSES_AT_ONCE: Final = 4
"""Rounds of different tasks that one replica counts at the same time; each holds a connection to PostgreSQL."""
_RETRY_SECONDS = 5.0
_CONTEST_SECONDS = 0.5


class RoundScheduler:
    """Closes, extends and pauses rounds. Every replica has one; each round is closed by one of them.

    Ballots are counted in threads of the scheduler's own, so neither the store nor another task waits for a count.
    """

    def __init__(
        self,
        store: Store,
        in_store: StoreExecutor,
        change_bus: ChangeBus,
        clock: Callable[[], datetime],
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._in_store = in_store
        self._change_bus = change_bus
        self._clock = clock
        self._metrics = metrics
        self._closer = RoundCloser(store, in_store, clock)
        self._counting = ThreadPoolExecutor(CLOSES_AT_ONCE, thread_name_prefix="count")
        self._closes: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._close_ended = ChangeSignal()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Schedules until cancelled; what fails is logged and tried again.

        Once cancelled, it finishes the closes that have begun. Those that have not, and those that a process
        that ends meanwhile leaves behind, are finished after the next start.
        """
        try:
            while True:
                waiters = self._change_bus.ballots.waiter(), self._close_ended.waiter()
                seconds = await self._attempt(self._check_running_tasks())
                await wait_for_any(*waiters, seconds=seconds)
        finally:
            self._counting.shutdown(wait=False, cancel_futures=True)
            self._stopping.set()
            await asyncio.gather(*self._closes.values(), return_exceptions=True)

    async def _attempt(self, work: Awaitable[T]) -> T | float:
        """What `work` returns; if it fails, the seconds until it is to be tried again."""
        try:
            return await work
        except Refusal as refusal:
            if not refusal.is_a(STORE_UNAVAILABLE):
                log.error("scheduling_refused", code=refusal.code, sentence=refusal.sentence)
        except Exception:
            log.exception("scheduling_failed", retry_seconds=_RETRY_SECONDS)
        return _RETRY_SECONDS

    async def _check_running_tasks(self) -> float | None:
        """Does what is due; returns the seconds until something is due again, None for never."""
        again: list[float] = []
        for task in await self._in_store(self._store.tasks.running):
            seconds = await self._advance(task)
            if seconds is not None:
                again.append(seconds)
        return max(0.0, min(again)) if again else None

    async def _advance(self, task: TaskRecord) -> float | None:
        current = task.open_round
        if current is None:
            return None
        now = self._clock()
        match decide(current, task.definition.rounds, now):
            case Wait(until):
                return (until - now).total_seconds()
            case Close(by):
                self._begin_close(task, current, by)
                return None
            case Extend(closes_at):
                if await self._in_store(self._store.tasks.extend, current, closes_at, now):
                    log.warning(
                        "round_extended",
                        task=task.name,
                        round=current.number,
                        votes=len(current.voted),
                        quorum=task.definition.rounds.quorum,
                        closes_at=closes_at.isoformat(timespec="seconds"),
                    )
                    self._change_bus.announce(Topic.TASKS)
                return 0.0
            case Pause(reason):
                if await self._in_store(self._store.tasks.stall, current, reason, now):
                    log.error("task_paused", task=task.name, reason=reason)
                    self._change_bus.announce(Topic.TASKS)
                return 0.0

    def _begin_close(self, task: TaskRecord, current: Round, by: ClosedBy) -> None:
        """Closes a round beside the scheduler, unless that is under way; its end wakes the scheduler."""
        key = task.name, current.number
        if key in self._closes:
            return
        started, loop = perf_counter(), asyncio.get_running_loop()
        counted = loop.run_in_executor(self._counting, self._closer.close, task, current, by)
        self._closes[key] = asyncio.create_task(self._close(key, counted, by, started))

    async def _close(
        self,
        key: tuple[str, int],
        counted: Awaitable[TaskRecord | None],
        by: ClosedBy,
        started: float,
    ) -> None:
        """Reports the outcome, then waits as long as it takes until another attempt may be made."""
        try:
            pause = await self._attempt(self._report(counted, by, started))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
        finally:
            del self._closes[key]
            self._close_ended.fire()

    async def _report(
        self, counted: Awaitable[TaskRecord | None], by: ClosedBy, started: float
    ) -> float:
        """Announces and counts a closed round; returns the seconds until its task is to be looked at again."""
        after = await counted
        if after is None or after.latest is None:
            # Another replica is closing it. Should that one die, nobody would tell.
            return _CONTEST_SECONDS
        # Ballots too: the schedulers of other replicas have a new deadline to watch.
        self._change_bus.announce(Topic.TASKS, Topic.BALLOTS)
        closed = after.latest
        self._metrics.close_seconds.observe(perf_counter() - started)
        self._metrics.tasks.round_closed(after.name, by, closed.closed_at - closed.opened_at)
        log.info(
            "round_closed",
            task=after.name,
            round=closed.number,
            by=str(closed.closed_by),
            ballots=closed.ballots,
            changed_rows=closed.changed_rows,
            abstained_rows=closed.abstained_rows,
            status=str(after.status),
        )
        return 0.0
