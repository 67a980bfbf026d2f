"""What an admin's commands fetch: a public set's file, a consensus. Verified before anyone reads them."""

from __future__ import annotations

from pathlib import Path

from coordinator.cli.connection import AdminClient
from wire.ballot import digest
from wire.consilium.v1 import admin_pb2, ballot_pb2, registry_pb2
from wire.errors import CONTENT_CORRUPT, MESSAGE_MALFORMED, Refusal
from wire.public_file import PublicSetFolder


async def fetched_set(
    link: AdminClient, reference: str, folder: PublicSetFolder
) -> tuple[registry_pb2.PublicSet, Path]:
    """A public set and its file, which lies in `folder` afterwards; goes on where an earlier try was cut."""
    about = registry_pb2.GetPublicSetRequest(reference=reference)
    public = (await link.registry.GetPublicSet(about)).public_set
    if not folder.has(public.digest):
        with folder.download(public.digest, public.size_bytes) as writer:
            request = registry_pb2.FetchPublicSetRequest(digest=public.digest, offset=writer.offset)
            async for chunk in link.registry.FetchPublicSet(request):
                writer.append(chunk.data, offset=chunk.offset, digest=chunk.chunk_digest)
    return public, folder.path(public.digest)


async def fetched_consensus(
    link: AdminClient, task: str, round_number: int
) -> tuple[ballot_pb2.ConsensusHeader, bytes]:
    """The consensus of a round, 0 for the latest, as one sees it who knows all classes."""
    header, data = None, bytearray()
    request = admin_pb2.ExportConsensusRequest(task=task, round=round_number)
    async for part in link.admin.ExportConsensus(request):
        if part.HasField("header"):
            header = part.header
        else:
            data += part.data
    if header is None:
        raise Refusal(MESSAGE_MALFORMED, why="a consensus came without its header")
    labels = bytes(data)
    if digest(labels) != header.digest:
        raise Refusal(CONTENT_CORRUPT, what=f"the consensus of {task}", digest=header.digest)
    return header, labels
