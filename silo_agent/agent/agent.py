"""The network side of a hospital: follows the coordinator, has the trainer vote, relays ballots.

A connection is disposable: the watch stream (task states) and the heartbeats (liveness, also while training)
are reopened after every failure. The workers, one per task (`silo_agent.agent.worker`), outlive it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from dataclasses import dataclass

import structlog

from silo_agent.agent.audit.recorder import AuditLog
from silo_agent.agent.backoff import Backoff
from silo_agent.agent.clock import CoordinatorClock
from silo_agent.agent.coordinator_client import CoordinatorClient
from silo_agent.agent.downloads import DownloadFolders
from silo_agent.agent.metrics.instruments import AgentMetrics
from silo_agent.agent.pace import Pace
from silo_agent.agent.renewal import Renewal
from silo_agent.agent.trainer_client import TrainerClient
from silo_agent.agent.worker import TaskWorker
from wire import __version__
from wire.consilium.v1 import rounds_pb2, task_pb2, trainer_pb2
from wire.enums import enum_name
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
from wire.runtime.task_group import task_group
from wire.task.definition import MAX_DEFINITION_BYTES
from wire.version_policy import advice

log = structlog.get_logger()

# Trying again cannot help: a person has to do something.
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
MOST_TASKS = 1000
"""Tasks that are followed at a time; each takes some memory and series of metrics."""
# Between two proposals to the trainer, which reads silo.yaml and the approvals for each.
_PROPOSAL_SECONDS = 0.2
# As often as Prometheus usually scrapes.
_TRAINER_POLL_SECONDS = 15.0
# Another agent's lease expires within seconds.
_LONGEST_LEASE_PAUSE_SECONDS = 2.0


@dataclass(frozen=True)
class AgentOptions:
    """How the agent behaves towards the coordinator."""

    lease_patience: float = 60.0
    """Seconds to wait for another agent's stale lease before giving up."""


