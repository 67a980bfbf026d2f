"""Downloads what a task needs from the registry into the exchange folder, verified and recorded."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from silo_agent.agent.audit.entries import Direction, Kind
from silo_agent.agent.audit.recorder import AuditLog
from silo_agent.agent.coordinator_client import CoordinatorClient
from silo_agent.agent.metrics.instruments import AgentMetrics
from silo_agent.shared.home import SiloHome, exchange_modes
from wire.consilium.v1 import registry_pb2, task_pb2
from wire.public_file import ExtractorFolder, PublicFolder, PublicSetFolder
from wire.runtime.crash_points import crash_point


@dataclass(frozen=True)
class DownloadFolders:
    """Where the network side puts downloads for the private side to read."""

    public_sets: PublicSetFolder
    extractors: ExtractorFolder

    @classmethod
    def of(cls, home: SiloHome) -> DownloadFolders:
        """The folders in a silo's home."""
        modes = exchange_modes()
        return cls(
            PublicSetFolder(home.public_sets, modes), ExtractorFolder(home.extractors, modes)
        )


class Downloads:
    """Downloads each file once; resumes an interrupted download."""

    def __init__(
        self,
        coordinator: CoordinatorClient,
        folders: DownloadFolders,
        audit: AuditLog,
        metrics: AgentMetrics,
    ) -> None:
        self._coordinator = coordinator
        self._folders = folders
        self._audit = audit
        self._metrics = metrics

    def has_public_set(self, definition: task_pb2.TaskDefinition) -> bool:
        """True if the task's public set has been downloaded."""
        return self._folders.public_sets.has(definition.public_set)

    async def public_set(self, definition: task_pb2.TaskDefinition) -> registry_pb2.PublicSet:
        """The registry's entry of the task's public set, which is downloaded if it is not here yet."""
        public = await self._coordinator.public_set(definition.public_set)
        await self._fetch(definition.name, public, self._folders.public_sets, Kind.PUBLIC_SET)
        return public

    async def extractor(self, definition: task_pb2.TaskDefinition) -> registry_pb2.Extractor | None:
        """The same for the task's extractor; None if the task has none."""
        if not definition.extractor:
            return None
        extractor = await self._coordinator.extractor(definition.extractor)
        await self._fetch(definition.name, extractor, self._folders.extractors, Kind.EXTRACTOR)
        return extractor

    async def discard_damaged(self, definition: task_pb2.TaskDefinition) -> None:
        """Removes files that no longer match their digest, so that they are downloaded again."""
        sets, extractors = self._folders.public_sets, self._folders.extractors
        await asyncio.to_thread(sets.discard_damaged, definition.public_set)
        if definition.extractor:
            await asyncio.to_thread(extractors.discard_damaged, definition.extractor)

    async def _fetch(
        self,
        task: str,
        content: registry_pb2.PublicSet | registry_pb2.Extractor,
        folder: PublicFolder,
        kind: Kind,
    ) -> None:
        missing = not folder.has(content.digest)
        if missing:
            size = await self._coordinator.download(content, folder)
            crash_point("public-set-fetched")
            self._metrics.bytes.labels("in", kind.replace(" ", "_")).inc(size)
        # Also if an agent was killed between the download and this line.
        if missing or not self._audit.has(kind, content.digest):
            whole = content.size_bytes
            self._audit.record(Direction.IN, kind, task, 0, whole, content.digest)
