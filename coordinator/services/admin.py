"""What admins do: silos, public sets, tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import structlog
from pydantic import ValidationError

from coordinator.bell import either
from coordinator.desk import Desk
from coordinator.gate import caller
from coordinator.public_sets import inspect
from coordinator.store.records import TaskRecord, TokenRecord
from coordinator.translation import (
    history_message,
    public_set_message,
    silo_message,
    task_message,
    timestamp,
)
from wire.configuration import explain
from wire.consilium.v1 import admin_pb2, admin_pb2_grpc
from wire.errors import MESSAGE_MALFORMED, NAME_INVALID, TASK_INVALID, Refusal
from wire.identity import valid_name
from wire.join_token import JoinToken, secret_digest
from wire.task import TaskDefinition, TaskStatus

log = structlog.get_logger()

_REFRESH_SECONDS = 2.0


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Called by admins only; the gate has seen to that."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def RegisterSilo(
        self, request: admin_pb2.RegisterSiloRequest, context: Any
    ) -> admin_pb2.RegisterSiloResponse:
        """Registers a silo; its token is in this answer and nowhere else."""
        desk, now = self._desk, self._desk.clock()
        _check_name("silo", request.name)
        token = JoinToken.issue(
            desk.settings.enrolment_address,
            desk.settings.consortium,
            request.name,
            now + request.token_lifetime.ToTimedelta(),
            desk.authority.certificate,
        )
        record = TokenRecord(
            token.token_id, token.silo, secret_digest(token.secret), token.expires_at
        )
        silo = await desk.in_store(
            desk.store.silos.register, record, now, replace_token=request.replace_token
        )
        log.info("silo_registered", silo=silo.name, admin=caller().name)
        return admin_pb2.RegisterSiloResponse(
            silo=silo_message(silo, now),
            join_token=token.line,
            expires_at=timestamp(token.expires_at),
        )

    async def ListSilos(
        self, request: admin_pb2.ListSilosRequest, context: Any
    ) -> admin_pb2.ListSilosResponse:
        """Every silo."""
        return admin_pb2.ListSilosResponse(silos=await self._silos())

    async def GetSilo(
        self, request: admin_pb2.GetSiloRequest, context: Any
    ) -> admin_pb2.GetSiloResponse:
        """One silo."""
        silo = await self._desk.in_store(self._desk.store.silos.get, request.name)
        return admin_pb2.GetSiloResponse(silo=silo_message(silo, self._desk.clock()))

    async def RevokeSilo(
        self, request: admin_pb2.RevokeSiloRequest, context: Any
    ) -> admin_pb2.RevokeSiloResponse:
        """Shuts a silo out."""
        silo = await self._desk.in_store(self._desk.store.silos.revoke, request.name)
        log.warning("silo_revoked", silo=silo.name, admin=caller().name)
        return admin_pb2.RevokeSiloResponse(silo=silo_message(silo, self._desk.clock()))

    async def PublishPublicSet(
        self, request_iterator: AsyncIterator[admin_pb2.PublishPublicSetRequest], context: Any
    ) -> admin_pb2.PublishPublicSetResponse:
        """Takes a file, verifies its digest, reads its schema from the file itself."""
        desk = self._desk
        header: admin_pb2.PublicSetHeader | None = None
        async for part in request_iterator:
            header = part.header if part.HasField("header") else None
            break
        if header is None:
            raise Refusal(MESSAGE_MALFORMED, why="a public set begins with its header")
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
        record, already_held = await desk.in_store(
            desk.store.public_sets.add,
            header.name,
            header.digest,
            rows,
            header.size_bytes,
            schema.model_dump(mode="json"),
            desk.clock(),
        )
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
        task = await desk.in_store(desk.store.tasks.create, definition, desk.clock())
        log.info("task_created", task=task.name, digest=task.digest, admin=caller().name)
        return admin_pb2.CreateTaskResponse(task=task_message(task))

    async def StartTask(
        self, request: admin_pb2.StartTaskRequest, context: Any
    ) -> admin_pb2.StartTaskResponse:
        """Opens a round."""
        desk = self._desk
        task = await desk.in_store(desk.store.tasks.start, request.name, desk.clock())
        self._announce("task_started", task)
        return admin_pb2.StartTaskResponse(task=task_message(task))

    async def PauseTask(
        self, request: admin_pb2.PauseTaskRequest, context: Any
    ) -> admin_pb2.PauseTaskResponse:
        """Holds a task."""
        reason = f"Paused by {caller().name}."
        task = await self._desk.in_store(self._desk.store.tasks.pause, request.name, reason)
        self._announce("task_paused", task)
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
        return admin_pb2.GetTaskResponse(
            task=task_message(task),
            history=[history_message(task.name, closed) for closed in history],
        )

    async def WatchTask(
        self, request: admin_pb2.WatchTaskRequest, context: Any
    ) -> AsyncIterator[admin_pb2.WatchTaskResponse]:
        """The task after each vote and each change, until it is finished."""
        desk = self._desk
        while True:
            votes, changes = desk.conductor.ballots.ticket(), desk.conductor.tasks.ticket()
            task = await desk.in_store(desk.store.tasks.get, request.name)
            yield admin_pb2.WatchTaskResponse(task=task_message(task), silos=await self._silos())
            if task.status is TaskStatus.FINISHED:
                return
            # A lease that ends rings no bell.
            await either(votes, changes, seconds=_REFRESH_SECONDS)

    async def _silos(self) -> list[admin_pb2.Silo]:
        records = await self._desk.in_store(self._desk.store.silos.all)
        return [silo_message(record, self._desk.clock()) for record in records]

    def _announce(self, event: str, task: TaskRecord) -> None:
        self._desk.conductor.tasks.ring()
        self._desk.conductor.ballots.ring()
        log.info(event, task=task.name, status=str(task.status), admin=caller().name)


def _check_name(what: str, name: str) -> None:
    if not valid_name(name):
        raise Refusal(NAME_INVALID, what=f"The {what}'s", name=name)
