"""The private side's own copies of public files.

The exchange folder belongs to the network side too, which can rewrite, exchange or truncate what lies there at any
moment. So nothing there is used: a file is read once, copied and hashed in the same pass, and the copy is what is
opened, mapped into memory and opened again. Copies are dropped when the trainer starts, and when the last task that
uses them has finished; what is missing is copied anew.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Final

from silo_agent.shared.home import SiloHome
from wire.errors import CONTENT_CORRUPT, EXTRACTOR_UNKNOWN, PUBLIC_SET_UNKNOWN, Fault, Refusal
from wire.extractor_file import MAX_BYTES as MAX_EXTRACTOR_BYTES
from wire.runtime.files import digest_of, full_disk_as_refusal, is_digest, sync_folder, write_all
from wire.task.definition import TaskDefinition

ROW_BYTES: Final = 16 << 20
"""A public row is at most so long; a file that is longer than the task's rows can be is not copied."""
# Hidden, so that no backup has it.
_BORROWED: Final = ".public-"
_PIECE_BYTES: Final = 1 << 20
# A link is not followed, a pipe is not waited for, and a terminal does not become ours.
_UNTRUSTED: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True)
class CopiedFolder:
    """Copies of the files in one folder of the exchange."""

    source: Path
    own: Path
    what: str
    unknown: Fault

    def require_name(self, digest: str) -> None:
        """`unknown` if `digest` is not one, so that no path gets in."""
        if not is_digest(digest):
            raise Refusal(self.unknown, reference=repr(digest[:80]))

    def copy(self, digest: str, most_bytes: int) -> Path:
        """This side's own copy of a file; CONTENT_CORRUPT unless the exchange has a regular file of this digest."""
        self.require_name(digest)
        path = self.own / digest
        if path.is_file() and digest_of(path) == digest:
            return path
        self.own.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = path.with_name(f".{digest}.{os.getpid()}.part")
        try:
            with full_disk_as_refusal(path):
                found = self._copied(digest, partial, most_bytes)
                if found != digest:
                    raise self._corrupt(digest)
                os.replace(partial, path)
                sync_folder(self.own)
        finally:
            partial.unlink(missing_ok=True)
        return path

    def drop(self, digest: str) -> None:
        """Removes a copy; what has it open keeps it until it is closed."""
        (self.own / digest).unlink(missing_ok=True)

    def drop_all(self) -> None:
        """Removes every copy, whole or not. No other process may be using them."""
        for path in self.own.glob("*"):
            path.unlink()

    def _copied(self, digest: str, partial: Path, most_bytes: int) -> str:
        """Copies at most `most_bytes` from the exchange; the digest of what was written."""
        hashed = hashlib.sha256()
        with self._opened(digest) as source:
            target = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                left = most_bytes + 1
                while left and (piece := os.read(source, min(left, _PIECE_BYTES))):
                    hashed.update(piece)
                    write_all(target, piece)
                    left -= len(piece)
                os.fsync(target)
            finally:
                os.close(target)
        return hashed.hexdigest() if left else ""

    @contextmanager
    def _opened(self, digest: str) -> Iterator[int]:
        """The file in the exchange; neither it nor its folder may be a link to somewhere else."""
        folder = source = None
        try:
            folder = os.open(self.source, _UNTRUSTED | os.O_DIRECTORY)
            source = os.open(digest, _UNTRUSTED, dir_fd=folder)
            if not stat.S_ISREG(os.fstat(source).st_mode):
                raise self._corrupt(digest)
            yield source
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            raise self._corrupt(digest) from None
        except OSError as error:
            if source is None:
                # A link, a socket, a device without a driver.
                raise self._corrupt(digest) from None
            raise error
        finally:
            for descriptor in (folder, source):
                if descriptor is not None:
                    os.close(descriptor)

    def _corrupt(self, digest: str) -> Refusal:
        return Refusal(CONTENT_CORRUPT, what=f"the {self.what}", digest=digest)


class PublicCopies:
    """Copies of everything public that tasks name."""

    def __init__(
        self, home: SiloHome, own: Path | None = None, *, most_bytes: int = sys.maxsize
    ) -> None:
        """`own` is a folder of the caller's alone, the trainer's if it is not given; no file may be longer than `most_bytes`."""
        self._most_bytes = most_bytes
        root = own or home.public_copies
        self._trainer = home.trainer
        self._sets = CopiedFolder(home.public_sets, root / "sets", "public set", PUBLIC_SET_UNKNOWN)
        self._extractors = CopiedFolder(
            home.extractors, root / "extractors", "extractor", EXTRACTOR_UNKNOWN
        )

    def require_names(self, definition: TaskDefinition) -> None:
        """PUBLIC_SET_UNKNOWN or EXTRACTOR_UNKNOWN if the task names what is no digest."""
        self._sets.require_name(definition.public_set)
        if definition.extractor:
            self._extractors.require_name(definition.extractor)

    def public_set(self, definition: TaskDefinition) -> Path:
        """The task's public set."""
        most = min(definition.rows * ROW_BYTES, self._most_bytes)
        return self._sets.copy(definition.public_set, most)

    def extractor(self, definition: TaskDefinition) -> Path:
        """The task's extractor."""
        most = min(MAX_EXTRACTOR_BYTES, self._most_bytes)
        return self._extractors.copy(definition.extractor, most)

    def drop_unused(self, finished: TaskDefinition, others: list[TaskDefinition]) -> None:
        """Removes what a finished task used and no other one does."""
        if finished.public_set not in {task.public_set for task in others}:
            self._sets.drop(finished.public_set)
        if finished.extractor not in {"", *(task.extractor for task in others)}:
            self._extractors.drop(finished.extractor)

    @classmethod
    @contextmanager
    def borrowed(cls, home: SiloHome) -> Iterator[PublicCopies]:
        """Copies for one command beside the trainer; they are gone when the block ends."""
        home.trainer.mkdir(parents=True, exist_ok=True, mode=0o700)
        with TemporaryDirectory(prefix=_BORROWED, dir=home.trainer) as place:
            yield cls(home, Path(place))

    def drop_all(self) -> None:
        """Removes every copy, also those of commands that were killed. No other trainer may be using them."""
        for place in self._trainer.glob(f"{_BORROWED}*"):
            rmtree(place, ignore_errors=True)
        self._sets.drop_all()
        self._extractors.drop_all()
