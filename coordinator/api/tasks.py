"""The admin's service: create tasks, start and pause them, watch them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import structlog
from pydantic import ValidationError

from coordinator.api.admin_part import AdminPart
from coordinator.api.interceptor import caller
from coordinator.api.translation import declaration_message, history_message, task_message
from coordinator.rounds.change_signal import wait_for_any
from wire.consilium.v1 import admin_pb2
from wire.errors import TASK_INVALID, Refusal
from wire.runtime.configuration import explain
from wire.runtime.crash_points import crash_point
from wire.task.definition import TaskDefinition, TaskStatus

log = structlog.get_logger()

_REFRESH_SECONDS = 2.0


class TaskAdministration(AdminPart):
    """The part of the admin's service that is about tasks."""

    async def CreateTask(
        self, request: admin_pb2.CreateTaskRequest, context: Any
    ) -> admin_pb2.CreateTaskResponse:
        """Stores a definition."""
        try:
            definition = TaskDefinition.from_proto(request.definition)
        except ValidationError as error:
            raise Refusal(TASK_INVALID, why=explain(error, TaskDefinition)) from None
        service = self._service
        task = await service.in_store(
            service.store.tasks.create, definition, service.clock(), caller()
        )
        crash_point("task-created")
        log.info("task_created", task=task.name, digest=task.digest, admin=caller().name)
        return admin_pb2.CreateTaskResponse(task=task_message(task))

    async def StartTask(
        self, request: admin_pb2.StartTaskRequest, context: Any
    ) -> admin_pb2.StartTaskResponse:
        """Opens a round."""
        service = self._service
        task = await service.in_store(
            service.store.tasks.start, request.name, service.clock(), caller()
        )
        crash_point("task-started")
        self._announce("task_started", task=task.name)
        return admin_pb2.StartTaskResponse(task=task_message(task))

    async def PauseTask(
        self, request: admin_pb2.PauseTaskRequest, context: Any
    ) -> admin_pb2.PauseTaskResponse:
        """Pauses a task."""
        reason = f"Paused by {caller().name}."
        service = self._service
        task = await service.in_store(
            service.store.tasks.pause, request.name, reason, service.clock(), caller()
        )
        self._announce("task_paused", task=task.name)
        return admin_pb2.PauseTaskResponse(task=task_message(task))

    async def ListTasks(
        self, request: admin_pb2.ListTasksRequest, context: Any
    ) -> admin_pb2.ListTasksResponse:
        """Every task."""
        tasks = await self._service.in_store(self._service.store.tasks.all)
        return admin_pb2.ListTasksResponse(tasks=map(task_message, tasks))

    async def GetTask(
        self, request: admin_pb2.GetTaskRequest, context: Any
    ) -> admin_pb2.GetTaskResponse:
        """One task with its history."""
        service = self._service
        task = await service.in_store(service.store.tasks.get, request.name)
        history = await service.in_store(service.store.tasks.history, request.name)
        declared = await service.in_store(service.store.ballots.latest_declarations, request.name)
        return admin_pb2.GetTaskResponse(
            task=task_message(task),
            history=[history_message(task.name, closed) for closed in history],
            declarations=map(declaration_message, declared),
        )

    async def WatchTask(
        self, request: admin_pb2.WatchTaskRequest, context: Any
    ) -> AsyncIterator[admin_pb2.WatchTaskResponse]:
        """The task after each vote and each change, until it is finished."""
        service = self._service
        while True:
            service.change_bus.require_open()
            votes, changes = service.change_bus.ballots.waiter(), service.change_bus.tasks.waiter()
            task = await service.in_store(service.store.tasks.get, request.name)
            yield admin_pb2.WatchTaskResponse(
                task=task_message(task), silos=await self._silo_messages()
            )
            if task.status is TaskStatus.FINISHED:
                return
            # The end of a lease fires no signal.
            await wait_for_any(votes, changes, seconds=_REFRESH_SECONDS)
