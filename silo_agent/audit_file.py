"""The files of a silo's audit record: a hash chain in JSON lines, and its head in a file of its own.

    audit.jsonl        {"entry": …, "hash": …, "previous": …, "sequence": …} per line, canonical JSON
    audit-head.json    number and hash of the last line: a record that lost its end does not match
    audit-torn.bin     half-written lines that a crash left, taken out of the record

A line is on the disk before anything follows from it. The head is overwritten in place by a single write and
not flushed: one flush per line is dear enough, and a power cut that leaves an older head does no harm, because
a record must pass its head and need not end there.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from wire.chain import Broken, Damage, Head, Link, first_break, head_of
from wire.errors import ConfigurationError
from wire.files import sync_folder, write_atomically

_RECORD = "audit.jsonl"
_HEAD = "audit-head.json"
_TORN = "audit-torn.bin"
# Of one length whatever it says, so that overwriting it needs no room and leaves nothing of the old one.
_HEAD_BYTES = 128


@dataclass(frozen=True)
class StoredRecord:
    """The record as it stands on the disk."""

    links: tuple[Link, ...]
    size: int
    """Bytes of its whole lines."""
    torn: int
    """Bytes behind the last whole line: what a crash left, or a line just being written."""
    torn_before: int
    """Half-written lines taken out at earlier starts."""
    broken: Broken | None


def record_path(folder: Path) -> Path:
    """Where the record lies in the agent's folder."""
    return folder / _RECORD


def read_record(folder: Path) -> StoredRecord:
    """Reads and checks the record; the agent may go on writing meanwhile."""
    try:
        # The head first: entries written while we read are no damage.
        head = _read_head(folder / _HEAD)
        path = record_path(folder)
        content = path.read_bytes() if path.exists() else b""
        torn_file = folder / _TORN
        torn_before = torn_file.read_bytes().count(b"\n") if torn_file.exists() else 0
    except OSError as error:
        raise unusable(folder, "read", error) from None
    size = content.rfind(b"\n") + 1
    links = tuple(
        _parsed(number, line)
        for number, line in enumerate(content[:size].split(b"\n")[:-1], start=1)
    )
    return StoredRecord(links, size, len(content) - size, torn_before, _break_in(links, head))


class RecordWriter:
    """Appends lines. One per folder: `silo_agent.instance` sees to that."""

    def __init__(self, folder: Path, stored: StoredRecord) -> None:
        self._folder = folder
        self._path = record_path(folder)
        self._size = stored.size
        self.head = head_of(stored.links)
        """Where the record ends."""

    def append(self, link: Link) -> None:
        """Puts `link`, which follows `head`, on the disk; a failure leaves the record as it was."""
        try:
            # Before the first line: a record without a head has lost it.
            if not (self._folder / _HEAD).exists():
                write_atomically(self._folder / _HEAD, _head_bytes(self.head))
            line = _line(link)
            self._write(line)
            self._size += len(line)
            self.head = Head(link.sequence, link.hash)
            self._overwrite_head()
        except OSError as error:
            raise unusable(self._folder, "written", error) from None

    def _write(self, line: bytes) -> None:
        created = not self._path.exists()
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "r+b") as file:
            if torn := self._behind_the_end(descriptor):
                self._set_aside(torn)
                file.truncate(self._size)
            file.seek(self._size)
            file.write(line)
            file.flush()
            os.fsync(descriptor)
        if created:
            sync_folder(self._folder)

    def _behind_the_end(self, descriptor: int) -> bytes:
        size = os.fstat(descriptor).st_size
        if size < self._size:
            raise ConfigurationError(
                f"{self._path} was cut short while the agent ran.",
                "Nothing leaves without a record: keep a copy, find out who did that, then restart.",
            )
        return os.pread(descriptor, size - self._size, self._size)

    def _set_aside(self, torn: bytes) -> None:
        with (self._folder / _TORN).open("ab") as file:
            file.write(torn.replace(b"\n", b" ") + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _overwrite_head(self) -> None:
        descriptor = os.open(self._folder / _HEAD, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, _head_bytes(self.head), 0)
        finally:
            os.close(descriptor)


def unusable(folder: Path, how: str, error: OSError) -> ConfigurationError:
    """The record cannot be `how` (read, written)."""
    return ConfigurationError(
        f"The audit record in {folder} cannot be {how}: {error.strerror}.",
        "Nothing leaves before it is recorded; see that the folder belongs to the agent and has room.",
    )


def _break_in(links: tuple[Link, ...], head: Head | None) -> Broken | None:
    broken = first_break(links, (head or Head(),))
    if broken is None and head is None and links:
        why = f"{_HEAD} is missing or damaged, so nobody can tell whether there were more than {len(links)} entries"
        return Broken(len(links), Damage.REMOVED, why)
    return broken


def _head_bytes(head: Head) -> bytes:
    text = json.dumps({"sequence": head.sequence, "hash": head.hash})
    return text.encode().ljust(_HEAD_BYTES - 1) + b"\n"


def _read_head(path: Path) -> Head | None:
    """The head on the disk, or None if it is missing or unreadable."""
    if not path.exists():
        return None
    content = b""
    # The same twice: it may be overwritten just now.
    while content != (content := path.read_bytes()):
        pass
    try:
        values = json.loads(content)
        return Head(int(values["sequence"]), str(values["hash"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _line(link: Link) -> bytes:
    text = json.dumps(vars(link), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode() + b"\n"


def _parsed(number: int, line: bytes) -> Link:
    """The link a line holds; one whose hash cannot be right if the line is not as we write it."""
    try:
        link = Link(**json.loads(line))
        if isinstance(link.entry, dict) and _line(link) == line + b"\n":
            return link
    except (ValueError, TypeError, RecursionError):
        pass
    return Link(number, {}, "", "")
