"""Folders of public files named by their SHA-256: filled chunk by chunk, read back from any offset.

Both rooms keep them: the coordinator fills its own by uploads, which start anew when they break; a silo's agent
by downloads, which go on where they were cut. A name without `.part` is always a whole, verified file.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from io import BufferedRandom
from pathlib import Path
from typing import ClassVar, NamedTuple

from wire.chunks import CHUNK_BYTES
from wire.errors import (
    CONTENT_CORRUPT,
    EXTRACTOR_UNKNOWN,
    OFFSET_OUT_OF_RANGE,
    PUBLIC_SET_UNKNOWN,
    Fault,
    Refusal,
)
from wire.runtime.crash_points import crash_point
from wire.runtime.files import digest_of, full_disk_as_refusal, is_digest, sync_folder
from wire.runtime.permissions import PRIVATE, Modes, make_folder

_UPLOAD = "upload-"


class Chunk(NamedTuple):
    """A piece of a public file: its position, its bytes and their SHA-256."""

    offset: int
    data: bytes
    digest: str


class PublicFileWriter:
    """Appends to a partial file and keeps the running SHA-256; made by a folder's `upload` or `download`."""

    def __init__(self, file: BufferedRandom, what: str, digest: str, size: int) -> None:
        """`file` is open for reading and appending; what it holds already counts as received."""
        self._file = file
        self._what = f"{what} {digest[:12]}"
        self._digest = digest
        self._size = size
        self._hash = hashlib.file_digest(file, "sha256")
        self._offset = file.seek(0, os.SEEK_END)

    @property
    def offset(self) -> int:
        """Bytes held so far: where the next chunk belongs."""
        return self._offset

    @property
    def path(self) -> Path:
        """The partial file; after `verify` all of it can be read there."""
        return Path(self._file.name)

    @property
    def complete(self) -> bool:
        """True once all `size` bytes are there."""
        return self._offset == self._size

    def append(self, data: bytes, *, offset: int | None = None, digest: str | None = None) -> None:
        """Adds the next chunk; refused before it is written if its position or digest is wrong."""
        what = f"the chunk at byte {self._offset} of {self._what}"
        if digest is not None and hashlib.sha256(data).hexdigest() != digest:
            raise Refusal(CONTENT_CORRUPT, what=what, digest=digest)
        if (offset is not None and offset != self._offset) or self._offset + len(data) > self._size:
            raise Refusal(CONTENT_CORRUPT, what=what, digest=self._digest)
        self._file.write(data)
        self._hash.update(data)
        self._offset += len(data)

    def verify(self) -> None:
        """CONTENT_CORRUPT unless size and digest are as announced; then everything is on the disk."""
        if not self.complete or self._hash.hexdigest() != self._digest:
            raise Refusal(CONTENT_CORRUPT, what=self._what, digest=self._digest)
        self._file.flush()
        os.fsync(self._file.fileno())


class PublicFolder:
    """Public files under `root`, each named by the lower-case hexadecimal SHA-256 of its content."""

    what: ClassVar[str]
    """What one of its files is, in a sentence."""
    unknown: ClassVar[Fault]
    """The refusal where there is no such file; takes `reference`."""

    def __init__(self, root: Path, modes: Modes = PRIVATE) -> None:
        self._root = root
        self._modes = modes
        make_folder(root, modes)

    def path(self, digest: str) -> Path:
        """Where a file lies or would lie; `unknown` if `digest` is not one (no path gets in)."""
        if not is_digest(digest):
            raise Refusal(self.unknown, reference=repr(digest[:80]))
        return self._root / digest

    def has(self, digest: str) -> bool:
        """True if the file is here; it was whole and verified when it came."""
        return self.path(digest).is_file()

    def discard(self, digest: str) -> None:
        """Removes a file that turned out to be none; no error if it is not here."""
        self.path(digest).unlink(missing_ok=True)

    def discard_damaged(self, digest: str) -> None:
        """Removes a file that no longer has its digest."""
        if self.has(digest) and digest_of(self.path(digest)) != digest:
            self.discard(digest)

    def adopt(self, file: Path) -> str:
        """Moves a finished file of this folder to its digest's name and returns the digest."""
        with file.open("rb") as content:
            os.fsync(content.fileno())
        digest = digest_of(file)
        self._place(file, digest)
        return digest

    def unfinished(self) -> Path:
        """A fresh name in this folder for a file that is still being written."""
        return self._root / f".{_UPLOAD}{secrets.token_hex(8)}.part"

    def discard_unfinished(self, untouched_since: datetime | None = None) -> None:
        """Removes what a crash left of uploads; partial downloads stay. Call it before serving.

        Whoever shares the folder with others leaves alone what was `untouched_since` only briefly.
        """
        for partial in self._root.glob(f".{_UPLOAD}*.part"):
            with suppress(FileNotFoundError):
                touched = partial.stat().st_mtime
                if untouched_since is None or touched <= untouched_since.timestamp():
                    partial.unlink()

    @contextmanager
    def upload(self, digest: str, size: int) -> Iterator[PublicFileWriter]:
        """Receives a whole file; it appears under its digest on a clean exit, else nothing is left.

        Whatever goes wrong with the disk within the block comes out as here: DISK_FULL if it is full.
        """
        partial = self.unfinished()
        try:
            with full_disk_as_refusal(self.path(digest)), partial.open("x+b") as file:
                writer = PublicFileWriter(file, self.what, digest, size)
                yield writer
                writer.verify()
            crash_point("public-set-received")
            self._place(partial, digest)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    @contextmanager
    def download(self, digest: str, size: int) -> Iterator[PublicFileWriter]:
        """Receives a file that may come in several goes: continue at `writer.offset`.

        A clean exit with all bytes there verifies the file and gives it its name; a corrupt one is deleted and
        refused. With bytes still missing, or after an error, the partial file waits for the next go.
        """
        partial = self.path(digest).with_name(f".{digest}.part")
        if partial.exists() and partial.stat().st_size > size:
            partial.unlink()
        with full_disk_as_refusal(self.path(digest)), partial.open("a+b") as file:
            file.seek(0)
            writer = PublicFileWriter(file, self.what, digest, size)
            yield writer
            if not writer.complete:
                return
            try:
                writer.verify()
            except Refusal:
                partial.unlink()
                raise
        self._place(partial, digest)

    def read_chunks(
        self, digest: str, offset: int = 0, chunk: int = CHUNK_BYTES
    ) -> Iterator[Chunk]:
        """The content from `offset` on; refuses at once if the file is not here or ends before `offset`."""
        if not self.has(digest):
            raise Refusal(self.unknown, reference=digest)
        path = self.path(digest)
        size = path.stat().st_size
        if not 0 <= offset <= size:
            what = f"{self.what} {digest}"
            raise Refusal(OFFSET_OUT_OF_RANGE, what=what, size=size, offset=offset)
        return _chunks(path, offset, chunk)

    def _place(self, file: Path, digest: str) -> None:
        file.chmod(self._modes.file)
        file.replace(self.path(digest))
        sync_folder(self._root)


class PublicSetFolder(PublicFolder):
    """Public sets."""

    what = "public set"
    unknown = PUBLIC_SET_UNKNOWN


class ExtractorFolder(PublicFolder):
    """Extractors trained on public sets."""

    what = "extractor"
    unknown = EXTRACTOR_UNKNOWN


def _chunks(path: Path, offset: int, chunk: int) -> Iterator[Chunk]:
    with path.open("rb") as file:
        file.seek(offset)
        while data := file.read(chunk):
            yield Chunk(offset, data, hashlib.sha256(data).hexdigest())
            offset += len(data)
