"""Many silos on one machine: the product's agents, a few processes of them, with trainers that take no time."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry

from coordinator.cli.connection import AdminClient
from silo_agent.agent.agent import Agent
from silo_agent.agent.audit.recorder import AuditLog
from silo_agent.agent.clock import CoordinatorClock
from silo_agent.agent.coordinator_client import CoordinatorClient
from silo_agent.agent.downloads import DownloadFolders
from silo_agent.agent.metrics.instruments import AgentMetrics
from silo_agent.agent.renewal import Renewal
from silo_agent.agent.trainer_client import TrainerClient
from silo_agent.shared.home import SiloHome
from wire.ballot import BallotShape, pack
from wire.consilium.v1 import admin_pb2, task_pb2, trainer_pb2
from wire.errors import RATE_LIMITED, Refusal
from wire.identity.files import IdentityFiles
from wire.net.enrolment import join
from wire.runtime.logs import configure_logs
from wire.task.definition import TaskDefinition

PROCESSES = 2
"""Processes the silos are spread over."""


def _now() -> datetime:
    return datetime.now(UTC)


async def enrol(link: AdminClient, folder: Path, silos: int) -> list[Path]:
    """The homes of `silos` new silos, with certificates from the coordinator's enrolment port."""
    homes = [folder / f"silo-{number}" for number in range(silos)]
    for home in homes:
        request = admin_pb2.RegisterSiloRequest(name=home.name)
        request.token_lifetime.FromSeconds(600)
        token = (await link.admin.RegisterSilo(request)).join_token
        await _join(token, SiloHome(home).identity)
    return homes


async def _join(token: str, identity: Path) -> None:
    """Joins at the pace the coordinator allows: these hospitals share one address, real ones do not."""
    while True:
        try:
            await join(token, identity, _now)
            return
        except Refusal as refusal:
            if not refusal.is_a(RATE_LIMITED):
                raise
            await asyncio.sleep(0.2)


class ReadyTrainer(TrainerClient):
    """A trainer whose ballots are ready: stands in for the client of a real trainer, without a process or a socket."""

    def __init__(self, ballot: trainer_pb2.VoteResponse) -> None:
        self._ballot = ballot

    async def close(self) -> None:
        """Nothing to close."""

    async def describe(self) -> trainer_pb2.DescribeResponse:
        """Answers at once."""
        return trainer_pb2.DescribeResponse()

    async def propose(self, definition: task_pb2.TaskDefinition) -> trainer_pb2.ProposeResponse:
        """Every task is approved."""
        digest = TaskDefinition.from_proto(definition).digest
        return trainer_pb2.ProposeResponse(task_digest=digest)

    async def prepare(
        self,
        definition: task_pb2.TaskDefinition,
        silo: str,
    ) -> None:
        """Every task fits."""

    async def vote(
        self,
        digest: str,
        round_number: int,
        consensus: trainer_pb2.ConsensusLabels | None,
        known_ballots: int,
    ) -> trainer_pb2.VoteResponse:
        """The same ballot in every round."""
        return self._ballot

    async def finish(
        self, digest: str, consensus: trainer_pb2.ConsensusLabels | None
    ) -> trainer_pb2.FinishResponse:
        """No model to keep."""
        return trainer_pb2.FinishResponse()


@contextmanager
def agents(homes: Sequence[Path], shape: BallotShape) -> Iterator[None]:
    """Agents for `homes`, spread over a few processes that end with the block."""
    spawn = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = [
        spawn.Process(target=_run_agents, args=(homes[part::PROCESSES], part, shape), daemon=True)
        for part in range(min(PROCESSES, len(homes)))
    ]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _run_agents(homes: Sequence[Path], seed: int, shape: BallotShape) -> None:
    configure_logs("warning")
    random = np.random.default_rng(seed)

    async def run_all() -> None:
        async with asyncio.TaskGroup() as agents:
            for root in homes:
                home = SiloHome(root)
                data = pack(random.integers(0, shape.classes, shape.rows), shape)
                ballot = trainer_pb2.VoteResponse(encoding=shape.encoding.to_proto(), data=data)
                link = CoordinatorClient(IdentityFiles.load(home.identity))
                metrics = AgentMetrics(CollectorRegistry())
                clock = CoordinatorClock(_now, metrics.clock_skew)
                agent = Agent(
                    link,
                    ReadyTrainer(ballot),
                    DownloadFolders.of(home),
                    AuditLog(home.agent, _now),
                    metrics,
                    root.name,
                    Renewal(link, metrics, clock),
                    clock,
                )
                agents.create_task(agent.run())

    asyncio.run(run_all())
