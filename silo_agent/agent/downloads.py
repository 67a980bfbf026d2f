"""Downloads what a task needs from the registry into the exchange folder, verified and recorded."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from silo_agent.agent.audit.entries import Direction, Kind
from silo_agent.agent.audit.recorder import AuditLog
from silo_agent.agent.coordinator_client import CoordinatorClient
from silo_agent.agent.metrics.instruments import AgentMetrics
from silo_agent.shared.home import SiloHome
from wire.consilium.v1 import registry_pb2, task_pb2
from wire.errors import CONTENT_CORRUPT, PUBLIC_FILES_TOO_LARGE, Refusal
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
        return cls(PublicSetFolder(home.public_sets), ExtractorFolder(home.extractors))


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

    async def of_task(
        self, definition: task_pb2.TaskDefinition, most: int
    ) -> tuple[registry_pb2.PublicSet, registry_pb2.Extractor | None]:
        """The registry's entries of a task's public set and extractor; what is not here yet is downloaded.

        PUBLIC_FILES_TOO_LARGE, and nothing is downloaded, if both together have more than `most` bytes; 0 is no limit,
        for a trainer of a version without one. A download ends at the size that was announced.
        """
        public = await self._coordinator.public_set(definition.public_set)
        _require(public.digest, definition.public_set, PublicSetFolder.what)
        extractor = None
        if definition.extractor:
            extractor = await self._coordinator.extractor(definition.extractor)
            _require(extractor.digest, definition.extractor, ExtractorFolder.what)
        size = public.size_bytes + (extractor.size_bytes if extractor else 0)
        if most and size > most:
            raise Refusal(PUBLIC_FILES_TOO_LARGE, task=definition.name, size=size, most=most)
        await self.fetch(definition.name, public, self._folders.public_sets, Kind.PUBLIC_SET)
        if extractor:
            await self.fetch(definition.name, extractor, self._folders.extractors, Kind.EXTRACTOR)
        return public, extractor

    async def discard_damaged(self, definition: task_pb2.TaskDefinition) -> None:
        """Removes files that no longer match their digest, so that they are downloaded again."""
        sets, extractors = self._folders.public_sets, self._folders.extractors
        await asyncio.to_thread(sets.discard_damaged, definition.public_set)
        if definition.extractor:
            await asyncio.to_thread(extractors.discard_damaged, definition.extractor)

    async def fetch(
        self,
        task: str,
        content: registry_pb2.PublicSet | registry_pb2.Extractor,
        folder: PublicFolder,
        kind: Kind,
    ) -> None:
        """Downloads one file unless it is here, and records it."""
        missing = not folder.has(content.digest)
        if missing:
            size = await self._coordinator.download(content, folder)
            crash_point("public-set-fetched")
            self._metrics.bytes.labels("in", kind.replace(" ", "_")).inc(size)
        # Also if an agent was killed between the download and this line.
        if missing or not self._audit.has(kind, content.digest):
            whole = content.size_bytes
            self._audit.record(Direction.IN, kind, task, 0, whole, content.digest)


def _require(got: str, wanted: str, what: str) -> None:
    """CONTENT_CORRUPT if the registry answered with another file than the one it was asked for."""
    if got != wanted:
        raise Refusal(CONTENT_CORRUPT, what=f"the {what}", digest=wanted)
