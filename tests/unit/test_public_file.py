"""The folder of public sets: whole or not there, resumable, verified."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from wire.errors import (
    CONTENT_CORRUPT,
    EXTRACTOR_UNKNOWN,
    OFFSET_OUT_OF_RANGE,
    PUBLIC_SET_UNKNOWN,
    Refusal,
)
from wire.public_file import ExtractorFolder, PublicSetFolder

CONTENT = bytes(range(256)) * 40
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> PublicSetFolder:
    return PublicSetFolder(tmp_path / "sets")


def held(folder: PublicSetFolder) -> list[str]:
    return sorted(path.name for path in folder.path(DIGEST).parent.iterdir())


def upload(folder: PublicSetFolder, content: bytes = CONTENT, size: int = len(CONTENT)) -> None:
    with folder.upload(DIGEST, size) as writer:
        for start in range(0, len(content), 1000):
            writer.append(content[start : start + 1000])


def test_an_upload_appears_only_when_it_is_whole(folder: PublicSetFolder) -> None:
    with folder.upload(DIGEST, len(CONTENT)) as writer:
        writer.append(CONTENT)
        assert not folder.has(DIGEST)
    assert folder.path(DIGEST).read_bytes() == CONTENT
    assert held(folder) == [DIGEST]


@pytest.mark.parametrize(
    "content", [CONTENT[:-1], CONTENT + b"x", b"x" + CONTENT[1:]], ids=["short", "long", "altered"]
)
def test_an_upload_that_is_not_what_was_announced_leaves_nothing(
    folder: PublicSetFolder, content: bytes
) -> None:
    with pytest.raises(Refusal) as refusal:
        upload(folder, content)
    assert refusal.value.is_a(CONTENT_CORRUPT)
    assert held(folder) == []


def test_an_upload_can_be_read_before_it_has_its_name_and_be_turned_down(
    folder: PublicSetFolder,
) -> None:
    with suppress(ValueError), folder.upload(DIGEST, len(CONTENT)) as writer:
        writer.append(CONTENT)
        writer.verify()
        assert writer.path.read_bytes() == CONTENT
        raise ValueError("it is not what the folder is for")
    assert held(folder) == []


def test_only_what_lost_its_digest_is_discarded(folder: PublicSetFolder) -> None:
    folder.discard_damaged(DIGEST)
    upload(folder)
    folder.discard_damaged(DIGEST)
    assert held(folder) == [DIGEST]
    folder.path(DIGEST).write_bytes(b"x" + CONTENT[1:])
    folder.discard_damaged(DIGEST)
    assert held(folder) == []


def test_a_folder_of_extractors_speaks_of_extractors(tmp_path: Path) -> None:
    folder = ExtractorFolder(tmp_path)
    with pytest.raises(Refusal) as unknown:
        folder.read_chunks(DIGEST)
    assert unknown.value.is_a(EXTRACTOR_UNKNOWN)
    with pytest.raises(Refusal) as nameless:
        folder.path("../etc/passwd")
    assert nameless.value.is_a(EXTRACTOR_UNKNOWN)
    with pytest.raises(Refusal, match="extractor") as corrupt, folder.upload(DIGEST, 3) as writer:
        writer.append(b"abc")
    assert corrupt.value.is_a(CONTENT_CORRUPT)


def test_an_upload_that_breaks_leaves_nothing(folder: PublicSetFolder) -> None:
    with suppress(ConnectionError), folder.upload(DIGEST, len(CONTENT)) as writer:
        writer.append(CONTENT[:10])
        raise ConnectionError
    assert held(folder) == []


def test_two_uploads_of_the_same_set_do_not_mix(folder: PublicSetFolder) -> None:
    with folder.upload(DIGEST, len(CONTENT)) as one, folder.upload(DIGEST, len(CONTENT)) as other:
        one.append(CONTENT[:5000])
        other.append(CONTENT)
        one.append(CONTENT[5000:])
    assert folder.path(DIGEST).read_bytes() == CONTENT
    assert held(folder) == [DIGEST]


def test_what_a_killed_upload_left_is_swept_and_partial_downloads_stay(
    folder: PublicSetFolder,
) -> None:
    folder.unfinished().write_bytes(b"half")
    with folder.download(DIGEST, len(CONTENT)) as writer:
        writer.append(CONTENT[:100])
    folder.discard_unfinished()
    assert held(folder) == [f".{DIGEST}.part"]


def test_an_upload_that_another_coordinator_is_receiving_is_left_alone(
    folder: PublicSetFolder,
) -> None:
    abandoned, under_way = folder.unfinished(), folder.unfinished()
    for partial, touched in ((abandoned, 1000), (under_way, 3000)):
        partial.write_bytes(b"half")
        os.utime(partial, (touched, touched))
    folder.discard_unfinished(untouched_since=datetime.fromtimestamp(2000, UTC))
    assert held(folder) == [under_way.name]


def test_a_download_goes_on_where_it_was_cut_even_in_a_new_process(tmp_path: Path) -> None:
    with (
        suppress(ConnectionError),
        PublicSetFolder(tmp_path).download(DIGEST, len(CONTENT)) as first,
    ):
        first.append(CONTENT[:3000])
        raise ConnectionError
    again = PublicSetFolder(tmp_path)
    with again.download(DIGEST, len(CONTENT)) as second:
        assert second.offset == 3000
        second.append(CONTENT[3000:4000])
    assert not again.has(DIGEST)
    with again.download(DIGEST, len(CONTENT)) as third:
        third.append(CONTENT[4000:])
    assert again.path(DIGEST).read_bytes() == CONTENT


def test_a_download_cut_after_its_last_byte_needs_no_more(folder: PublicSetFolder) -> None:
    partial = folder.path(DIGEST).with_name(f".{DIGEST}.part")
    partial.write_bytes(CONTENT)
    with folder.download(DIGEST, len(CONTENT)) as writer:
        assert writer.complete
    assert held(folder) == [DIGEST]


def test_a_damaged_chunk_is_refused_and_what_came_before_is_kept(folder: PublicSetFolder) -> None:
    good = hashlib.sha256(CONTENT[1000:2000]).hexdigest()
    with folder.download(DIGEST, len(CONTENT)) as writer:
        writer.append(CONTENT[:1000])
    with pytest.raises(Refusal) as refusal, folder.download(DIGEST, len(CONTENT)) as writer:
        writer.append(b"?" + CONTENT[1001:2000], offset=1000, digest=good)
    assert refusal.value.is_a(CONTENT_CORRUPT)
    with folder.download(DIGEST, len(CONTENT)) as writer:
        assert writer.offset == 1000
        with pytest.raises(Refusal):
            writer.append(CONTENT[2000:3000], offset=2000)
        writer.append(CONTENT[1000:], offset=1000)
    assert folder.has(DIGEST)


def test_a_download_that_is_whole_but_wrong_is_deleted_and_begins_anew(
    folder: PublicSetFolder,
) -> None:
    with pytest.raises(Refusal) as refusal, folder.download(DIGEST, len(CONTENT)) as writer:
        writer.append(b"?" + CONTENT[1:])
    assert refusal.value.is_a(CONTENT_CORRUPT)
    assert held(folder) == []
    with folder.download(DIGEST, len(CONTENT)) as writer:
        assert writer.offset == 0


def test_a_partial_larger_than_the_set_begins_anew(folder: PublicSetFolder) -> None:
    folder.path(DIGEST).with_name(f".{DIGEST}.part").write_bytes(CONTENT * 2)
    with folder.download(DIGEST, len(CONTENT)) as writer:
        assert writer.offset == 0
        writer.append(CONTENT)
    assert folder.has(DIGEST)


@pytest.mark.parametrize("offset", [0, 1, 4096, len(CONTENT)])
def test_chunks_from_any_offset_join_to_the_rest(folder: PublicSetFolder, offset: int) -> None:
    upload(folder)
    chunks = list(folder.read_chunks(DIGEST, offset, chunk=1000))
    assert b"".join(chunk.data for chunk in chunks) == CONTENT[offset:]
    for chunk in chunks:
        assert CONTENT[chunk.offset :].startswith(chunk.data)
        assert hashlib.sha256(chunk.data).hexdigest() == chunk.digest


@pytest.mark.parametrize("offset", [-1, len(CONTENT) + 1])
def test_an_offset_outside_the_file_is_refused_before_the_first_chunk(
    folder: PublicSetFolder, offset: int
) -> None:
    upload(folder)
    with pytest.raises(Refusal) as refusal:
        folder.read_chunks(DIGEST, offset)
    assert refusal.value.is_a(OFFSET_OUT_OF_RANGE)


@pytest.mark.parametrize(
    "digest", ["../../etc/passwd", "", DIGEST.upper(), DIGEST + "\n", "ab" * 31]
)
def test_nothing_but_a_digest_is_a_name(folder: PublicSetFolder, digest: str) -> None:
    for ask in (folder.has, folder.path, folder.read_chunks):
        with pytest.raises(Refusal) as refusal:
            ask(digest)
        assert refusal.value.is_a(PUBLIC_SET_UNKNOWN)


def test_a_set_that_is_not_here_is_unknown(folder: PublicSetFolder) -> None:
    with pytest.raises(Refusal) as refusal:
        folder.read_chunks(DIGEST)
    assert refusal.value.is_a(PUBLIC_SET_UNKNOWN)
