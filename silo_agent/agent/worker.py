"""One task at one silo: prepare the trainer, vote in the open round, train the final model.

The worker acts on the task's latest state only. States it missed do not matter: a silo that was away goes on
with the latest consensus.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

import structlog

from silo_agent.agent.audit.entries import Direction, Kind
from silo_agent.agent.audit.recorder import AuditLog
from silo_agent.agent.backoff import Backoff
from silo_agent.agent.ballot_outcome import BallotOutcome
from silo_agent.agent.ballot_sender import BallotSender
from silo_agent.agent.coordinator_client import CoordinatorClient
from silo_agent.agent.downloads import DownloadFolders, Downloads
from silo_agent.agent.metrics.instruments import AgentMetrics
from silo_agent.agent.pace import Pace
from silo_agent.agent.trainer_client import TrainerClient
from wire.ballot import MOST_SEEN, digest
from wire.consilium.v1 import ballot_pb2, rounds_pb2, task_pb2, trainer_pb2
from wire.errors import (
    APPROVAL_NEEDED,
    APPROVAL_OUTDATED,
    APPROVAL_REFUSED_BY_POLICY,
    APPROVAL_WITHDRAWN,
    CONTENT_CORRUPT,
    NOT_PREPARED,
    PROPOSALS_FULL,
    TRAINER_UNREACHABLE,
    ConsiliumError,
    Refusal,
)
from wire.runtime.crash_points import crash_point
from wire.runtime.logs import exception_summary

log = structlog.get_logger()

# How often the trainer is asked whether a task was approved: cheap, and a person waits for the effect.
_APPROVAL_POLL_SECONDS = 2.0
# The same for a finished task, of which only the final model is still to be trained, and for one beyond what the hospital keeps.
_LATE_APPROVAL_POLL_SECONDS = 30.0
# The log event of each.
_NOT_APPROVED = {
    APPROVAL_NEEDED.code: "waiting_for_approval",
    APPROVAL_OUTDATED.code: "waiting_for_approval",
    APPROVAL_WITHDRAWN.code: "approval_withdrawn",
    APPROVAL_REFUSED_BY_POLICY.code: "refused_by_policy",
    PROPOSALS_FULL.code: "too_many_undecided",
}
_NOT_APPROVED_ACTIVITIES = (
    rounds_pb2.ACTIVITY_WAITING_FOR_APPROVAL,
    rounds_pb2.ACTIVITY_REFUSED_BY_POLICY,
)


class TaskWorker:
    """Follows one task until cancelled; every failure is logged and tried again."""

    def __init__(
        self,
        coordinator: CoordinatorClient,
        trainer: TrainerClient,
        folders: DownloadFolders,
        audit: AuditLog,
        metrics: AgentMetrics,
        pace: Pace,
    ) -> None:
        self._coordinator = coordinator
        self._pace = pace
        self._trainer = trainer
        self._audit = audit
        self._downloads = Downloads(coordinator, folders, audit, metrics)
        self._sender = BallotSender(coordinator, audit)
        self._metrics = metrics
        self._state = task_pb2.TaskState()
        self._changed = asyncio.Event()
        self._prepared_digest = ""
        self._outcomes: dict[int, BallotOutcome] = {}
        """By round number."""
        self._finished = False
        self._logged_refusal = ""
        self._consensus: trainer_pb2.ConsensusLabels | None = None
        self._consensus_key = (0, "")
        """Round number and digest of `_consensus`."""
        self.activity = rounds_pb2.ACTIVITY_IDLE
        """What heartbeats report of this task."""

    @property
    def ended(self) -> bool:
        """True if the task is over and nobody is training for it."""
        over = self._state.status == task_pb2.TASK_STATUS_FINISHED
        return over and self.activity != rounds_pb2.ACTIVITY_TRAINING

    def update(self, state: task_pb2.TaskState) -> None:
        """Replaces the task's latest state, on which `run` acts next."""
        self._state = state
        if state.status != task_pb2.TASK_STATUS_RUNNING:
            self._metrics.tasks.waiting(state.definition.name, False)
        self._changed.set()

    async def run(self) -> None:
        """Acts on the latest state whenever it has changed."""
        backoff = Backoff(longest=60.0)
        while True:
            await self._changed.wait()
            # A restarting trainer is waited for here, before the state is read; a failed call would be
            # repeated with growing pauses.
            self._metrics.trainer_found(await self._trainer.wait_ready())
            self._changed.clear()
            try:
                await self._attempt(self._state)
                backoff.reset()
                self._logged_refusal = ""
                self._clear_not_approved()
            except ConsiliumError as error:
                if isinstance(error, Refusal) and error.code in _NOT_APPROVED:
                    await asyncio.sleep(self._not_approved(error))
                    self._changed.set()
                    continue
                self._clear_not_approved()
                pause = backoff.next()
                log.warning(
                    "task_delayed",
                    task=self._state.definition.name,
                    code=error.code,
                    sentence=error.sentence,
                    hint=error.hint,
                    retry_seconds=round(pause, 1),
                )
                # A restarted trainer has lost what was prepared.
                if isinstance(error, Refusal) and error.is_a(NOT_PREPARED, TRAINER_UNREACHABLE):
                    self._prepared_digest = ""
                await asyncio.sleep(pause)
                self._changed.set()

    def _not_approved(self, refusal: Refusal) -> float:
        """Logs once, and shows, that the hospital has not approved; returns seconds until asking again."""
        task = self._state.definition.name
        if refusal.sentence != self._logged_refusal:
            event = _NOT_APPROVED[refusal.code]
            log.warning(
                event, task=task, code=refusal.code, sentence=refusal.sentence, hint=refusal.hint
            )
            self._logged_refusal = refusal.sentence
        # An approval may have been withdrawn, which the trainer checks when it prepares.
        self._prepared_digest = ""
        if self._state.status == task_pb2.TASK_STATUS_FINISHED or refusal.is_a(PROPOSALS_FULL):
            self._clear_not_approved()
            return _LATE_APPROVAL_POLL_SECONDS
        # A person who withdrew may approve again; a policy does not.
        by_policy = refusal.is_a(APPROVAL_REFUSED_BY_POLICY)
        self.activity = _NOT_APPROVED_ACTIVITIES[by_policy]
        running = self._state.status == task_pb2.TASK_STATUS_RUNNING
        asked = refusal.is_a(APPROVAL_NEEDED, APPROVAL_OUTDATED)
        self._metrics.tasks.waiting(task, running and asked)
        return _APPROVAL_POLL_SECONDS

    def _clear_not_approved(self) -> None:
        if self.activity in _NOT_APPROVED_ACTIVITIES:
            self.activity = rounds_pb2.ACTIVITY_IDLE
        self._metrics.tasks.waiting(self._state.definition.name, False)

    async def _attempt(self, state: task_pb2.TaskState) -> None:
        """Handles the state; turns every unexpected exception into a ConsiliumError, after which `run` goes on."""
        try:
            await self._handle(state)
        except ConsiliumError:
            raise
        except Exception as error:
            log.error("unexpected_error", task=state.definition.name, **exception_summary(error))
            raise ConsiliumError(
                "INTERNAL",
                f"The agent met an unexpected error ({type(error).__name__}).",
                "Its log says where; please report it.",
            ) from None

    async def _handle(self, state: task_pb2.TaskState) -> None:
        if state.status == task_pb2.TASK_STATUS_FINISHED:
            self._metrics.tasks.end(state.definition.name)
        if state.status in (task_pb2.TASK_STATUS_RUNNING, task_pb2.TASK_STATUS_FINISHED):
            name, round_number = state.definition.name, state.open_round.number
            recovered = await self._sender.recover_receipts(name, round_number)
            self._outcomes |= dict.fromkeys(recovered, BallotOutcome.ACCEPTED)
        if state.status == task_pb2.TASK_STATUS_RUNNING:
            await self._vote(state)
        elif state.status == task_pb2.TASK_STATUS_FINISHED and not self._finished:
            await self._finish(state)
        elif state.status in (task_pb2.TASK_STATUS_DRAFT, task_pb2.TASK_STATUS_PAUSED):
            # So that the hospital can decide before the first round opens.
            await self._propose(state)

    async def _vote(self, state: task_pb2.TaskState) -> None:
        name, round_number = state.definition.name, state.open_round.number
        silo = self._coordinator.identity.name
        if silo not in state.open_round.expected:
            return
        if silo in state.open_round.voted:
            self._outcomes[round_number] = BallotOutcome.ACCEPTED
            return
        if round_number in self._outcomes and not await self._is_lost(name, round_number):
            return
        self._metrics.tasks.begin(name)
        await self._prepare(state)
        consensus = await self._latest_consensus(state)
        self.activity = rounds_pb2.ACTIVITY_TRAINING
        try:
            started = perf_counter()
            known = max(self._audit.ballots, self._coordinator.ballots_held)
            ballot = await self._trainer.vote(state.digest, round_number, consensus, known)
        finally:
            self.activity = rounds_pb2.ACTIVITY_IDLE
        self._metrics.tasks.ballot_made(name, perf_counter() - started, ballot)
        if ballot.budget_spent:
            log.warning("budget_spent", task=name, round=round_number)
        outcome = await self._cast(state, round_number, ballot)
        self._metrics.tasks.ballot_sent(name, outcome)
        self._outcomes[round_number] = outcome

    async def _is_lost(self, task: str, round_number: int) -> bool:
        """True if the coordinator no longer has a ballot it accepted: it was restored from a backup.

        The trainer then returns the identical ballot again. A ballot that was refused stays refused.
        """
        accepted = self._outcomes[round_number] is BallotOutcome.ACCEPTED
        if not accepted or await self._sender.is_stored(task, round_number):
            return False
        log.warning("ballot_lost_by_coordinator", task=task, round=round_number)
        return True

    async def _cast(
        self, state: task_pb2.TaskState, round_number: int, ballot: trainer_pb2.VoteResponse
    ) -> BallotOutcome:
        """Sends the ballot."""
        name, size = state.definition.name, len(ballot.data)
        header = ballot_pb2.BallotHeader(
            task=name,
            task_digest=state.digest,
            round=round_number,
            encoding=ballot.encoding,
            size_bytes=size,
            digest=digest(ballot.data),
            privacy=ballot.privacy if ballot.HasField("privacy") else None,
            consensuses_seen=await self._consensuses_seen(state, round_number),
        )
        outcome = await self._sender.cast(header, ballot.data)
        if outcome is BallotOutcome.ACCEPTED:
            self._metrics.bytes.labels("out", "ballot").inc(size)
            self._metrics.tasks.voted(name, round_number)
            spent = ballot.budget_spent
            self.activity = rounds_pb2.ACTIVITY_BUDGET_SPENT if spent else rounds_pb2.ACTIVITY_VOTED
        return outcome

    async def _consensuses_seen(self, state: task_pb2.TaskState, round_number: int) -> list[str]:
        """Digests of consensuses of this round received before, where the coordinator accounts for them."""
        if not state.definition.privacy.party_gamma_micros:
            return []
        name, definition = state.definition.name, state.digest
        seen = await asyncio.to_thread(self._audit.consensuses, name, definition, round_number)
        return seen[-MOST_SEEN:]

    async def _finish(self, state: task_pb2.TaskState) -> None:
        await self._prepare(state)
        consensus = await self._latest_consensus(state)
        self.activity = rounds_pb2.ACTIVITY_TRAINING
        try:
            answer = await self._trainer.finish(state.digest, consensus)
        finally:
            self.activity = rounds_pb2.ACTIVITY_IDLE
        self._metrics.tasks.trained(state.definition.name, answer)
        self._finished = True
        log.info("task_finished", task=state.definition.name, reason=state.reason)

    async def _prepare(self, state: task_pb2.TaskState) -> None:
        """Once per task definition: obtains approval, downloads, and has the trainer check the private data."""
        if self._prepared_digest == state.digest:
            return
        accepted = await self._propose(state)
        await self._downloads.of_task(state.definition, accepted.max_public_bytes)
        try:
            await self._trainer.prepare(state.definition, self._coordinator.identity.name)
        except Refusal as refusal:
            if refusal.is_a(CONTENT_CORRUPT):
                await self._downloads.discard_damaged(state.definition)
            raise
        self._prepared_digest = state.digest

    async def _propose(self, state: task_pb2.TaskState) -> trainer_pb2.ProposeResponse:
        """Asks the hospital for approval and records it; raises a refusal. Nothing is downloaded before."""
        await self._pace.turn()
        accepted = await self._trainer.propose(state.definition)
        if not self._audit.has(Kind.APPROVAL, accepted.task_digest):
            name = state.definition.name
            self._audit.record(Direction.HERE, Kind.APPROVAL, name, 0, 0, accepted.task_digest)
        return accepted

    async def _latest_consensus(
        self, state: task_pb2.TaskState
    ) -> trainer_pb2.ConsensusLabels | None:
        if not state.HasField("consensus"):
            return None
        round_number = state.consensus.round
        # The digest, too: a coordinator restored from a backup may form another one in the same round.
        key = (round_number, state.consensus.digest)
        if self._consensus is None or self._consensus_key != key:
            fetched = await self._coordinator.consensus(state.definition.name, round_number)
            crash_point("consensus-fetched")
            self._audit.record(
                Direction.IN,
                Kind.CONSENSUS,
                state.definition.name,
                round_number,
                len(fetched.data),
                fetched.header.digest,
            )
            self._metrics.bytes.labels("in", "consensus").inc(len(fetched.data))
            self._consensus = trainer_pb2.ConsensusLabels(round=round_number, data=fetched.data)
            self._consensus_key = key
        return self._consensus
