"""Runs a soak: follows the rounds, lets every fault happen in its round, measures memory, judges the end."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.cli.connection import admin_link
from experiments.demo.processes import until
from experiments.soak.federation import TASK, Federation, begin, federation
from experiments.soak.memory import Memory
from experiments.soak.outcome import Outcome
from experiments.soak.processes import Service, SoakFailed, consilium
from experiments.soak.schedule import Fault, Kind, Schedule
from experiments.soak.view import View
from experiments.soak.work import silo_name, undisturbed
from silo_agent import traffic
from silo_agent.audit import movements
from silo_agent.home import SiloHome
from wire.consilium.v1 import admin_pb2, task_pb2
from wire.errors import ConsiliumError
from wire.task import TaskDefinition

_LOOK_SECONDS = 0.1
# Of a round; an agent waits at most a minute before it tries again.
_PATIENCE_SECONDS = 180.0
_VERIFICATIONS_AT_ONCE = 2


@dataclass(frozen=True)
class Plan:
    """How large the soak is."""

    silos: int
    rounds: int
    seed: int


async def soak(plan: Plan, schedule: Schedule, folder: Path, view: View) -> Outcome:
    """Holds every round of the plan under the schedule's faults; `folder` is empty and short of name."""
    async with federation(folder, plan.silos, view.tell) as running:
        definition = await begin(running.home, plan.silos, plan.rounds)
        view.tell("holding rounds")
        started = time.monotonic()
        rounds = Rounds(running, schedule, view)
        await rounds.hold(definition)
        seconds = time.monotonic() - started
        view.tell("waiting for the last receipts")
        await _until_finished(running)
        history = await _history(running.home)
        view.tell("verifying the records")
        for agent in running.agents:
            agent.ask_to_end()
        stopped = await asyncio.gather(*(agent.ended() for agent in running.agents))
        record = await _verdict(running, "audit", "verify", "--home", running.home)
        records = await _silo_records(running, plan.silos)
        lines = running.lines.end()
    kept = [movements(SiloHome(folder / silo_name(number)).agent) for number in range(plan.silos)]
    casts = sum(one.kind is traffic.Kind.BALLOT for silo in kept for one in silo)
    return Outcome(
        silos=plan.silos,
        rounds=plan.rounds,
        seed=plan.seed,
        seconds=seconds,
        faults=rounds.done,
        memory=rounds.memory,
        agents=tuple(agent.name for agent in running.agents),
        consensus=tuple(closed.consensus.digest for closed in history),
        expected=tuple(undisturbed(definition)),
        complete=all(len(closed.voted) == plan.silos for closed in history),
        coordinator_record_whole=record["whole"],
        coordinator_record_entries=record["entries"],
        silo_records_whole=sum(one["whole"] for one in records),
        ballots_proven=sum(one["proven"] for one in records),
        ballots_without_receipt=sum(len(one["without_receipt"]) for one in records),
        ballots_sent_again=casts - plan.silos * plan.rounds,
        reconnects=sum(_connections(agent) - agent.life for agent in running.agents),
        stopped_when_asked=sum(stopped),
        connections=lines["connections"],
        resets=lines["resets"],
        relayed_bytes=lines["bytes"],
    )


class Rounds:
    """The rounds as they go by, with what happens in each."""

    def __init__(self, running: Federation, schedule: Schedule, view: View) -> None:
        self._running = running
        self._schedule = schedule
        self._view = view
        self._seen = 0
        self._seen_at = time.monotonic()
        self.memory = Memory()
        self.done: Counter[Kind] = Counter()

    async def hold(self, definition: TaskDefinition) -> None:
        """Returns when all rounds are closed and every process is up again."""
        async with asyncio.TaskGroup() as troubles:
            while True:
                try:
                    async with admin_link(self._running.home) as link:
                        while True:
                            listed = await link.admin.ListTasks(admin_pb2.ListTasksRequest())
                            if self._look(listed.tasks[0], troubles):
                                return
                            await asyncio.sleep(_LOOK_SECONDS)
                except SoakFailed:
                    raise
                except ConsiliumError:
                    # The coordinator was killed, by us.
                    self._bear_with(f"The coordinator does not answer after round {self._seen}.")
                    await asyncio.sleep(_LOOK_SECONDS)

    def _look(self, task: task_pb2.TaskState, troubles: asyncio.TaskGroup) -> bool:
        """Takes in where the task is; True if it is finished."""
        self._running.check()
        finished = task.status == task_pb2.TASK_STATUS_FINISHED
        if not finished and task.status != task_pb2.TASK_STATUS_RUNNING:
            raise SoakFailed(f"The task no longer runs: {task.reason}")
        opened = task.consensus.round + 1
        if opened == self._seen:
            missing = set(task.open_round.expected) - set(task.open_round.voted)
            self._bear_with(f"Round {opened} does not close; missing: {', '.join(missing)}.")
            return False
        for number in range(self._seen + 1, opened + 1):
            for fault in self._schedule.in_round(number):
                troubles.create_task(self._suffer(fault))
        self._sample(opened - 1)
        self._seen, self._seen_at = opened, time.monotonic()
        self._view.rounds(opened - 1, self.done, self.memory)
        return finished

    async def _suffer(self, fault: Fault) -> None:
        await self._running.suffer(fault)
        self.done[fault.kind] += 1

    def _sample(self, number: int) -> None:
        for service in (self._running.coordinator, *self._running.agents):
            if service.pid is not None:
                self.memory.take(service.name, service.life, number, service.pid)

    def _bear_with(self, complaint: str) -> None:
        if time.monotonic() - self._seen_at > _PATIENCE_SECONDS:
            raise SoakFailed(complaint, f"Nothing has happened for {_PATIENCE_SECONDS:.0f} s.")


async def _until_finished(running: Federation) -> None:
    """Every agent has had its trainer keep the final model: nothing is under way any more."""

    def finished() -> bool:
        running.check()
        return all('"task_finished"' in agent.log.read_text() for agent in running.agents)

    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await until(finished)
    except TimeoutError:
        raise SoakFailed("Not every agent has heard that the task is finished.") from None


async def _history(home: Path) -> Sequence[admin_pb2.ClosedRound]:
    async with admin_link(home) as link:
        return (await link.admin.GetTask(admin_pb2.GetTaskRequest(name=TASK))).history


async def _verdict(running: Federation, *command: object) -> dict[str, Any]:
    """What an audit command says in JSON; it fails if the record is not whole, and says so."""
    done = await consilium(running.folder, *command, "--json")
    try:
        verdict: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise SoakFailed(f"A record could not be verified: {done.stderr}") from None
    return verdict


async def _silo_records(running: Federation, silos: int) -> list[dict[str, Any]]:
    """What `consilium agent audit verify` says of every silo's."""
    turn = asyncio.Semaphore(_VERIFICATIONS_AT_ONCE)

    async def verify(number: int) -> dict[str, Any]:
        async with turn:
            home = running.folder / silo_name(number)
            return await _verdict(running, "agent", "audit", "verify", "--home", home)

    return await asyncio.gather(*map(verify, range(silos)))


def _connections(agent: Service) -> int:
    return agent.log.read_text(encoding="utf-8").count('"connected"')
