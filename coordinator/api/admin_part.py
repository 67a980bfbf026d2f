"""What the parts of the admin's service share: the context, who acts, how a change is announced."""

from __future__ import annotations

import structlog

from coordinator.api.interceptor import caller
from coordinator.api.translation import silo_message
from coordinator.context import ServiceContext
from coordinator.rounds.change_bus import Topic
from wire.consilium.v1 import admin_pb2, admin_pb2_grpc
from wire.errors import NAME_INVALID, Refusal
from wire.identity.naming import valid_name

log = structlog.get_logger()


class AdminPart(admin_pb2_grpc.AdminServiceServicer):
    """Base of the classes that `AdminServicer` is composed of."""

    def __init__(self, service: ServiceContext) -> None:
        self._service = service

    def _announce(self, event: str, **subject: str) -> None:
        """Announces a change of tasks or members to all replicas, and logs who made it."""
        self._service.change_bus.announce(*Topic)
        log.info(event, admin=caller().name, **subject)

    async def _silo_messages(self) -> list[admin_pb2.Silo]:
        records = await self._service.in_store(self._service.store.silos.all)
        return [silo_message(record, self._service.clock()) for record in records]


def check_name(what: str, name: str) -> None:
    """NAME_INVALID for a name that cannot be part of an identity or a reference."""
    if not valid_name(name):
        raise Refusal(NAME_INVALID, what=f"The {what}'s", name=name)
