"""Keeps rounds moving: looks at every running task when something happened or a deadline comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from time import perf_counter

import structlog

from coordinator.closing import close_round
from coordinator.metrics import Metrics
from coordinator.news import News, Topic
from coordinator.rounds import Close, Extend, Pause, Round, Wait, decide
from coordinator.store import Store
from coordinator.store.records import TaskRecord
from coordinator.store_thread import StoreThread
from wire.errors import STORE_UNAVAILABLE, Refusal

log = structlog.get_logger()

_RETRY_SECONDS = 5.0
_CONTEST_SECONDS = 0.5


class Conductor:
    """The only one who closes rounds; if there are several replicas, one of their conductors does."""

    def __init__(
        self,
        store: Store,
        in_store: StoreThread,
        news: News,
        clock: Callable[[], datetime],
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._in_store = in_store
        self._news = news
        self._clock = clock
        self._metrics = metrics

    async def run(self) -> None:
        """Conducts until cancelled; what fails is logged and tried again."""
        while True:
            ticket = self._news.ballots.ticket()
            try:
                wait = await self._look()
            except Refusal as refusal:
                if not refusal.is_a(STORE_UNAVAILABLE):
                    log.error("conducting_refused", code=refusal.code, sentence=refusal.sentence)
                wait = _RETRY_SECONDS
            except Exception:
                log.exception("conducting_failed", retry_seconds=_RETRY_SECONDS)
                wait = _RETRY_SECONDS
            try:
                await asyncio.wait_for(ticket.wait(), wait)
            except TimeoutError:
                continue

    async def _look(self) -> float | None:
        """Does what is due; returns the seconds until something is due again, None for never."""
        again: list[float] = []
        for task in await self._in_store(self._store.tasks.running):
            seconds = await self._conduct(task)
            if seconds is not None:
                again.append(seconds)
        return max(0.0, min(again)) if again else None

    async def _conduct(self, task: TaskRecord) -> float | None:
        current = task.open_round
        if current is None:
            return None
        now = self._clock()
        decision = decide(current, task.definition.rounds, now)
        match decision:
            case Wait(until):
                return (until - now).total_seconds()
            case Close():
                # Not ours: another replica is closing it. Should it die, nobody would tell.
                return 0.0 if await self._close(task, current, decision) else _CONTEST_SECONDS
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
                    self._news.announce(Topic.TASKS)
            case Pause(reason):
                if await self._in_store(self._store.tasks.stall, current, reason, now):
                    log.error("task_paused", task=task.name, reason=reason)
                    self._news.announce(Topic.TASKS)
        return 0.0

    async def _close(self, task: TaskRecord, current: Round, decision: Close) -> bool:
        """True if the round was closed here."""
        started = perf_counter()
        after = await self._in_store(
            close_round, self._store, task, current, decision.by, self._clock()
        )
        if after is None or after.latest is None:
            return False
        # Ballots too: the conductors of other replicas have a new deadline to watch.
        self._news.announce(Topic.TASKS, Topic.BALLOTS)
        closed = after.latest
        self._metrics.close_seconds.observe(perf_counter() - started)
        took = closed.closed_at - closed.opened_at
        self._metrics.tasks.round_closed(task.name, decision.by, took)
        log.info(
            "round_closed",
            task=task.name,
            round=closed.number,
            by=str(closed.closed_by),
            ballots=closed.ballots,
            changed_rows=closed.changed_rows,
            abstained_rows=closed.abstained_rows,
            status=str(after.status),
        )
        return True
