"""The trainer's socket: a handful of calls from the same hospital's agent, and nothing else."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import grpc
import structlog
from pydantic import ValidationError

from silo_agent.shared.home import SiloHome
from silo_agent.trainer.approval.consent import SHOWN_DIGITS, Consent
from silo_agent.trainer.approval.record import ApprovalRecord
from silo_agent.trainer.bounded_requests import BoundedRequests
from silo_agent.trainer.isolation import Isolation
from silo_agent.trainer.models.extractors import load
from silo_agent.trainer.models.extractors.protocol import Extractor
from silo_agent.trainer.privacy.ledger.ledger import Ledger
from silo_agent.trainer.privacy.ledger.patients import PatientRecord
from silo_agent.trainer.privacy_totals import privacy_totals
from silo_agent.trainer.public_copies import PublicCopies
from silo_agent.trainer.release import PaidBallot
from silo_agent.trainer.session import Session, SiloContext, open_session
from silo_agent.trainer.settings import RunningSettings, read_settings
from silo_agent.trainer.task_folder import TaskFolder, undecided
from silo_agent.trainer.told_outside import told_outside
from silo_agent.trainer.training_report import reported
from silo_agent.trainer.worker_thread import Closed, WorkerThread
from wire import __version__
from wire.chunks import SOCKET_MESSAGE_BYTES
from wire.consilium.v1 import task_pb2, trainer_pb2, trainer_pb2_grpc
from wire.errors import (
    DATA_MISMATCH,
    EXTRACTOR_INVALID,
    NOT_PREPARED,
    PROPOSALS_FULL,
    PUBLIC_SET_INVALID,
    ROUND_BEYOND_TASK,
    TASK_INVALID,
    TRAINER_UNREACHABLE,
    ConfigurationError,
    Refusal,
)
from wire.privacy.randomness import SecureBits
from wire.public_content import inspect
from wire.runtime.configuration import explain
from wire.runtime.crash_points import crash_point
from wire.runtime.files import discard_unfinished, lock_until_exit
from wire.runtime.health import Health
from wire.runtime.permissions import log_narrowed, narrow
from wire.runtime.sharing import let_group_connect, make_private_folder
from wire.runtime.shutdown import DRAIN_SECONDS, stop_requested
from wire.task.definition import TaskDefinition

log = structlog.get_logger()

_LOCK_SECONDS = 5.0
# As Linux has it (unix(7)), less the byte that ends it.
_LONGEST_SOCKET_PATH = 107
_LOCK_PAUSE_SECONDS = 0.1

MOST_UNDECIDED = 100
"""Tasks that may wait for a person's decision; further ones are not kept."""

Request = TypeVar("Request")
Response = TypeVar("Response")


def _refusals_as_status(
    call: Callable[[Any, Request, Any], Awaitable[Response]],
) -> Callable[[Any, Request, Any], Awaitable[Response]]:
    """Turns a refusal into a gRPC status; what may not leave stays in the trainer's own log."""

    @functools.wraps(call)
    async def answer(self: Any, request: Request, context: Any) -> Response:
        try:
            return await call(self, request, context)
        except Closed:
            failure = Refusal(TRAINER_UNREACHABLE, socket=self._home.socket)
        except Exception as error:
            failure = told_outside(error, getattr(request, "round", 0))
        await context.abort(failure.status, failure.sentence, failure.metadata())
        raise AssertionError("abort returns never")

    return answer


