"""An admin's connection: the identity in a folder, a channel, errors as sentences."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import grpc

from coordinator.home_option import Home as Home
from coordinator.settings import CoordinatorHome
from wire.consilium.v1 import (
    admin_pb2_grpc,
    identity_pb2,
    identity_pb2_grpc,
    registry_pb2_grpc,
)
from wire.errors import (
    ADMIN_CERTIFICATE_EXPIRED,
    MESSAGE_MALFORMED,
    UNREACHABLE,
    ConfigurationError,
    ConsiliumError,
    Refusal,
)
from wire.identity.files import IdentityFiles
from wire.identity.identity import Role
from wire.net.channels import secure_channel, translated
from wire.net.renewal import renew_identity, renewal_due_at
from wire.runtime.files import locked
from wire.runtime.terminal import print_warning
from wire.task.definition import seconds

T = TypeVar("T")

_RENEWAL_SECONDS = 30.0


def token_lifetime(text: str) -> timedelta:
    """`24h` as a length of time; ConfigurationError names the option."""
    try:
        return timedelta(seconds=float(seconds(text)))
    except ValueError as error:
        raise ConfigurationError(f"--expires: {error}.") from None


class AdminClient:
    """Stubs of what an admin may call."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.admin = admin_pb2_grpc.AdminServiceStub(channel)
        self.registry = registry_pb2_grpc.RegistryServiceStub(channel)
        self.identity = identity_pb2_grpc.IdentityServiceStub(channel)


@asynccontextmanager
async def admin_link(home: Path) -> AsyncIterator[AdminClient]:
    """Connects as the admin whose identity lies in `home`; gRPC's errors come out as sentences.

    A certificate past two thirds of its life is renewed first; if that fails, the old one is still good.
    """
    files = _identity(home)
    if datetime.now(UTC) >= renewal_due_at(files.certificate):
        try:
            files = await renewed_admin(home)
        except (ConsiliumError, OSError) as error:
            # What keeps the command itself from running, that will tell.
            told_later = (UNREACHABLE, ADMIN_CERTIFICATE_EXPIRED)
            if not (isinstance(error, Refusal) and error.is_a(*told_later)):
                print_warning(f"The admin's certificate could not be renewed: {error}")
    async with _linked(files) as link:
        yield link


async def renewed_admin(home: Path) -> IdentityFiles:
    """The admin's next identity, stored; commands that run side by side renew one after the other."""
    held = _identity(home)
    with locked(held.folder):
        files = _identity(home)
        if files != held:
            return files
        async with _linked(files) as link:

            async def ask(request: identity_pb2.RenewRequest) -> identity_pb2.RenewResponse:
                return await link.identity.Renew(request, timeout=_RENEWAL_SECONDS)

            return await renew_identity(files, ask, datetime.now(UTC))


def _identity(home: Path) -> IdentityFiles:
    """The admin's identity; in the coordinator's own folder with the address that coordinator.yaml says now."""
    files = IdentityFiles.load(home / "admin", Role.ADMIN)
    coordinator = CoordinatorHome(home)
    if coordinator.settings_file.exists():
        return replace(files, coordinator_address=coordinator.settings().address)
    return files


@asynccontextmanager
async def _linked(files: IdentityFiles) -> AsyncIterator[AdminClient]:
    async with secure_channel(files.coordinator_address, files) as channel:
        try:
            yield AdminClient(channel)
        except grpc.aio.AioRpcError as error:
            raise await translated(error, files.coordinator_address, files) from error


def run(call: Coroutine[Any, Any, T]) -> T:
    """Runs a command's coroutine; an answer it cannot read is the coordinator's fault and told as such."""
    try:
        return asyncio.run(call)
    except (ValueError, OverflowError) as error:
        why = f"the coordinator's answer cannot be read ({type(error).__name__})"
        raise Refusal(MESSAGE_MALFORMED, why=why) from error
