"""Whether a process is well, told to whoever asks on the same machine: gRPC's health service on a Unix socket.

The socket of a coordinator or an agent lies in the temporary folder, which is the machine's or the container's
own: a home may be shared by replicas, or lie on a volume that takes no sockets.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

log = structlog.get_logger()

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # ships no types
    """Answers from what `states` say at that moment; the state without a name is the process as a whole."""

    def __init__(self, states: Mapping[str, Callable[[], bool]]) -> None:
        self._states = states

    async def Check(self, request: Any, context: Any) -> Any:
        """One state."""
        state = self._states.get(request.service)
        if state is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such state")
            raise AssertionError("abort returns never")
        return health_pb2.HealthCheckResponse(status=_SERVING if state() else _NOT_SERVING)

    def register(self, server: grpc.aio.Server) -> None:
        """Answers on a server that has other services too."""
        health_pb2_grpc.add_HealthServicer_to_server(self, server)


def socket_of(home: Path, who: str) -> Path:
    """Where the `who` of a home answers; the same for everyone of one user on one machine."""
    digest = hashlib.sha256(str(home.resolve()).encode()).hexdigest()
    folder = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108  see `_is_ours`
    return Path(folder) / f"consilium-{who}-{os.geteuid()}-{digest[:16]}.sock"


@asynccontextmanager
async def telling(socket: Path, health: Health) -> AsyncIterator[None]:
    """Answers on `socket` during the block. Where that cannot be, the process does its work all the same."""
    server = grpc.aio.server()
    health.register(server)
    try:
        server.add_insecure_port(f"unix:{socket}")
        os.chmod(socket, 0o600)
    except (OSError, RuntimeError):
        log.warning("probe_impossible", socket=str(socket))
        yield
        return
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


def ask(socket: Path, state: str = "", seconds: float = 5.0) -> bool | None:
    """What a process says of one of its states; None if nobody answers within `seconds`."""
    if not _is_ours(socket):
        return None
    with grpc.insecure_channel(f"unix:{socket}", [("grpc.enable_http_proxy", 0)]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=state), timeout=seconds)
        except grpc.RpcError:
            return None
    return bool(answer.status == _SERVING)


def _is_ours(socket: Path) -> bool:
    """In a folder for everyone, anyone may have made a socket of this name first."""
    try:
        found = socket.lstat()
    except OSError:
        return False
    return stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid()
