"""The network side of a hospital: follows the coordinator, has the trainer vote, relays ballots.

A connection is disposable: the watch (what is there to do) and the heartbeat (we are alive, even while
training) are made anew after every cut. The workers, one per task (`silo_agent.voting`), live through it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from dataclasses import dataclass

import structlog

from silo_agent.audit import AuditLog
from silo_agent.backoff import Backoff
from silo_agent.clock import ComparedClock
from silo_agent.coordinator_link import CoordinatorLink
from silo_agent.downloads import Exchange
from silo_agent.metrics import AgentMetrics
from silo_agent.renewal import Renewal
from silo_agent.together import together
from silo_agent.trainer_link import TrainerLink
from silo_agent.voting import TaskWorker
from wire import __version__
from wire.consilium.v1 import rounds_pb2, trainer_pb2
from wire.errors import (
    CERTIFICATE_EXPIRED,
    CERTIFICATE_SUPERSEDED,
    NO_IDENTITY,
    SILO_REVOKED,
    SILO_RUNNING_ELSEWHERE,
    SILO_UNKNOWN,
    TLS_REFUSED,
    UNREACHABLE,
    VERSION_TOO_OLD,
    WRONG_ROLE,
    ConsiliumError,
    Refusal,
)
from wire.releases import advice

log = structlog.get_logger()

# Trying again cannot help: a person has to act.
_FATAL = (
    CERTIFICATE_EXPIRED,
    CERTIFICATE_SUPERSEDED,
    NO_IDENTITY,
    SILO_REVOKED,
    SILO_UNKNOWN,
    TLS_REFUSED,
    VERSION_TOO_OLD,
    WRONG_ROLE,
)
# As often as Prometheus usually looks at us.
_LOOK_SECONDS = 15.0


@dataclass(frozen=True)
class AgentOptions:
    """How the agent behaves towards the coordinator."""

    lease_patience: float = 60.0
    """Seconds to wait for another agent's stale lease before giving up."""


class Agent:
    """Runs until cancelled, or until a refusal that only a person can lift."""

    def __init__(
        self,
        link: CoordinatorLink,
        trainer: TrainerLink,
        exchange: Exchange,
        audit: AuditLog,
        metrics: AgentMetrics,
        instance: str,
        renewal: Renewal,
        clock: ComparedClock,
        options: AgentOptions | None = None,
    ) -> None:
        self._link = link
        self._trainer = trainer
        self._exchange = exchange
        self._audit = audit
        self._metrics = metrics
        self._instance = instance
        self._renewal = renewal
        self._clock = clock
        self._options = options or AgentOptions()
        self._workers: dict[str, TaskWorker] = {}
        self._work: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Takes part until cancelled; raises the refusal that ends it for good."""
        self._metrics.belongs_to(self._link.identity.name)
        described = await self._trainer.wait_ready()
        isolation = trainer_pb2.Isolation.Name(described.isolation).removeprefix("ISOLATION_")
        log.info("trainer_found", isolation=isolation.lower(), note=described.isolation_note)
        self._metrics.trainer_found(described)
        try:
            await together(self._stay_connected(), self._look_at_trainer())
        finally:
            for work in self._work:
                work.cancel()
            await asyncio.gather(*self._work, return_exceptions=True)
            with suppress(ConsiliumError, TimeoutError):
                await asyncio.wait_for(self._link.leave(self._instance), 5)

    async def _stay_connected(self) -> None:
        """One connection after the other, for ever."""
        backoff, waited, complaint = Backoff(), 0.0, ""
        while True:
            opened = asyncio.Event()
            error = await self._connection(opened)
            self._metrics.connected.set(0)
            if opened.is_set():
                backoff.reset()
                waited, complaint = 0.0, ""
            pause = backoff.next()
            if isinstance(error, Refusal):
                if error.is_a(*_FATAL):
                    raise error
                if error.is_a(SILO_RUNNING_ELSEWHERE):
                    waited += (pause := min(pause, 2.0))
                    if waited > self._options.lease_patience:
                        raise error
            # The same trouble is told once, not at every attempt.
            if error.sentence != complaint:
                log.warning("disconnected", sentence=error.sentence, hint=error.hint)
                complaint = error.sentence
            await asyncio.sleep(pause)

    async def _look_at_trainer(self) -> None:
        """Shows whether the trainer answers, also while there is nothing to ask of it."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                self._metrics.trainer_found(await self._trainer.describe())
            except Refusal:
                self._metrics.trainer_missed()

    async def _connection(self, opened: asyncio.Event) -> ConsiliumError:
        """Watches and sends heartbeats until either fails; says why."""
        try:
            await together(self._watch(opened), self._heartbeats(opened))
        except ConsiliumError as error:
            return error
        raise AssertionError("both loops are endless")

    async def _watch(self, opened: asyncio.Event) -> None:
        # From the beginning: behind a new connection may stand a coordinator restored from a backup.
        async with aclosing(self._link.watch(self._instance, 0, opened.set)) as states:
            async for state in states:
                name = state.definition.name
                if name not in self._workers:
                    worker = TaskWorker(
                        self._link, self._trainer, self._exchange, self._audit, self._metrics
                    )
                    self._workers[name] = worker
                    self._work.append(asyncio.create_task(worker.run()))
                self._workers[name].hear(state)
        raise Refusal(
            UNREACHABLE,
            address=self._link.identity.coordinator_address,
            why="it ended the watch stream",
        )

    async def _heartbeats(self, opened: asyncio.Event) -> None:
        await opened.wait()
        log.info("connected", coordinator=self._link.identity.coordinator_address)
        sentence, hint = advice(__version__, self._link.coordinator_version)
        if sentence:
            log.warning("releases_differ", sentence=sentence, hint=hint)
        self._metrics.connected.set(1)
        while True:
            sent = self._clock.local()
            beat = await self._link.heartbeat(self._instance, self._activity())
            self._clock.compare(sent, self._clock.local(), beat.coordinator_time)
            self._renewal.hear(beat.authority)
            self._metrics.tasks.forget_ended()
            await asyncio.sleep(beat.next_after)

    def _activity(self) -> rounds_pb2.Activity.ValueType:
        activities = {worker.activity for worker in self._workers.values()}
        for activity in (
            rounds_pb2.ACTIVITY_TRAINING,
            rounds_pb2.ACTIVITY_WAITING_FOR_APPROVAL,
            rounds_pb2.ACTIVITY_REFUSED_BY_POLICY,
            rounds_pb2.ACTIVITY_BUDGET_SPENT,
            rounds_pb2.ACTIVITY_VOTED,
        ):
            if activity in activities:
                return activity
        return rounds_pb2.ACTIVITY_IDLE