class Agent:
    """Runs until cancelled, or until a refusal that only a person can resolve."""

    def __init__(
        self,
        coordinator: CoordinatorClient,
        trainer: TrainerClient,
        folders: DownloadFolders,
        audit: AuditLog,
        metrics: AgentMetrics,
        instance: str,
        renewal: Renewal,
        clock: CoordinatorClock,
        options: AgentOptions | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._trainer = trainer
        self._folders = folders
        self._audit = audit
        self._metrics = metrics
        self._instance = instance
        self._renewal = renewal
        self._clock = clock
        self._options = options or AgentOptions()
        self._pace = Pace(_PROPOSAL_SECONDS)
        self._workers: dict[str, TaskWorker] = {}
        self._worker_tasks: dict[str, asyncio.Task[None]] = {}
        self._said: set[str] = set()

    async def run(self) -> None:
        """Takes part until cancelled; raises a refusal after which trying again cannot help."""
        self._metrics.set_silo(self._coordinator.identity.name)
        described = await self._trainer.wait_ready()
        isolation = enum_name(trainer_pb2.Isolation, described.isolation)
        log.info("trainer_found", isolation=isolation, note=described.isolation_note)
        self._metrics.trainer_found(described)
        try:
            async with task_group() as group:
                group.create_task(self._stay_connected())
                group.create_task(self._poll_trainer())
        finally:
            running = list(self._worker_tasks.values())
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            with suppress(ConsiliumError, TimeoutError):
                await asyncio.wait_for(self._coordinator.leave(self._instance), 5)

    async def _stay_connected(self) -> None:
        """Reconnects for ever, with backoff; raises a refusal after which trying again cannot help."""
        backoff, waited_for_lease, logged = Backoff(), 0.0, ""
        while True:
            opened = asyncio.Event()
            error = await self._run_connection(opened)
            self._metrics.connected.set(0)
            if opened.is_set():
                backoff.reset()
                waited_for_lease, logged = 0.0, ""
            pause = backoff.next()
            if isinstance(error, Refusal):
                if error.is_a(*_FATAL):
                    raise error
                if error.is_a(SILO_RUNNING_ELSEWHERE):
                    pause = min(pause, _LONGEST_LEASE_PAUSE_SECONDS)
                    waited_for_lease += pause
                    if waited_for_lease > self._options.lease_patience:
                        raise error
            # The same failure is logged once, not at every attempt.
            if error.sentence != logged:
                log.warning("disconnected", sentence=error.sentence, hint=error.hint)
                logged = error.sentence
            await asyncio.sleep(pause)

    async def _poll_trainer(self) -> None:
        """Keeps the metric of whether the trainer answers up to date, also while no task calls it."""
        while True:
            await asyncio.sleep(_TRAINER_POLL_SECONDS)
            try:
                self._metrics.trainer_found(await self._trainer.describe())
            except Refusal:
                self._metrics.trainer_lost()

    async def _run_connection(self, opened: asyncio.Event) -> ConsiliumError:
        """Watches and sends heartbeats until either fails; returns the failure.

        Sets `opened` once the coordinator has granted the lease.
        """
        try:
            async with task_group() as group:
                group.create_task(self._watch(opened))
                group.create_task(self._heartbeats(opened))
        except ConsiliumError as error:
            return error
        raise AssertionError("both loops are endless")

    async def _watch(self, opened: asyncio.Event) -> None:
        # From the first revision: the coordinator may have been restored from a backup meanwhile.
        async with aclosing(self._coordinator.watch(self._instance, 0, opened.set)) as states:
            async for state in states:
                name = state.definition.name
                if self._is_small(state.definition) and (
                    name in self._workers or self._make_room()
                ):
                    if name not in self._workers:
                        self._start_worker(name)
                    self._workers[name].update(state)
        raise Refusal(
            UNREACHABLE,
            address=self._coordinator.identity.coordinator_address,
            why="it ended the watch stream",
        )

    def _is_small(self, definition: task_pb2.TaskDefinition) -> bool:
        """False for a definition that is larger than any that is valid: it is not even held."""
        small = definition.ByteSize() <= 2 * MAX_DEFINITION_BYTES
        if not small:
            self._say_once("task_too_large", MAX_DEFINITION_BYTES)
        return small

    def _say_once(self, event: str, most: int) -> None:
        if event not in self._said:
            log.warning(event, most=most)
            self._said.add(event)

    def _make_room(self) -> bool:
        """True if one more task can be followed; the oldest that has ended makes room, if there is one."""
        if len(self._workers) < MOST_TASKS:
            return True
        ended = next((name for name, worker in self._workers.items() if worker.ended), None)
        if ended is None:
            self._say_once("too_many_tasks", MOST_TASKS)
            return False
        del self._workers[ended]
        self._worker_tasks.pop(ended).cancel()
        return True

    def _start_worker(self, name: str) -> None:
        worker = TaskWorker(
            self._coordinator, self._trainer, self._folders, self._audit, self._metrics, self._pace
        )
        self._workers[name] = worker
        self._worker_tasks[name] = asyncio.create_task(worker.run())

    async def _heartbeats(self, opened: asyncio.Event) -> None:
        await opened.wait()
        log.info("connected", coordinator=self._coordinator.identity.coordinator_address)
        sentence, hint = advice(__version__, self._coordinator.coordinator_version)
        if sentence:
            log.warning("versions_differ", sentence=sentence, hint=hint)
        self._metrics.connected.set(1)
        while True:
            sent = self._clock.local()
            reply = await self._coordinator.heartbeat(self._instance, self._activity())
            self._clock.compare(sent, self._clock.local(), reply.coordinator_time)
            self._renewal.update_authority(reply.authority)
            self._metrics.tasks.forget_ended()
            await asyncio.sleep(reply.next_after)

    def _activity(self) -> rounds_pb2.Activity.ValueType:
        """The one activity that heartbeats report: over all tasks, the first of this order."""
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
