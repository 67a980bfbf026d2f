"""An admin publishes an extractor: the one model that travels, learned from public rows alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import structlog

from coordinator.desk import Desk
from coordinator.gate import caller
from coordinator.store.records import ExtractorRecord
from coordinator.translation import extractor_message
from coordinator.upload import opening
from wire.consilium.v1 import admin_pb2, admin_pb2_grpc
from wire.errors import EXTRACTOR_INVALID, EXTRACTOR_TOO_LARGE, Refusal
from wire.extractor_file import ExtractorHeader, read_extractor

log = structlog.get_logger()


class ExtractorPublishing(admin_pb2_grpc.AdminServiceServicer):
    """The part of the admin's service that takes extractors."""

    _desk: Desk

    async def PublishExtractor(
        self, request_iterator: AsyncIterator[admin_pb2.PublishExtractorRequest], context: Any
    ) -> admin_pb2.PublishExtractorResponse:
        """Takes a file and believes only what the file itself says; what is refused leaves nothing behind."""
        desk = self._desk
        header: admin_pb2.ExtractorHeader = await opening(request_iterator, "an extractor")
        most = desk.settings.limits.extractor_bytes
        if header.size_bytes > most:
            raise Refusal(EXTRACTOR_TOO_LARGE, size=header.size_bytes, most=most)
        public = await desk.in_store(desk.store.public_sets.find, header.public_set)
        # Looked at before it has its name: a file that was published before must outlive a bad upload.
        with desk.extractors.upload(header.digest, header.size_bytes) as writer:
            async for part in request_iterator:
                writer.append(part.data)
            writer.verify()
            inside = await asyncio.to_thread(_checked, writer.path, public.digest)
        record, already_held = await desk.in_store(
            desk.store.extractors.add,
            ExtractorRecord(
                digest=header.digest,
                public_set=public.digest,
                kind=inside.kind,
                dimensions=inside.dimensions,
                size_bytes=header.size_bytes,
                added_at=desk.clock(),
            ),
            f"admin/{caller().name}",
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


def _checked(path: Path, public_set: str) -> ExtractorHeader:
    """What a sound file trained on `public_set` says of itself; EXTRACTOR_INVALID if it is no such file."""
    header = read_extractor(path).header
    if header.public_set != public_set:
        raise Refusal(EXTRACTOR_INVALID, why="it was trained on another public set")
    return header
