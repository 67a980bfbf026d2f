"""What a task needs of the registry: fetched into the exchange folder, verified, recorded as it came in."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from silo_agent.audit import AuditLog
from silo_agent.coordinator_link import CoordinatorLink
from silo_agent.home import SiloHome
from silo_agent.metrics import AgentMetrics
from silo_agent.traffic import Direction, Kind
from wire.consilium.v1 import registry_pb2, task_pb2
from wire.crash_points import crash_point
from wire.public_file import ExtractorFolder, PublicFolder, PublicSetFolder


@dataclass(frozen=True)
class Exchange:
    """The folders that the private side reads and the network side fills."""

    public_sets: PublicSetFolder
    extractors: ExtractorFolder

    @classmethod
    def of(cls, home: SiloHome) -> Exchange:
        """Those of a silo."""
        return cls(PublicSetFolder(home.public_sets), ExtractorFolder(home.extractors))


class Downloads:
    """Fetches each file once; a cut download goes on where it was."""

    def __init__(
        self, link: CoordinatorLink, exchange: Exchange, audit: AuditLog, metrics: AgentMetrics
    ) -> None:
        self._link = link
        self._exchange = exchange
        self._audit = audit
        self._metrics = metrics

    def has_public_set(self, definition: task_pb2.TaskDefinition) -> bool:
        """True if the task's rows are here."""
        return self._exchange.public_sets.has(definition.public_set)

    async def public_set(self, definition: task_pb2.TaskDefinition) -> registry_pb2.PublicSet:
        """What the registry says of the task's public set, whose content is here afterwards."""
        public = await self._link.public_set(definition.public_set)
        await self._fetch(definition.name, public, self._exchange.public_sets, Kind.PUBLIC_SET)
        return public

    async def extractor(self, definition: task_pb2.TaskDefinition) -> registry_pb2.Extractor | None:
        """The same of the extractor the task names; None if it names none."""
        if not definition.extractor:
            return None
        extractor = await self._link.extractor(definition.extractor)
        await self._fetch(definition.name, extractor, self._exchange.extractors, Kind.EXTRACTOR)
        return extractor

    async def discard_damaged(self, definition: task_pb2.TaskDefinition) -> None:
        """Removes what no longer has its digest, so that it is fetched anew."""
        sets, extractors = self._exchange.public_sets, self._exchange.extractors
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
            size = await self._link.download(content, folder)
            crash_point("public-set-fetched")
            self._metrics.bytes.labels("in", kind.replace(" ", "_")).inc(size)
        # An agent killed before this line finds the file, but no record of how it came.
        if missing or not self._audit.has(kind, content.digest):
            whole = content.size_bytes
            self._audit.record(Direction.IN, kind, task, 0, whole, content.digest)
