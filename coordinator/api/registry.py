"""Public sets and their extractors for silos and admins: what there is, and its bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from coordinator.api.translation import extractor_message, public_set_message
from coordinator.context import ServiceContext
from wire.consilium.v1 import registry_pb2, registry_pb2_grpc
from wire.errors import CONTENT_MISSING, Refusal


class RegistryServicer(registry_pb2_grpc.RegistryServiceServicer):
    """Reads only; publishing is an admin's act."""

    def __init__(self, service: ServiceContext) -> None:
        self._service = service

    async def ListPublicSets(
        self, request: registry_pb2.ListPublicSetsRequest, context: Any
    ) -> registry_pb2.ListPublicSetsResponse:
        """Every public set."""
        records = await self._service.in_store(self._service.store.public_sets.all)
        return registry_pb2.ListPublicSetsResponse(public_sets=map(public_set_message, records))

    async def GetPublicSet(
        self, request: registry_pb2.GetPublicSetRequest, context: Any
    ) -> registry_pb2.GetPublicSetResponse:
        """One public set."""
        record = await self._service.in_store(
            self._service.store.public_sets.find, request.reference
        )
        return registry_pb2.GetPublicSetResponse(public_set=public_set_message(record))

    async def FetchPublicSet(
        self, request: registry_pb2.FetchPublicSetRequest, context: Any
    ) -> AsyncIterator[registry_pb2.FetchPublicSetResponse]:
        """The content from an offset on, in chunks that carry their own digest."""
        service = self._service
        record = await service.in_store(service.store.public_sets.find, request.digest)
        if not service.folder.has(record.digest):
            raise Refusal(CONTENT_MISSING, what=f"public set {record.name}@{record.version}")
        for chunk in service.folder.read_chunks(record.digest, request.offset):
            yield registry_pb2.FetchPublicSetResponse(
                offset=chunk.offset, data=chunk.data, chunk_digest=chunk.digest
            )

    async def ListExtractors(
        self, request: registry_pb2.ListExtractorsRequest, context: Any
    ) -> registry_pb2.ListExtractorsResponse:
        """The extractors of one public set, or all."""
        records = await self._service.in_store(
            self._service.store.extractors.all, request.public_set
        )
        return registry_pb2.ListExtractorsResponse(extractors=map(extractor_message, records))

    async def GetExtractor(
        self, request: registry_pb2.GetExtractorRequest, context: Any
    ) -> registry_pb2.GetExtractorResponse:
        """One extractor."""
        record = await self._service.in_store(self._service.store.extractors.get, request.digest)
        return registry_pb2.GetExtractorResponse(extractor=extractor_message(record))

    async def FetchExtractor(
        self, request: registry_pb2.FetchExtractorRequest, context: Any
    ) -> AsyncIterator[registry_pb2.FetchExtractorResponse]:
        """The content from an offset on, as of a public set."""
        service = self._service
        record = await service.in_store(service.store.extractors.get, request.digest)
        if not service.extractors.has(record.digest):
            raise Refusal(CONTENT_MISSING, what=f"extractor {record.digest}")
        for chunk in service.extractors.read_chunks(record.digest, request.offset):
            yield registry_pb2.FetchExtractorResponse(
                offset=chunk.offset, data=chunk.data, chunk_digest=chunk.digest
            )
