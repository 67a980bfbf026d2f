"""The admin's service: register members, shut them out, let them in again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import structlog
from google.protobuf.duration_pb2 import Duration

from coordinator.api.admin_part import AdminPart, check_name
from coordinator.api.interceptor import caller
from coordinator.api.translation import admin_message, silo_message, timestamp
from coordinator.pki.members import new_token
from wire.consilium.v1 import admin_pb2
from wire.errors import MESSAGE_MALFORMED, Refusal
from wire.identity.identity import Role
from wire.identity.join_token import JoinToken

log = structlog.get_logger()

_LONGEST_TOKEN = timedelta(days=366)


class MemberAdministration(AdminPart):
    """The part of the admin's service that is about silos and admins."""

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
        admins = await self._service.in_store(self._service.store.members.admins)
        return admin_pb2.ListAdminsResponse(admins=map(admin_message, admins))

    async def RevokeAdmin(
        self, request: admin_pb2.RevokeAdminRequest, context: Any
    ) -> admin_pb2.RevokeAdminResponse:
        """Shuts an admin out."""
        service = self._service
        await service.in_store(
            service.store.members.revoke, Role.ADMIN, request.name, service.clock(), caller()
        )
        self._announce("admin_revoked", name=request.name)
        return admin_pb2.RevokeAdminResponse()

    async def ListSilos(
        self, request: admin_pb2.ListSilosRequest, context: Any
    ) -> admin_pb2.ListSilosResponse:
        """Every silo."""
        return admin_pb2.ListSilosResponse(silos=await self._silo_messages())

    async def GetSilo(
        self, request: admin_pb2.GetSiloRequest, context: Any
    ) -> admin_pb2.GetSiloResponse:
        """One silo."""
        return admin_pb2.GetSiloResponse(silo=await self._silo(request.name))

    async def RevokeSilo(
        self, request: admin_pb2.RevokeSiloRequest, context: Any
    ) -> admin_pb2.RevokeSiloResponse:
        """Shuts a silo out for good; its open calls end when their replica is notified."""
        service = self._service
        await service.in_store(
            service.store.members.revoke,
            Role.SILO,
            request.name,
            service.clock(),
            caller(),
            drop_ballots=request.drop_ballots,
        )
        self._announce("silo_revoked", silo=request.name)
        return admin_pb2.RevokeSiloResponse(silo=await self._silo(request.name))

    async def SuspendSilo(
        self, request: admin_pb2.SuspendSiloRequest, context: Any
    ) -> admin_pb2.SuspendSiloResponse:
        """Shuts a silo out until it is resumed."""
        service = self._service
        await service.in_store(
            service.store.members.suspend,
            request.name,
            service.clock(),
            caller(),
            drop_ballots=request.drop_ballots,
        )
        self._announce("silo_suspended", silo=request.name)
        return admin_pb2.SuspendSiloResponse(silo=await self._silo(request.name))

    async def ResumeSilo(
        self, request: admin_pb2.ResumeSiloRequest, context: Any
    ) -> admin_pb2.ResumeSiloResponse:
        """Lets a suspended silo in again."""
        service = self._service
        await service.in_store(
            service.store.members.resume, request.name, service.clock(), caller()
        )
        self._announce("silo_resumed", silo=request.name)
        return admin_pb2.ResumeSiloResponse(silo=await self._silo(request.name))

    async def _silo(self, name: str) -> admin_pb2.Silo:
        record = await self._service.in_store(self._service.store.silos.get, name)
        return silo_message(record, self._service.clock())

    async def _invite(
        self, role: Role, request: admin_pb2.RegisterSiloRequest | admin_pb2.RegisterAdminRequest
    ) -> JoinToken:
        service, now = self._service, self._service.clock()
        check_name(str(role), request.name)
        expires_at = now + _token_lifetime(request.token_lifetime)
        token, record = new_token(
            service.settings, service.authorities, role, request.name, expires_at
        )
        await service.in_store(
            service.store.members.register,
            record,
            now,
            caller(),
            replace_token=request.replace_token,
        )
        log.info("member_registered", role=str(role), name=token.name, admin=caller().name)
        return token


def _token_lifetime(length: Duration) -> timedelta:
    if not 0 <= length.seconds <= _LONGEST_TOKEN.total_seconds():
        raise Refusal(MESSAGE_MALFORMED, why="a join token is valid for a year at most")
    return length.ToTimedelta()
