"""Runs a soak: follows the rounds, injects every fault in its round, samples memory, checks the end."""

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
from experiments.soak.ballots import expected_consensus, silo_name
from experiments.soak.federation import TASK, Federation, federation, start_task
from experiments.soak.memory import Memory
from experiments.soak.outcome import Outcome
from experiments.soak.processes import Service, SoakFailed, consilium
from experiments.soak.schedule import Fault, FaultKind, Schedule
from experiments.soak.view import View
from silo_agent.agent.audit.entries import Kind as EntryKind
from silo_agent.agent.audit.recorder import read_entries
from silo_agent.shared.home import SiloHome
from wire.consilium.v1 import admin_pb2, task_pb2
from wire.errors import ConsiliumError

_LOOK_SECONDS = 0.1
# Of a round; an agent waits at most a minute before it tries again.
_PATIENCE_SECONDS = 900.0
_VERIFICATIONS_AT_ONCE = 2


@dataclass(frozen=True)
class Plan:
    """How large the soak is."""

    silos: int
    rounds: int
    seed: int


async def soak(plan: Plan, schedule: Schedule, folder: Path, view: View) -> Outcome:
    """Runs every round of the plan under the schedule's faults; `folder` is empty and has a short name."""
    async with federation(folder, plan.silos, view.tell) as running:
        definition = await start_task(running.home, plan.silos, plan.rounds)
        view.tell("running rounds")
        started = time.monotonic()
        rounds = Rounds(running, schedule, view)
        await rounds.follow()
        seconds = time.monotonic() - started
        view.tell("waiting for the last receipts")
        await _until_finished(running)
        history = await _history(running.home)
        view.tell("verifying the records")
        stopped = await _stop_agents(running)
        audited = await _audited(running, plan.silos)
        relayed = running.relay.end()
    return Outcome(
        silos=plan.silos,
        rounds=plan.rounds,
        seed=plan.seed,
        seconds=seconds,
        faults=rounds.done,
        memory=rounds.memory,
        agents=tuple(agent.name for agent in running.agents),
        consensus=tuple(closed.consensus.digest for closed in history),
        expected=tuple(expected_consensus(definition)),
        complete=all(len(closed.voted) == plan.silos for closed in history),
        ballots_sent_again=_casts(folder, plan.silos) - plan.silos * plan.rounds,
        reconnects=sum(_connections(agent) - agent.life for agent in running.agents),
        stopped_when_asked=stopped,
        connections=relayed["connections"],
        resets=relayed["resets"],
        relayed_bytes=relayed["bytes"],
        **audited,
    )


class Rounds:
    """Follows the rounds of the task, with what happens in each."""

    def __init__(self, running: Federation, schedule: Schedule, view: View) -> None:
        self._running = running
        self._schedule = schedule
        self._view = view
        self._seen = 0
        self._seen_at = time.monotonic()
        self.memory = Memory()
        self.done: Counter[FaultKind] = Counter()

    async def follow(self) -> None:
        """Injects faults and samples memory round by round; returns when all rounds are closed and every process is up again."""
        async with asyncio.TaskGroup() as injections:
            while True:
                try:
                    async with admin_link(self._running.home) as link:
                        while True:
                            listed = await link.admin.ListTasks(admin_pb2.ListTasksRequest())
                            if self._observe(listed.tasks[0], injections):
                                return
                            await asyncio.sleep(_LOOK_SECONDS)
                except SoakFailed:
                    raise
                except ConsiliumError:
                    # The coordinator was killed, by us.
                    self._require_progress(
                        f"The coordinator does not answer after round {self._seen}."
                    )
                    await asyncio.sleep(_LOOK_SECONDS)

    def _observe(self, task: task_pb2.TaskState, injections: asyncio.TaskGroup) -> bool:
        """Injects the faults of rounds that have opened and samples memory; True if the task is finished."""
        self._running.check()
        finished = task.status == task_pb2.TASK_STATUS_FINISHED
        if not finished and task.status != task_pb2.TASK_STATUS_RUNNING:
            raise SoakFailed(f"The task no longer runs: {task.reason}")
        opened = task.consensus.round + 1
        if opened == self._seen:
            missing = set(task.open_round.expected) - set(task.open_round.voted)
            self._require_progress(f"Round {opened} does not close; missing: {', '.join(missing)}.")
            return False
        for round_number in range(self._seen + 1, opened + 1):
            for fault in self._schedule.in_round(round_number):
                injections.create_task(self._inject(fault))
        self._sample(opened - 1)
        self._seen, self._seen_at = opened, time.monotonic()
        self._view.rounds(opened - 1, self.done, self.memory)
        return finished

    async def _inject(self, fault: Fault) -> None:
        await self._running.inject(fault)
        self.done[fault.kind] += 1

    def _sample(self, round_number: int) -> None:
        for service in (self._running.coordinator, *self._running.agents):
            if service.pid is not None:
                self.memory.take(service.name, service.life, round_number, service.pid)

    def _require_progress(self, complaint: str) -> None:
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


async def _stop_agents(running: Federation) -> int:
    """How many agents exit after SIGTERM without being killed."""
    for agent in running.agents:
        agent.terminate()
    return sum(await asyncio.gather(*(agent.wait_for_exit() for agent in running.agents)))


async def _audited(running: Federation, silos: int) -> dict[str, Any]:
    """What the audit commands of the coordinator and of every silo find, as fields of `Outcome`."""
    record = await _verdict(running, "audit", "verify", "--home", running.home)
    records = await _silo_records(running, silos)
    return {
        "coordinator_record_whole": record["whole"],
        "coordinator_record_entries": record["entries"],
        "silo_records_whole": sum(one["whole"] for one in records),
        "ballots_proven": sum(one["proven"] for one in records),
        "ballots_without_receipt": sum(len(one["without_receipt"]) for one in records),
    }


def _casts(folder: Path, silos: int) -> int:
    """Ballots that left, repetitions included, by the silos' own records."""
    homes = [SiloHome(folder / silo_name(index)) for index in range(silos)]
    return sum(move.kind is EntryKind.BALLOT for home in homes for move in read_entries(home.agent))


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
