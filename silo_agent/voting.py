"""One task at one silo: prepare the trainer, vote in the open round, keep the final model.

The worker looks at the task's latest state and does what that state asks for. What it missed in between does
not matter: a silo that was away goes on with the latest consensus.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

import structlog

from silo_agent.audit import AuditLog
from silo_agent.backoff import Backoff
from silo_agent.casting import ACCEPTED, BallotBox
from silo_agent.coordinator_link import CoordinatorLink
from silo_agent.downloads import Downloads, Exchange
from silo_agent.metrics import AgentMetrics
from silo_agent.traffic import Direction, Kind
from silo_agent.trainer_link import TrainerLink
from wire.ballot import MOST_SEEN, digest
from wire.consilium.v1 import ballot_pb2, rounds_pb2, task_pb2, trainer_pb2
from wire.crash_points import crash_point
from wire.errors import (
    APPROVAL_NEEDED,
    APPROVAL_REFUSED_BY_POLICY,
    APPROVAL_WITHDRAWN,
    CONTENT_CORRUPT,
    NOT_PREPARED,
    TRAINER_UNREACHABLE,
    ConsiliumError,
    Refusal,
)
from wire.logs import harmless

log = structlog.get_logger()

# Soon after a person has approved; a question over the Unix socket costs next to nothing.
_APPROVAL_SECONDS = 2.0
# A finished task is in no hurry.
_LATE_APPROVAL_SECONDS = 30.0
# What is logged of each.
_NOT_APPROVED = {
    APPROVAL_NEEDED.code: "waiting_for_approval",
    APPROVAL_WITHDRAWN.code: "approval_withdrawn",
    APPROVAL_REFUSED_BY_POLICY.code: "refused_by_policy",
}
_HELD_UP = (rounds_pb2.ACTIVITY_WAITING_FOR_APPROVAL, rounds_pb2.ACTIVITY_REFUSED_BY_POLICY)


class TaskWorker:
    """Follows one task for as long as the agent runs; survives every error but cancellation."""

    def __init__(
        self,
        link: CoordinatorLink,
        trainer: TrainerLink,
        exchange: Exchange,
        audit: AuditLog,
        metrics: AgentMetrics,
    ) -> None:
        self._link = link
        self._trainer = trainer
        self._audit = audit
        self._downloads = Downloads(link, exchange, audit, metrics)
        self._box = BallotBox(link, audit)
        self._metrics = metrics
        self._state = task_pb2.TaskState()
        self._news = asyncio.Event()
        self._prepared = ""
        self._done: dict[int, str] = {}
        self._finished = False
        self._held_up = ""
        self._consensus: trainer_pb2.ConsensusLabels | None = None
        self._heard = (0, "")
        self.activity = rounds_pb2.ACTIVITY_IDLE

    def hear(self, state: task_pb2.TaskState) -> None:
        """Takes note of the task's latest state."""
        self._state = state
        if state.status != task_pb2.TASK_STATUS_RUNNING:
            self._metrics.tasks.waiting(state.definition.name, False)
        self._news.set()

    async def run(self) -> None:
        """Does what the latest state asks for, whenever there is a new one."""
        backoff = Backoff(longest=60.0)
        while True:
            await self._news.wait()
            # A trainer that is being started again is waited for here, where the state stays fresh; a failed
            # call would be tried again later and later.
            self._metrics.trainer_found(await self._trainer.wait_ready())
            self._news.clear()
            try:
                await self._attempt(self._state)
                backoff.reset()
                self._held_up = ""
                self._go_on()
            except ConsiliumError as error:
                if isinstance(error, Refusal) and error.code in _NOT_APPROVED:
                    await asyncio.sleep(self._hold_up(error))
                    self._news.set()
                    continue
                self._go_on()
                pause = backoff.next()
                log.warning(
                    "task_delayed",
                    task=self._state.definition.name,
                    code=error.code,
                    sentence=error.sentence,
                    hint=error.hint,
                    retry_seconds=round(pause, 1),
                )
                # A trainer that was started again knows nothing of what was prepared.
                if isinstance(error, Refusal) and error.is_a(NOT_PREPARED, TRAINER_UNREACHABLE):
                    self._prepared = ""
                await asyncio.sleep(pause)
                self._news.set()

    def _hold_up(self, refusal: Refusal) -> float:
        """The hospital has not approved: says so once, not at every question; seconds until the next."""
        task = self._state.definition.name
        if refusal.sentence != self._held_up:
            event = _NOT_APPROVED[refusal.code]
            log.warning(event, task=task, sentence=refusal.sentence, hint=refusal.hint)
            self._held_up = refusal.sentence
        # An approval may have been withdrawn: the trainer is asked from the beginning.
        self._prepared = ""
        if self._state.status == task_pb2.TASK_STATUS_FINISHED:
            self._go_on()
            return _LATE_APPROVAL_SECONDS
        # A person may think again; a policy does not.
        self.activity = _HELD_UP[refusal.is_a(APPROVAL_REFUSED_BY_POLICY)]
        running = self._state.status == task_pb2.TASK_STATUS_RUNNING
        self._metrics.tasks.waiting(task, running and refusal.is_a(APPROVAL_NEEDED))
        return _APPROVAL_SECONDS

    def _go_on(self) -> None:
        if self.activity in _HELD_UP:
            self.activity = rounds_pb2.ACTIVITY_IDLE
        self._metrics.tasks.waiting(self._state.definition.name, False)

    async def _attempt(self, state: task_pb2.TaskState) -> None:
        """Acts; whatever goes wrong comes out as a ConsiliumError, so that it is tried again."""
        try:
            await self._act(state)
        except ConsiliumError:
            raise
        except Exception as error:
            log.error("unexpected_error", task=state.definition.name, **harmless(error))
            raise ConsiliumError(
                "INTERNAL",
                f"The agent met an unexpected error ({type(error).__name__}).",
                "Its log says where; please report it.",
            ) from None

    async def _act(self, state: task_pb2.TaskState) -> None:
        if state.status == task_pb2.TASK_STATUS_FINISHED:
            self._metrics.tasks.end(state.definition.name)
        if state.status in (task_pb2.TASK_STATUS_RUNNING, task_pb2.TASK_STATUS_FINISHED):
            name, number = state.definition.name, state.open_round.number
            self._done |= dict.fromkeys(await self._box.claim(name, number), ACCEPTED)
        if state.status == task_pb2.TASK_STATUS_RUNNING:
            await self._vote(state)
        elif state.status == task_pb2.TASK_STATUS_FINISHED and not self._finished:
            await self._finish(state)
        elif state.status in (task_pb2.TASK_STATUS_DRAFT, task_pb2.TASK_STATUS_PAUSED):
            # The hospital may make up its mind before a round is open.
            await self._propose(state)

    async def _vote(self, state: task_pb2.TaskState) -> None:
        name, number = state.definition.name, state.open_round.number
        silo = self._link.identity.name
        if silo not in state.open_round.expected:
            return
        if silo in state.open_round.voted:
            self._done[number] = ACCEPTED
            return
        if number in self._done and not await self._forgotten(name, number):
            return
        self._metrics.tasks.begin(name)
        await self._prepare(state)
        consensus = await self._latest_consensus(state)
        self.activity = rounds_pb2.ACTIVITY_TRAINING
        try:
            started = perf_counter()
            known = max(self._audit.ballots, self._link.ballots_held)
            ballot = await self._trainer.vote(state.digest, number, consensus, known)
        finally:
            self.activity = rounds_pb2.ACTIVITY_IDLE
        self._metrics.tasks.asked(name, perf_counter() - started, ballot)
        if ballot.abstained:
            log.warning("budget_spent", task=name, round=number, sentence=ballot.abstained)
        outcome = await self._cast(state, number, ballot)
        self._metrics.tasks.cast(name, outcome)
        self._done[number] = outcome

    async def _forgotten(self, task: str, number: int) -> bool:
        """True if the coordinator no longer holds a ballot it accepted: it was restored from a backup.

        The trainer then hands out the identical ballot again. A ballot that was refused stays refused.
        """
        if self._done[number] != ACCEPTED or await self._box.held(task, number):
            return False
        log.warning("ballot_forgotten", task=task, round=number)
        return True

    async def _cast(
        self, state: task_pb2.TaskState, number: int, ballot: trainer_pb2.VoteResponse
    ) -> str:
        """Casts the ballot and says what became of it."""
        name, size = state.definition.name, len(ballot.data)
        header = ballot_pb2.BallotHeader(
            task=name,
            task_digest=state.digest,
            round=number,
            encoding=ballot.encoding,
            size_bytes=size,
            digest=digest(ballot.data),
            privacy=ballot.privacy if ballot.HasField("privacy") else None,
            consensuses_seen=await self._seen(state, number),
        )
        outcome = await self._box.cast(header, ballot.data)
        if outcome == ACCEPTED:
            self._metrics.bytes.labels("out", "ballot").inc(size)
            self._metrics.tasks.voted(name, number)
            spent = bool(ballot.abstained)
            self.activity = rounds_pb2.ACTIVITY_BUDGET_SPENT if spent else rounds_pb2.ACTIVITY_VOTED
        return outcome

    async def _seen(self, state: task_pb2.TaskState, number: int) -> list[str]:
        """Consensuses of this round that came before, for a coordinator that keeps an account of them."""
        if not state.definition.privacy.party_gamma_micros:
            return []
        name, definition = state.definition.name, state.digest
        came = await asyncio.to_thread(self._audit.consensuses, name, definition, number)
        return came[-MOST_SEEN:]

    async def _finish(self, state: task_pb2.TaskState) -> None:
        await self._prepare(state)
        consensus = await self._latest_consensus(state)
        self.activity = rounds_pb2.ACTIVITY_TRAINING
        try:
            kept = await self._trainer.finish(state.digest, consensus)
        finally:
            self.activity = rounds_pb2.ACTIVITY_IDLE
        self._metrics.tasks.trained(state.definition.name, kept)
        self._finished = True
        log.info("task_finished", task=state.definition.name, reason=state.reason)

    async def _prepare(self, state: task_pb2.TaskState) -> None:
        """Has the task approved, fetches what it needs and has the private data checked against it."""
        if self._prepared == state.digest:
            return
        await self._propose(state)
        public = await self._downloads.public_set(state.definition)
        extractor = await self._downloads.extractor(state.definition)
        try:
            silo = self._link.identity.name
            problems = await self._trainer.prepare(state.definition, public, silo, extractor)
        except Refusal as refusal:
            if refusal.is_a(CONTENT_CORRUPT):
                await self._downloads.discard_damaged(state.definition)
            raise
        if problems:
            raise ConsiliumError(
                "DATA_MISMATCH",
                f"The private data do not fit task {state.definition.name}: {' '.join(problems)}",
                "Correct silo.yaml or the data, then restart the trainer; see `consilium agent check`.",
            )
        self._prepared = state.digest

    async def _propose(self, state: task_pb2.TaskState) -> None:
        """Asks the hospital; raises its refusal. What a person may want to look at is fetched meanwhile."""
        try:
            accepted = await self._trainer.propose(state.definition)
        except Refusal as refusal:
            known = self._downloads.has_public_set(state.definition)
            if refusal.is_a(APPROVAL_NEEDED) and not known:
                await self._downloads.public_set(state.definition)
            raise
        if not self._audit.has(Kind.APPROVAL, accepted):
            name = state.definition.name
            self._audit.record(Direction.HERE, Kind.APPROVAL, name, 0, 0, accepted)

    async def _latest_consensus(
        self, state: task_pb2.TaskState
    ) -> trainer_pb2.ConsensusLabels | None:
        if not state.HasField("consensus"):
            return None
        wanted = state.consensus.round
        # The digest, too: a coordinator restored from a backup may form another one in the same round.
        if self._consensus is None or self._heard != (wanted, state.consensus.digest):
            fetched = await self._link.consensus(state.definition.name, wanted)
            crash_point("consensus-fetched")
            self._audit.record(
                Direction.IN,
                Kind.CONSENSUS,
                state.definition.name,
                wanted,
                len(fetched.data),
                fetched.header.digest,
            )
            self._metrics.bytes.labels("in", "consensus").inc(len(fetched.data))
            self._consensus = trainer_pb2.ConsensusLabels(round=wanted, data=fetched.data)
            self._heard = (wanted, state.consensus.digest)
        return self._consensus
