"""An admin's connection: the identity in a folder, a channel, errors as sentences."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import grpc
import typer

from wire.channels import secure_channel, translated
from wire.consilium.v1 import admin_pb2_grpc, registry_pb2_grpc
from wire.identity import IdentityFiles, Role

T = TypeVar("T")


def default_home() -> Path:
    """$CONSILIUM_HOME, else ~/.consilium/coordinator."""
    return Path(os.environ.get("CONSILIUM_HOME") or Path.home() / ".consilium" / "coordinator")


Home = Annotated[
    Path,
    typer.Option(
        "--home",
        envvar="CONSILIUM_HOME",
        default_factory=default_home,
        show_default="~/.consilium/coordinator",
        help="Folder that `consilium coordinator init` made.",
    ),
]


class AdminLink:
    """Stubs of what an admin may call."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.admin = admin_pb2_grpc.AdminServiceStub(channel)
        self.registry = registry_pb2_grpc.RegistryServiceStub(channel)


@asynccontextmanager
async def admin_link(home: Path) -> AsyncIterator[AdminLink]:
    """Connects as the admin whose identity lies in `home`; gRPC's errors come out as sentences."""
    files = IdentityFiles.load(home / "admin", Role.ADMIN)
    async with secure_channel(files.coordinator_address, files) as channel:
        try:
            yield AdminLink(channel)
        except grpc.aio.AioRpcError as error:
            raise await translated(error, files.coordinator_address, files) from error


def run(call: Coroutine[Any, Any, T]) -> T:
    """Runs a command's coroutine."""
    return asyncio.run(call)