class TrainerServicer(trainer_pb2_grpc.TrainerServiceServicer):
    """The private side. One training at a time; calls are answered while it runs."""

    def __init__(
        self, home: SiloHome, silo_context: SiloContext, isolation: Isolation, consent: Consent
    ) -> None:
        """`consent` judges by the settings of `silo_context`."""
        self._home = home
        self._silo_context = silo_context
        self._isolation = isolation
        self._consent = consent
        self._running = RunningSettings(silo_context.settings, home.settings_file)
        self._copies = PublicCopies(home, most_bytes=consent.max_public_bytes)
        self._sessions: dict[str, Session] = {}
        self._worker_thread = WorkerThread()

    @_refusals_as_status
    async def Describe(
        self, request: trainer_pb2.DescribeRequest, context: Any
    ) -> trainer_pb2.DescribeResponse:
        """Version, isolation and privacy totals of this trainer."""
        return trainer_pb2.DescribeResponse(
            version=__version__,
            isolation=self._isolation.to_proto(),
            isolation_note=self._isolation.note,
            privacy_totals=await asyncio.to_thread(self._totals_if_settled),
        )

    @_refusals_as_status
    async def Propose(
        self, request: trainer_pb2.ProposeRequest, context: Any
    ) -> trainer_pb2.ProposeResponse:
        """Keeps the definition for a person to read, and refuses it until it is approved."""
        definition = self._proposed(request.definition)
        most = self._consent.max_public_bytes
        return trainer_pb2.ProposeResponse(task_digest=definition.digest, max_public_bytes=most)

    @_refusals_as_status
    async def Prepare(
        self, request: trainer_pb2.PrepareRequest, context: Any
    ) -> trainer_pb2.PrepareResponse:
        """Checks the private data against the task's public set, by the trainer's own copy of it alone."""
        definition = self._proposed(request.definition)
        if definition.digest not in self._sessions:
            self._sessions[definition.digest] = await self._worker_thread(
                self._open, definition, request.silo
            )
        return trainer_pb2.PrepareResponse(task_digest=definition.digest)

    @_refusals_as_status
    async def Vote(
        self, request: trainer_pb2.VoteRequest, context: Any
    ) -> trainer_pb2.VoteResponse:
        """Trains, votes, keeps the ballot, hands it out."""
        session = self._session(request.task_digest)
        definition = session.definition
        if not 1 <= request.round <= definition.rounds.max_rounds:
            rounds = definition.rounds.max_rounds
            raise Refusal(
                ROUND_BEYOND_TASK, task=definition.name, rounds=rounds, round=request.round
            )

        def train() -> tuple[PaidBallot, trainer_pb2.TrainingReport | None]:
            self._consent.require(definition)
            fresh = session.folder.ballot(request.round) is None
            ballot, report = reported(
                lambda: session.vote(request.round, _labels(request), request.known_ballots),
                session.releaser.scope.units,
            )
            return ballot, report if fresh else None

        ballot, report = await self._worker_thread(train)
        # Training may take hours: what was withdrawn meanwhile stays here.
        self._consent.require(definition)
        context.add_done_callback(lambda _: crash_point("ballot-handed-over"))
        return trainer_pb2.VoteResponse(
            encoding=session.shape.encoding.to_proto(),
            data=ballot.data,
            privacy=ballot.declaration.to_proto(),
            budget_spent=bool(ballot.abstained),
            privacy_totals=await asyncio.to_thread(self._privacy_totals, definition),
            training=report,
        )

    @_refusals_as_status
    async def Finish(
        self, request: trainer_pb2.FinishRequest, context: Any
    ) -> trainer_pb2.FinishResponse:
        """Trains the final model and keeps it."""
        session = self._session(request.task_digest)

        def train() -> trainer_pb2.TrainingReport | None:
            self._consent.require(session.definition)
            fresh = session.folder.model_path() is None
            _, report = reported(
                lambda: session.finish(request.consensus.round, _labels(request)),
                session.releaser.scope.units,
            )
            return report if fresh else None

        report = await self._worker_thread(train)
        self._drop_copies(session.definition)
        if session.folder.model_path() is not None:
            log.info("model_kept", task=session.definition.name)
        return trainer_pb2.FinishResponse(training=report)

    async def close(self) -> None:
        """Starts no further training; returns when the running one has ended."""
        await self._worker_thread.close()

    def _proposed(self, message: task_pb2.TaskDefinition) -> TaskDefinition:
        """A sound definition, kept whether or not it is approved; raises unless it is."""
        try:
            definition = TaskDefinition.from_proto(message)
        except ValidationError as error:
            raise Refusal(TASK_INVALID, why=explain(error, TaskDefinition)) from None
        if definition.rows < 1:
            raise Refusal(TASK_INVALID, why="its public set has no rows")
        # Refuses what is no digest: a person reads it, and the policy compares it.
        self._copies.require_names(definition)
        self._keep(definition)
        self._consent.require(definition)
        return definition

    def _keep(self, definition: TaskDefinition) -> None:
        """Keeps a definition for a person to read; PROPOSALS_FULL if too many wait for a decision.

        A new one is refused rather than an old one dropped: the agent proposes all of them again and again, and
        dropping would turn that into writing without end.
        """
        folder = TaskFolder(self._home.tasks, definition.digest)
        if folder.has_definition:
            return
        if undecided(self._home.tasks, self._consent.decided()) >= MOST_UNDECIDED:
            shown = definition.digest[:SHOWN_DIGITS]
            raise Refusal(PROPOSALS_FULL, task=definition.name, digest=shown, most=MOST_UNDECIDED)
        folder.keep_definition(definition)

    def _open(self, definition: TaskDefinition, silo: str) -> Session:
        """The task's session; DATA_MISMATCH if the private data do not fit, and only the log says why."""
        public = self._copies.public_set(definition)
        rows, schema = inspect(public)
        if rows != definition.rows:
            why = f"it has {rows} rows, and the task says {definition.rows}"
            raise Refusal(
                PUBLIC_SET_INVALID, path=public.name, why=why, fix="Create the task again."
            )
        extractor = self._extractor(definition)
        session, misfits = open_session(
            definition, schema, public, self._silo_context, silo, extractor
        )
        for misfit in misfits:
            log.warning(
                "private_data",
                task=definition.name,
                fatal=misfit.fatal,
                sentence=misfit.sentence,
            )
        if session is None:
            raise Refusal(DATA_MISMATCH, task=definition.name)
        return session

    def _drop_copies(self, finished: TaskDefinition) -> None:
        """Drops the finished task's copies; what its session has mapped into memory stays mapped."""
        unfinished = [
            session.definition
            for session in self._sessions.values()
            if session.folder.model_path() is None
        ]
        self._copies.drop_unused(finished, unfinished)

    def _extractor(self, definition: TaskDefinition) -> Extractor | None:
        """The task's extractor, if it names one; EXTRACTOR_INVALID if the file is not for its public rows."""
        if not definition.extractor:
            return None
        extractor = load(self._copies.extractor(definition))
        if extractor.file.header.public_set != definition.public_set:
            raise Refusal(EXTRACTOR_INVALID, why="it was trained on another public set")
        return extractor

    def _privacy_totals(self, task: TaskDefinition | None = None) -> trainer_pb2.PrivacyTotals:
        return privacy_totals(self._silo_context.ledger, self._silo_context.settings.privacy, task)

    def _totals_if_settled(self) -> trainer_pb2.PrivacyTotals | None:
        """None while silo.yaml says something else, also of the budget, than the trainer runs with."""
        return self._privacy_totals() if self._running.unchanged() else None

    def _session(self, digest: str) -> Session:
        session = self._sessions.get(digest)
        if session is None:
            raise Refusal(NOT_PREPARED, task=digest[:12])
        return session


