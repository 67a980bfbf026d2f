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

from coordinator.cli.connection import AdminLink
from silo_agent.agent import Agent
from silo_agent.audit import AuditLog
from silo_agent.clock import ComparedClock
from silo_agent.coordinator_link import CoordinatorLink
from silo_agent.downloads import Exchange
from silo_agent.home import SiloHome
from silo_agent.metrics import AgentMetrics
from silo_agent.renewal import Renewal
from silo_agent.trainer_link import TrainerLink
from wire.ballot import BallotShape, pack
from wire.consilium.v1 import admin_pb2, registry_pb2, task_pb2, trainer_pb2
from wire.enrolment import join
from wire.errors import RATE_LIMITED, Refusal
from wire.identity import IdentityFiles
from wire.logs import configure_logs
from wire.task import TaskDefinition

PROCESSES = 2
"""Processes the silos are spread over."""


def _now() -> datetime:
    return datetime.now(UTC)


async def enrol(link: AdminLink, folder: Path, silos: int) -> list[Path]:
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


class ReadyTrainer(TrainerLink):
    """A trainer whose ballots are ready: takes TrainerLink's place without a process or a socket."""

    def __init__(self, ballot: trainer_pb2.VoteResponse) -> None:
        self._ballot = ballot

    async def close(self) -> None:
        """Nothing to close."""

    async def describe(self) -> trainer_pb2.DescribeResponse:
        """There at once."""
        return trainer_pb2.DescribeResponse()

    async def propose(self, definition: task_pb2.TaskDefinition) -> str:
        """Every task is approved."""
        return TaskDefinition.from_proto(definition).digest

    async def prepare(
        self,
        definition: task_pb2.TaskDefinition,
        public: registry_pb2.PublicSet,
        silo: str,
        extractor: registry_pb2.Extractor | None = None,
    ) -> list[str]:
        """Every task fits."""
        return []

    async def vote(
        self,
        digest: str,
        number: int,
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

    async def together() -> None:
        async with asyncio.TaskGroup() as agents:
            for root in homes:
                home = SiloHome(root)
                data = pack(random.integers(0, shape.classes, shape.rows), shape)
                ballot = trainer_pb2.VoteResponse(encoding=shape.encoding.to_proto(), data=data)
                link = CoordinatorLink(IdentityFiles.load(home.identity))
                metrics = AgentMetrics(CollectorRegistry())
                clock = ComparedClock(_now, metrics.clock_skew)
                agent = Agent(
                    link,
                    ReadyTrainer(ballot),
                    Exchange.of(home),
                    AuditLog(home.agent, _now),
                    metrics,
                    root.name,
                    Renewal(link, metrics, clock),
                    clock,
                )
                agents.create_task(agent.run())

    asyncio.run(together())
