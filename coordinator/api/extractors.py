"""The admin's service: publish an extractor, the one model that is sent to silos, trained on public rows alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import structlog

from coordinator.api.admin_part import AdminPart
from coordinator.api.interceptor import caller
from coordinator.api.translation import extractor_message
from coordinator.api.upload import opening
from coordinator.public_sets.extractor_check import checked_extractor, require_size
from coordinator.store.records import ExtractorRecord
from wire.consilium.v1 import admin_pb2

log = structlog.get_logger()


class ExtractorPublishing(AdminPart):
    """The part of the admin's service that takes extractors."""

    async def PublishExtractor(
        self, request_iterator: AsyncIterator[admin_pb2.PublishExtractorRequest], context: Any
    ) -> admin_pb2.PublishExtractorResponse:
        """Takes a file and believes only what the file itself says; what is refused leaves nothing behind."""
        service = self._service
        header: admin_pb2.ExtractorHeader = await opening(request_iterator, "an extractor")
        require_size(header.size_bytes, service.settings.limits.extractor_bytes)
        public = await service.in_store(service.store.public_sets.find, header.public_set)
        # Looked at before it has its name: a file that was published before must outlive a bad upload.
        with service.extractors.upload(header.digest, header.size_bytes) as writer:
            async for part in request_iterator:
                writer.append(part.data)
            writer.verify()
            inside = await asyncio.to_thread(checked_extractor, writer.path, public.digest)
        record, already_held = await service.in_store(
            service.store.extractors.add,
            ExtractorRecord(
                digest=header.digest,
                public_set=public.digest,
                kind=inside.kind,
                dimensions=inside.dimensions,
                size_bytes=header.size_bytes,
                added_at=service.clock(),
            ),
            caller(),
        )
        log.info(
            "extractor_published",
            digest=record.digest,
            public_set=record.public_set,
            kind=record.kind,
            dimensions=record.dimensions,
            admin=caller().name,
        )
        return admin_pb2.PublishExtractorResponse(
            extractor=extractor_message(record), already_held=already_held
        )
