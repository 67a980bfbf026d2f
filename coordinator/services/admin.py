"""What admins do: silos, public sets, tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import structlog
from google.protobuf.duration_pb2 import Duration
from pydantic import ValidationError

from coordinator.bell import either
from coordinator.desk import Desk
from coordinator.gate import caller
from coordinator.news import Topic
from coordinator.public_sets import inspect
from coordinator.services.consensuses import ConsensusReading
from coordinator.services.extractors import ExtractorPublishing
from coordinator.store.records import TokenRecord
from coordinator.translation import (
    admin_message,
    audit_message,
    declaration_message,
    history_message,
    party_release_message,
    public_set_message,
    silo_message,
    task_message,
    timestamp,
)
from coordinator.upload import opening
from wire.configuration import explain
from wire.consilium.v1 import admin_pb2
from wire.crash_points import crash_point
from wire.errors import MESSAGE_MALFORMED, NAME_INVALID, TASK_INVALID, Refusal
from wire.identity import Role
from wire.join_token import JoinToken, secret_digest
from wire.naming import valid_name
from wire.task import TaskDefinition, TaskStatus

log = structlog.get_logger()

_REFRESH_SECONDS = 2.0
_LONGEST_TOKEN = timedelta(days=366)
_LAST_SEQUENCE = 2**63 - 1


class AdminServicer(ExtractorPublishing, ConsensusReading):
    """Called by admins only; the gate has seen to that."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)

    async def RegisterSilo(
        self, request: admin_pb2.RegisterSiloRequest, context: Any
    ) -> admin_pb2.RegisterSiloResponse:
        """Registers a silo; its token is in this answer and nowhere else."""
        token = await self._invite(Role.SILO, request)
        return admin_pb2.RegisterSiloResponse(
            silo=await self._silo(request.name),
            join_token=token.line,
            expires_at=timestamp(token.expires_at),
        )

    async def RegisterAdmin(
        self, request: admin_pb2.RegisterAdminRequest, context: Any
    ) -> admin_pb2.RegisterAdminResponse:
        """Registers a further admin; its token is in this answer and nowhere else."""
        token = await self._invite(Role.ADMIN, request)
        return admin_pb2.RegisterAdminResponse(
            join_token=token.line, expires_at=timestamp(token.expires_at)
        )

    async def ListAdmins(
        self, request: admin_pb2.ListAdminsRequest, context: Any
    ) -> admin_pb2.ListAdminsResponse:
        """Every admin."""
        admins = await self._desk.in_store(self._desk.store.members.admins)
        return admin_pb2.ListAdminsResponse(admins=map(admin_message, admins))

    async def RevokeAdmin(
        self, request: admin_pb2.RevokeAdminRequest, context: Any
    ) -> admin_pb2.RevokeAdminResponse:
        """Shuts an admin out."""
        desk = self._desk
        await desk.in_store(
            desk.store.members.revoke, Role.ADMIN, request.name, desk.clock(), _actor()
        )
        log.warning("admin_revoked", name=request.name, admin=caller().name)
        return admin_pb2.RevokeAdminResponse()

    async def ListSilos(
        self, request: admin_pb2.ListSilosRequest, context: Any
    ) -> admin_pb2.ListSilosResponse:
        """Every silo."""
        return admin_pb2.ListSilosResponse(silos=await self._silos())

    async def GetSilo(
        self, request: admin_pb2.GetSiloRequest, context: Any
    ) -> admin_pb2.GetSiloResponse:
        """One silo."""
        return admin_pb2.GetSiloResponse(silo=await self._silo(request.name))

    async def RevokeSilo(
        self, request: admin_pb2.RevokeSiloRequest, context: Any
    ) -> admin_pb2.RevokeSiloResponse:
        """Shuts a silo out for good; its open streams end with the next ring."""
        desk = self._desk
        await desk.in_store(
            desk.store.members.revoke,
            Role.SILO,
            request.name,
            desk.clock(),
            _actor(),
            drop_ballots=request.drop_ballots,
        )
        self._announce("silo_revoked", silo=request.name)
        return admin_pb2.RevokeSiloResponse(silo=await self._silo(request.name))

    async def SuspendSilo(
        self, request: admin_pb2.SuspendSiloRequest, context: Any
    ) -> admin_pb2.SuspendSiloResponse:
        """Shuts a silo out until it is resumed."""
        desk = self._desk
        await desk.in_store(
            desk.store.members.suspend,
            request.name,
            desk.clock(),
            _actor(),
            drop_ballots=request.drop_ballots,
        )
        self._announce("silo_suspended", silo=request.name)
        return admin_pb2.SuspendSiloResponse(silo=await self._silo(request.name))

    async def ResumeSilo(
        self, request: admin_pb2.ResumeSiloRequest, context: Any
    ) -> admin_pb2.ResumeSiloResponse:
        """Lets a suspended silo in again."""
        desk = self._desk
        await desk.in_store(desk.store.members.resume, request.name, desk.clock(), _actor())
        self._announce("silo_resumed", silo=request.name)
        return admin_pb2.ResumeSiloResponse(silo=await self._silo(request.name))

    async def ListAudit(
        self, request: admin_pb2.ListAuditRequest, context: Any
    ) -> AsyncIterator[admin_pb2.ListAuditResponse]:
        """The audit chain behind an entry, page by page."""
        # A chain never gets that long, and a database counts no further.
        desk, after = self._desk, min(request.after_sequence, _LAST_SEQUENCE)
        while page := await desk.in_store(desk.store.audit.page, after):
            for link in page:
                yield audit_message(link)
            after = page[-1].sequence

    async def GetAuditHead(
        self, request: admin_pb2.GetAuditHeadRequest, context: Any
    ) -> admin_pb2.GetAuditHeadResponse:
        """Where the audit chain ends."""
        head = await self._desk.in_store(self._desk.store.audit.head)
        return admin_pb2.GetAuditHeadResponse(sequence=head.sequence, hash=head.hash)

    async def ListPartyReleases(
        self, request: admin_pb2.ListPartyReleasesRequest, context: Any
    ) -> AsyncIterator[admin_pb2.ListPartyReleasesResponse]:
        """The coordinator's own privacy ledger, page by page."""
        desk, after = self._desk, ("", 0)
        while page := await desk.in_store(desk.store.party_ledger.page, after):
            for entry in page:
                yield party_release_message(entry)
            after = page[-1].task, page[-1].round

    async def PublishPublicSet(
        self, request_iterator: AsyncIterator[admin_pb2.PublishPublicSetRequest], context: Any
    ) -> admin_pb2.PublishPublicSetResponse:
        """Takes a file, verifies its digest, reads its schema from the file itself."""
        desk = self._desk
        header: admin_pb2.PublicSetHeader = await opening(request_iterator, "a public set")
        _check_name("public set", header.name)
        with desk.folder.upload(header.digest, header.size_bytes) as writer:
            async for part in request_iterator:
                writer.append(part.data)
        try:
            rows, schema = inspect(desk.folder.path(header.digest))
        except Refusal:
            # Named by its content: no published set can have this digest.
            desk.folder.discard(header.digest)
            raise
        crash_point("public-set-placed")
        record, already_held = await desk.in_store(
            desk.store.public_sets.add,
            header.name,
            header.digest,
            rows,
            header.size_bytes,
            schema.model_dump(mode="json"),
            desk.clock(),
            _actor(),
        )
        crash_point("public-set-published")
        log.info(
            "public_set_published",
            name=record.name,
            version=record.version,
            digest=record.digest,
            rows=rows,
            admin=caller().name,
        )
        return admin_pb2.PublishPublicSetResponse(
            public_set=public_set_message(record), already_held=already_held
        )

    async def CreateTask(
        self, request: admin_pb2.CreateTaskRequest, context: Any
    ) -> admin_pb2.CreateTaskResponse:
        """Stores a definition."""
        try:
            definition = TaskDefinition.from_proto(request.definition)
        except ValidationError as error:
            raise Refusal(TASK_INVALID, why=explain(error, TaskDefinition)) from None
        desk = self._desk
        task = await desk.in_store(desk.store.tasks.create, definition, desk.clock(), _actor())
        crash_point("task-created")
        log.info("task_created", task=task.name, digest=task.digest, admin=caller().name)
        return admin_pb2.CreateTaskResponse(task=task_message(task))

    async def StartTask(
        self, request: admin_pb2.StartTaskRequest, context: Any
    ) -> admin_pb2.StartTaskResponse:
        """Opens a round."""
        desk = self._desk
        task = await desk.in_store(desk.store.tasks.start, request.name, desk.clock(), _actor())
        crash_point("task-started")
        self._announce("task_started", task=task.name)
        return admin_pb2.StartTaskResponse(task=task_message(task))

    async def PauseTask(
        self, request: admin_pb2.PauseTaskRequest, context: Any
    ) -> admin_pb2.PauseTaskResponse:
        """Holds a task."""
        reason = f"Paused by {caller().name}."
        desk = self._desk
        task = await desk.in_store(
            desk.store.tasks.pause, request.name, reason, desk.clock(), _actor()
        )
        self._announce("task_paused", task=task.name)
        return admin_pb2.PauseTaskResponse(task=task_message(task))

    async def ListTasks(
        self, request: admin_pb2.ListTasksRequest, context: Any
    ) -> admin_pb2.ListTasksResponse:
        """Every task."""
        tasks = await self._desk.in_store(self._desk.store.tasks.all)
        return admin_pb2.ListTasksResponse(tasks=map(task_message, tasks))

    async def GetTask(
        self, request: admin_pb2.GetTaskRequest, context: Any
    ) -> admin_pb2.GetTaskResponse:
        """One task with its history."""
        desk = self._desk
        task = await desk.in_store(desk.store.tasks.get, request.name)
        history = await desk.in_store(desk.store.tasks.history, request.name)
        declared = await desk.in_store(desk.store.ballots.latest_declarations, request.name)
        return admin_pb2.GetTaskResponse(
            task=task_message(task),
            history=[history_message(task.name, closed) for closed in history],
            declarations=map(declaration_message, declared),
        )

    async def WatchTask(
        self, request: admin_pb2.WatchTaskRequest, context: Any
    ) -> AsyncIterator[admin_pb2.WatchTaskResponse]:
        """The task after each vote and each change, until it is finished."""
        desk = self._desk
        while True:
            desk.news.require_more()
            votes, changes = desk.news.ballots.ticket(), desk.news.tasks.ticket()
            task = await desk.in_store(desk.store.tasks.get, request.name)
            yield admin_pb2.WatchTaskResponse(task=task_message(task), silos=await self._silos())
            if task.status is TaskStatus.FINISHED:
                return
            # A lease that ends rings no bell.
            await either(votes, changes, seconds=_REFRESH_SECONDS)

    async def _silos(self) -> list[admin_pb2.Silo]:
        records = await self._desk.in_store(self._desk.store.silos.all)
        return [silo_message(record, self._desk.clock()) for record in records]

    async def _silo(self, name: str) -> admin_pb2.Silo:
        record = await self._desk.in_store(self._desk.store.silos.get, name)
        return silo_message(record, self._desk.clock())

    async def _invite(
        self, role: Role, request: admin_pb2.RegisterSiloRequest | admin_pb2.RegisterAdminRequest
    ) -> JoinToken:
        desk, now = self._desk, self._desk.clock()
        _check_name(str(role), request.name)
        token = JoinToken.issue(
            desk.settings.enrolment_address,
            desk.settings.consortium,
            role,
            request.name,
            now + _token_lifetime(request.token_lifetime),
            # Verifies what the server shows while the token is valid, also during a rotation.
            desk.authorities.serving.certificate,
        )
        kept = TokenRecord(
            token.token_id, role, token.name, secret_digest(token.secret), token.expires_at
        )
        await desk.in_store(
            desk.store.members.register, kept, now, _actor(), replace_token=request.replace_token
        )
        log.info("member_registered", role=str(role), name=token.name, admin=caller().name)
        return token

    def _announce(self, event: str, **subject: str) -> None:
        """Tells everyone that something changed, and the log who changed it."""
        self._desk.news.announce(Topic.TASKS, Topic.BALLOTS)
        log.info(event, admin=caller().name, **subject)


def _actor() -> str:
    """Who acts, for the audit chain."""
    return f"admin/{caller().name}"


def _token_lifetime(length: Duration) -> timedelta:
    if not 0 <= length.seconds <= _LONGEST_TOKEN.total_seconds():
        raise Refusal(MESSAGE_MALFORMED, why="a join token is valid for a year at most")
    return length.ToTimedelta()


def _check_name(what: str, name: str) -> None:
    if not valid_name(name):
        raise Refusal(NAME_INVALID, what=f"The {what}'s", name=name)
