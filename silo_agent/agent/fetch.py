"""A public set that a person wants to see before deciding on a task: fetched by whoever writes the audit record.

While an agent runs, the record is its own: the command leaves a file named by the digest in `agent/wanted` and waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from silo_agent.agent.audit.entries import Kind
from silo_agent.agent.audit.recorder import AuditLog
from silo_agent.agent.coordinator_client import CoordinatorClient
from silo_agent.agent.downloads import DownloadFolders, Downloads
from silo_agent.agent.metrics.instruments import AgentMetrics
from silo_agent.shared.home import SiloHome
from wire.consilium.v1 import registry_pb2
from wire.errors import PUBLIC_SET_UNKNOWN, ConfigurationError, ConsiliumError, Refusal
from wire.identity.files import IdentityFiles
from wire.net.proxy import Proxy
from wire.public_file import PublicSetFolder
from wire.runtime.files import is_digest, lock_until_exit, write_atomically

log = structlog.get_logger()

_POLL_SECONDS = 1.0
_TASK = "-"
"""In place of a task's name in the record: a person asked."""


def wanted_folder(home: SiloHome) -> Path:
    """Where a running agent is told which sets somebody wants."""
    return home.agent / "wanted"


async def fetch_public_set(
    home: SiloHome, digest: str, proxy: Proxy | None, agreed: Callable[[int], bool]
) -> bool:
    """Fetches a set, by the running agent if there is one; False if `agreed` says no to its size in bytes."""
    coordinator = CoordinatorClient(IdentityFiles.load(home.identity), proxy)
    try:
        public = await registered(coordinator, digest)
        if not agreed(public.size_bytes):
            return False
        if lock_until_exit(home.agent / "lock"):
            audit = AuditLog(home.agent, lambda: datetime.now(UTC))
            folders = DownloadFolders.of(home)
            downloads = Downloads(coordinator, folders, audit, AgentMetrics(CollectorRegistry()))
            await downloads.fetch(_TASK, public, folders.public_sets, Kind.PUBLIC_SET)
            return True
    finally:
        await coordinator.close()
    await _have_fetched(home, digest)
    return True


async def registered(coordinator: CoordinatorClient, digest: str) -> registry_pb2.PublicSet:
    """The registry's entry of a set; PUBLIC_SET_UNKNOWN unless it is of exactly this digest."""
    public = await coordinator.public_set(digest) if is_digest(digest) else None
    if public is None or public.digest != digest:
        raise Refusal(PUBLIC_SET_UNKNOWN, reference=repr(digest[:80]))
    return public


async def _have_fetched(home: SiloHome, digest: str) -> None:
    request = wanted_folder(home) / digest
    write_atomically(request, b"", 0o600)
    # Another process answers, by removing the file.
    while request.exists():  # noqa: ASYNC110
        await asyncio.sleep(_POLL_SECONDS)
    if not PublicSetFolder(home.public_sets).has(digest):
        raise ConfigurationError(
            f"The agent could not fetch {digest}.", "Its log says why; then ask again."
        )


class WantedSets:
    """Fetches what is asked for in `folder` while the agent runs."""

    def __init__(
        self,
        folder: Path,
        coordinator: CoordinatorClient,
        folders: DownloadFolders,
        downloads: Downloads,
    ) -> None:
        self._folder = folder
        self._coordinator = coordinator
        self._public_sets = folders.public_sets
        self._downloads = downloads

    async def run(self) -> None:
        """Looks for requests until cancelled; one that fails is logged and forgotten."""
        while True:
            for request in sorted(self._folder.glob("[0-9a-f]*")):
                try:
                    public = await registered(self._coordinator, request.name)
                    await self._downloads.fetch(_TASK, public, self._public_sets, Kind.PUBLIC_SET)
                except ConsiliumError as error:
                    log.warning("set_not_fetched", code=error.code, sentence=error.sentence)
                request.unlink(missing_ok=True)
            await asyncio.sleep(_POLL_SECONDS)
