"""Public sets and their extractors for silos and admins: what there is, and its bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from coordinator.desk import Desk
from coordinator.translation import extractor_message, public_set_message
from wire.consilium.v1 import registry_pb2, registry_pb2_grpc
from wire.errors import CONTENT_MISSING, Refusal


class RegistryServicer(registry_pb2_grpc.RegistryServiceServicer):
    """Reads only; publishing is an admin's act."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def ListPublicSets(
        self, request: registry_pb2.ListPublicSetsRequest, context: Any
    ) -> registry_pb2.ListPublicSetsResponse:
        """Every public set."""
        records = await self._desk.in_store(self._desk.store.public_sets.all)
        return registry_pb2.ListPublicSetsResponse(public_sets=map(public_set_message, records))

    async def GetPublicSet(
        self, request: registry_pb2.GetPublicSetRequest, context: Any
    ) -> registry_pb2.GetPublicSetResponse:
        """One public set."""
        record = await self._desk.in_store(self._desk.store.public_sets.find, request.reference)
        return registry_pb2.GetPublicSetResponse(public_set=public_set_message(record))

    async def FetchPublicSet(
        self, request: registry_pb2.FetchPublicSetRequest, context: Any
    ) -> AsyncIterator[registry_pb2.FetchPublicSetResponse]:
        """The content from an offset on, in chunks that carry their own digest."""
        desk = self._desk
        record = await desk.in_store(desk.store.public_sets.find, request.digest)
        if not desk.folder.has(record.digest):
            raise Refusal(CONTENT_MISSING, what=f"public set {record.name}@{record.version}")
        for chunk in desk.folder.read_chunks(record.digest, request.offset):
            yield registry_pb2.FetchPublicSetResponse(
                offset=chunk.offset, data=chunk.data, chunk_digest=chunk.digest
            )

    async def ListExtractors(
        self, request: registry_pb2.ListExtractorsRequest, context: Any
    ) -> registry_pb2.ListExtractorsResponse:
        """The extractors of one public set, or all."""
        records = await self._desk.in_store(self._desk.store.extractors.all, request.public_set)
        return registry_pb2.ListExtractorsResponse(extractors=map(extractor_message, records))

    async def GetExtractor(
        self, request: registry_pb2.GetExtractorRequest, context: Any
    ) -> registry_pb2.GetExtractorResponse:
        """One extractor."""
        record = await self._desk.in_store(self._desk.store.extractors.get, request.digest)
        return registry_pb2.GetExtractorResponse(extractor=extractor_message(record))

    async def FetchExtractor(
        self, request: registry_pb2.FetchExtractorRequest, context: Any
    ) -> AsyncIterator[registry_pb2.FetchExtractorResponse]:
        """The content from an offset on, as of a public set."""
        desk = self._desk
        record = await desk.in_store(desk.store.extractors.get, request.digest)
        if not desk.extractors.has(record.digest):
            raise Refusal(CONTENT_MISSING, what=f"extractor {record.digest}")
        for chunk in desk.extractors.read_chunks(record.digest, request.offset):
            yield registry_pb2.FetchExtractorResponse(
                offset=chunk.offset, data=chunk.data, chunk_digest=chunk.digest
            )
