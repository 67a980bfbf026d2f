"""One task at one silo: prepare the trainer, vote in the open round, keep the final model.

The worker looks at the task's latest state and does what that state asks for. What it missed in between does
not matter: a silo that was away goes on with the latest consensus.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

import structlog

from silo_agent.backoff import Backoff
from silo_agent.coordinator_link import CoordinatorLink
from silo_agent.metrics import AgentMetrics
from silo_agent.traffic import Direction, Kind, Traffic
from silo_agent.trainer_link import TrainerLink
from wire.ballot import digest
from wire.consilium.v1 import ballot_pb2, rounds_pb2, task_pb2, trainer_pb2
from wire.errors import (
    BALLOT_CONFLICT,
    NOT_A_PARTICIPANT,
    NOT_PREPARED,
    ROUND_CLOSED,
    TASK_NOT_RUNNING,
    ConsiliumError,
    Refusal,
)
from wire.public_file import PublicSetFolder

log = structlog.get_logger()


class TaskWorker:
    """Follows one task for as long as the agent runs; survives every error but cancellation."""

    def __init__(
        self,
        link: CoordinatorLink,
        trainer: TrainerLink,
        public_sets: PublicSetFolder,
        traffic: Traffic,
        metrics: AgentMetrics,
    ) -> None:
        self._link = link
        self._trainer = trainer
        self._public_sets = public_sets
        self._traffic = traffic
        self._metrics = metrics
        self._state = task_pb2.TaskState()
        self._news = asyncio.Event()
        self._prepared = ""
        self._done_round = 0
        self._finished = False
        self._consensus: trainer_pb2.ConsensusLabels | None = None
        self.activity = rounds_pb2.ACTIVITY_IDLE

    def hear(self, state: task_pb2.TaskState) -> None:
        """Takes note of the task's latest state."""
        self._state = state
        self._news.set()

    async def run(self) -> None:
        """Does what the latest state asks for, whenever there is a new one."""
        backoff = Backoff(longest=60.0)
        while True:
            await self._news.wait()
            # A trainer that is being started again is waited for here, where the state stays fresh; a failed
            # call would be tried again later and later.
            await self._trainer.wait_ready()
            self._news.clear()
            try:
                await self._act(self._state)
                backoff.reset()
            except ConsiliumError as error:
                pause = backoff.next()
                log.warning(
                    "task_delayed",
                    task=self._state.definition.name,
                    code=error.code,
                    sentence=error.sentence,
                    hint=error.hint,
                    retry_seconds=round(pause, 1),
                )
                if isinstance(error, Refusal) and error.is_a(NOT_PREPARED):
                    self._prepared = ""
                await asyncio.sleep(pause)
                self._news.set()

    async def _act(self, state: task_pb2.TaskState) -> None:
        if state.status == task_pb2.TASK_STATUS_RUNNING:
            await self._vote(state)
        elif state.status == task_pb2.TASK_STATUS_FINISHED and not self._finished:
            await self._finish(state)

    async def _vote(self, state: task_pb2.TaskState) -> None:
        name, number = state.definition.name, state.open_round.number
        silo = self._link.identity.name
        if number <= self._done_round or silo not in state.open_round.expected:
            return
        if silo in state.open_round.voted:
            self._done_round = number
            return
        await self._prepare(state)
        consensus = await self._latest_consensus(state)
        self.activity = rounds_pb2.ACTIVITY_TRAINING
        try:
            started = perf_counter()
            ballot = await self._trainer.vote(state.digest, number, consensus)
            self._metrics.vote_seconds.labels(name).observe(perf_counter() - started)
        finally:
            self.activity = rounds_pb2.ACTIVITY_IDLE
        outcome = await self._cast(state, number, ballot)
        self._metrics.ballots.labels(name, outcome).inc()

    async def _cast(
        self, state: task_pb2.TaskState, number: int, ballot: trainer_pb2.VoteResponse
    ) -> str:
        """Casts the ballot and says what became of it."""
        name, ballot_digest, size = state.definition.name, digest(ballot.data), len(ballot.data)
        header = ballot_pb2.BallotHeader(
            task=name,
            task_digest=state.digest,
            round=number,
            encoding=ballot.encoding,
            size_bytes=size,
            digest=ballot_digest,
        )
        self._traffic.record(Direction.OUT, Kind.BALLOT, name, number, size, ballot_digest)
        try:
            receipt = await self._link.cast(header, ballot.data)
        except Refusal as refusal:
            # None of these gets better by trying again at once.
            if not refusal.is_a(ROUND_CLOSED, NOT_A_PARTICIPANT, BALLOT_CONFLICT, TASK_NOT_RUNNING):
                raise
            log.warning("ballot_refused", task=name, round=number, sentence=refusal.sentence)
            # A paused task goes on in the same round, with whoever takes part by then.
            if refusal.is_a(ROUND_CLOSED, BALLOT_CONFLICT):
                self._done_round = number
            return refusal.code.lower()
        self._done_round = number
        self._traffic.record(Direction.IN, Kind.RECEIPT, name, number, 0, receipt.digest)
        self._metrics.bytes.labels("out", "ballot").inc(size)
        self._metrics.round.labels(name).set(number)
        self.activity = rounds_pb2.ACTIVITY_VOTED
        log.info("ballot_cast", task=name, round=number, bytes=size, digest=ballot_digest)
        return "accepted"

    async def _finish(self, state: task_pb2.TaskState) -> None:
        await self._prepare(state)
        consensus = await self._latest_consensus(state)
        self.activity = rounds_pb2.ACTIVITY_TRAINING
        try:
            await self._trainer.finish(state.digest, consensus)
        finally:
            self.activity = rounds_pb2.ACTIVITY_IDLE
        self._finished = True
        log.info("task_finished", task=state.definition.name, reason=state.reason)

    async def _prepare(self, state: task_pb2.TaskState) -> None:
        """Fetches the public set, if need be, and has the private data checked against it."""
        if self._prepared == state.digest:
            return
        public = await self._link.public_set(state.definition.public_set)
        if not self._public_sets.has(public.digest):
            size = await self._link.download(public, self._public_sets)
            self._traffic.record(
                Direction.IN, Kind.PUBLIC_SET, state.definition.name, 0, size, public.digest
            )
            self._metrics.bytes.labels("in", "public_set").inc(size)
        problems = await self._trainer.prepare(state.definition, public)
        if problems:
            raise ConsiliumError(
                "DATA_MISMATCH",
                f"The private data do not fit task {state.definition.name}: {' '.join(problems)}",
                "Correct silo.yaml or the data, then restart the trainer; see `consilium agent check`.",
            )
        self._prepared = state.digest

    async def _latest_consensus(
        self, state: task_pb2.TaskState
    ) -> trainer_pb2.ConsensusLabels | None:
        if not state.HasField("consensus"):
            return None
        wanted = state.consensus.round
        if self._consensus is None or self._consensus.round != wanted:
            fetched = await self._link.consensus(state.definition.name, wanted)
            self._traffic.record(
                Direction.IN,
                Kind.CONSENSUS,
                state.definition.name,
                wanted,
                len(fetched.data),
                fetched.header.digest,
            )
            self._metrics.bytes.labels("in", "consensus").inc(len(fetched.data))
            self._consensus = trainer_pb2.ConsensusLabels(round=wanted, data=fetched.data)
        return self._consensus
