"""The admin's service as a whole; here the audit chain, the privacy ledger and public sets, elsewhere its other parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import structlog

from coordinator.api.admin_part import check_name
from coordinator.api.consensuses import ConsensusReading
from coordinator.api.extractors import ExtractorPublishing
from coordinator.api.interceptor import caller
from coordinator.api.members import MemberAdministration
from coordinator.api.tasks import TaskAdministration
from coordinator.api.translation import audit_message, party_release_message, public_set_message
from coordinator.api.upload import opening
from coordinator.public_sets.convert import inspect
from wire.consilium.v1 import admin_pb2
from wire.errors import Refusal
from wire.runtime.crash_points import crash_point

log = structlog.get_logger()

_LAST_SEQUENCE = 2**63 - 1


class AdminServicer(
    MemberAdministration, TaskAdministration, ExtractorPublishing, ConsensusReading
):
    """Called by admins only, as the admission interceptor makes sure."""

    async def ListAudit(
        self, request: admin_pb2.ListAuditRequest, context: Any
    ) -> AsyncIterator[admin_pb2.ListAuditResponse]:
        """The audit chain behind an entry, page by page."""
        # A chain never gets that long, and a database counts no further.
        service, after = self._service, min(request.after_sequence, _LAST_SEQUENCE)
        while page := await service.in_store(service.store.audit.page, after):
            for link in page:
                yield audit_message(link)
            after = page[-1].sequence

    async def GetAuditHead(
        self, request: admin_pb2.GetAuditHeadRequest, context: Any
    ) -> admin_pb2.GetAuditHeadResponse:
        """Where the audit chain ends."""
        head = await self._service.in_store(self._service.store.audit.head)
        return admin_pb2.GetAuditHeadResponse(sequence=head.sequence, hash=head.hash)

    async def ListPartyReleases(
        self, request: admin_pb2.ListPartyReleasesRequest, context: Any
    ) -> AsyncIterator[admin_pb2.ListPartyReleasesResponse]:
        """The coordinator's own privacy ledger, page by page."""
        service, after = self._service, ("", 0)
        while page := await service.in_store(service.store.party_ledger.page, after):
            for entry in page:
                yield party_release_message(entry)
            after = page[-1].task, page[-1].round

    async def PublishPublicSet(
        self, request_iterator: AsyncIterator[admin_pb2.PublishPublicSetRequest], context: Any
    ) -> admin_pb2.PublishPublicSetResponse:
        """Takes a file, verifies its digest, reads its schema from the file itself."""
        service = self._service
        header: admin_pb2.PublicSetHeader = await opening(request_iterator, "a public set")
        check_name("public set", header.name)
        with service.folder.upload(header.digest, header.size_bytes) as writer:
            async for part in request_iterator:
                writer.append(part.data)
        try:
            path = service.folder.path(header.digest)
            rows, schema = await asyncio.to_thread(inspect, path)
        except Refusal:
            # Named by its content: no published set can have this digest.
            service.folder.discard(header.digest)
            raise
        crash_point("public-set-placed")
        record, already_held = await service.in_store(
            service.store.public_sets.add,
            header.name,
            header.digest,
            rows,
            header.size_bytes,
            schema.model_dump(mode="json"),
            service.clock(),
            caller(),
        )
        crash_point("public-set-published")
        log.info(
            "public_set_published",
            name=record.name,
            version=record.version,
            digest=record.digest,
            rows=rows,
            admin=caller().name,
        )
        return admin_pb2.PublishPublicSetResponse(
            public_set=public_set_message(record), already_held=already_held
        )