async def serve(home: SiloHome, isolation: Isolation, drain: float = DRAIN_SECONDS) -> None:
    """Serves on the home's socket until SIGTERM or SIGINT; ConfigurationError if another trainer does.

    A training under way is finished if it takes no more than `drain` seconds. Otherwise the process ends
    without it, and the round is trained again after a restart.
    """
    _require_short(home.socket)
    settings = read_settings(home.settings_file)
    # From here on folder, ledger and socket are this trainer's alone.
    await _acquire_lock(home, settings.fingerprint)
    log_narrowed(narrow(home.private_side))
    discard_unfinished(home.tasks)
    PublicCopies(home).drop_all()
    make_private_folder(home.exchange)
    home.socket.unlink(missing_ok=True)
    server = grpc.aio.server(
        interceptors=[BoundedRequests()],
        options=[
            ("grpc.max_receive_message_length", SOCKET_MESSAGE_BYTES),
            ("grpc.max_send_message_length", SOCKET_MESSAGE_BYTES),
        ],
    )

    def clock() -> datetime:
        return datetime.now(UTC)

    silo_context = SiloContext(
        settings=settings,
        base=home.settings_file.parent,
        tasks=home.tasks,
        ledger=Ledger(home.ledger, home.ledger_witness, clock),
        bits=SecureBits(),
        patients=PatientRecord(home.patients),
    )
    running = RunningSettings(settings, home.settings_file)
    record = ApprovalRecord(home.approvals)
    consent = Consent(settings.criteria, running.require_unchanged, record, clock)
    servicer = TrainerServicer(home, silo_context, isolation, consent)
    trainer_pb2_grpc.add_TrainerServiceServicer_to_server(servicer, server)
    Health({"": lambda: True}).register(server)
    server.add_insecure_port(f"unix:{home.socket}")
    await server.start()
    let_group_connect(home.socket)
    log.info("trainer_ready", isolation=str(isolation.mode), note=isolation.note)
    await stop_requested(drain)
    log.info("trainer_stopping", drain_seconds=drain)
    await asyncio.gather(server.stop(drain), servicer.close())
    home.socket.unlink(missing_ok=True)


def _require_short(socket: Path) -> None:
    length = len(os.fsencode(socket))
    if length > _LONGEST_SOCKET_PATH:
        raise ConfigurationError(
            f"The path of the trainer's socket is too long: {length} bytes of {_LONGEST_SOCKET_PATH}, {socket}.",
            "Choose a --home with a shorter path.",
        )


async def _acquire_lock(home: SiloHome, fingerprint: str) -> None:
    """Takes the trainer's lock and notes there which settings run, retrying for `_LOCK_SECONDS`: a killed process may hold it a little longer than it lives."""
    tries = round(_LOCK_SECONDS / _LOCK_PAUSE_SECONDS)
    for _ in range(tries):
        if lock_until_exit(home.trainer_lock, fingerprint):
            return
        await asyncio.sleep(_LOCK_PAUSE_SECONDS)
    raise ConfigurationError(
        f"Another trainer is already running with {home.root}.",
        "Stop it first, or give this one its own --home. Beside a trainer that runs alone start the agent with "
        "`consilium agent relay`.",
    )


def _labels(request: trainer_pb2.VoteRequest | trainer_pb2.FinishRequest) -> bytes | None:
    return request.consensus.data if request.HasField("consensus") else None
