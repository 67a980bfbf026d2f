"""gRPC's health service on a Unix socket, for probes on the same machine or in the same container.

The socket of a coordinator or an agent is in the temporary folder, which no other machine or container sees: a
home may be shared by replicas, or be on a volume that does not support sockets.
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
    """Answers from the functions in `states`, by service name; the empty name is the process as a whole."""

    def __init__(self, states: Mapping[str, Callable[[], bool]]) -> None:
        self._states = states

    async def Check(self, request: Any, context: Any) -> Any:
        """The current state of one service name."""
        state = self._states.get(request.service)
        if state is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such state")
            raise AssertionError("abort returns never")
        return health_pb2.HealthCheckResponse(status=_SERVING if state() else _NOT_SERVING)

    def register(self, server: grpc.aio.Server) -> None:
        """Adds this service to a server."""
        health_pb2_grpc.add_HealthServicer_to_server(self, server)


def health_socket(home: Path, component: str) -> Path:
    """Path of the socket of a home's `component`, the same for all processes of one user on one machine."""
    digest = hashlib.sha256(str(home.resolve()).encode()).hexdigest()
    folder = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108  see `_is_own_socket`
    return Path(folder) / f"consilium-{component}-{os.geteuid()}-{digest[:16]}.sock"


@asynccontextmanager
async def serve_health(socket: Path, health: Health) -> AsyncIterator[None]:
    """Answers on `socket` during the block; if the socket cannot be created, logs that and goes on without it."""
    server = grpc.aio.server()
    health.register(server)
    try:
        server.add_insecure_port(f"unix:{socket}")
        os.chmod(socket, 0o600)
    except (OSError, RuntimeError):
        log.warning("health_socket_unavailable", socket=str(socket))
        yield
        return
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


def query_health(socket: Path, state: str = "", seconds: float = 5.0) -> bool | None:
    """Asks a process for one of its states; None if none answers within `seconds`."""
    if not _is_own_socket(socket):
        return None
    with grpc.insecure_channel(f"unix:{socket}", [("grpc.enable_http_proxy", 0)]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=state), timeout=seconds)
        except grpc.RpcError:
            return None
    return bool(answer.status == _SERVING)


def _is_own_socket(socket: Path) -> bool:
    """In a shared temporary folder, another user may have created a socket of this name first."""
    try:
        found = socket.lstat()
    except OSError:
        return False
    return stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid()
