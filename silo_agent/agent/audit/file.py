"""The files of a silo's audit record: a hash chain in JSON lines, and its head in a file of its own.

    audit.jsonl        {"entry": …, "hash": …, "previous": …, "sequence": …} per line, canonical JSON
    audit-head.json    number and hash of the last line, by which a truncated record is noticed
    audit-torn.bin     half-written lines that a crash left, removed from the record

A line is fsynced before the agent does what the line says. The head is overwritten in place by a single write
and not fsynced: one fsync per line is slow enough, and a power cut that leaves an older head does no harm,
because the record must contain its head and may go on after it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from wire.errors import ConfigurationError
from wire.runtime.chain import Broken, Damage, Head, Link, first_break, head_of
from wire.runtime.files import sync_folder, write_atomically

_RECORD = "audit.jsonl"
_HEAD = "audit-head.json"
_TORN = "audit-torn.bin"
# Padded to a fixed length, so that overwriting needs no disk space and leaves nothing of the old head.
_HEAD_BYTES = 128


@dataclass(frozen=True)
class StoredRecord:
    """The record as read from the disk."""

    links: tuple[Link, ...]
    size: int
    """Bytes of its complete lines."""
    torn: int
    """Bytes after the last complete line: what a crash left, or a line just being written."""
    torn_before: int
    """Half-written lines moved to audit-torn.bin so far."""
    broken: Broken | None


def record_path(folder: Path) -> Path:
    """Path of the record in the agent's folder."""
    return folder / _RECORD


def read_record(folder: Path) -> StoredRecord:
    """Reads and verifies the record, also while the agent appends to it."""
    try:
        # The head first, so that entries appended while we read do not look like damage.
        head = _read_head(folder / _HEAD)
        path = record_path(folder)
        content = path.read_bytes() if path.exists() else b""
        torn_file = folder / _TORN
        torn_before = torn_file.read_bytes().count(b"\n") if torn_file.exists() else 0
    except OSError as error:
        raise _inaccessible(folder, "read", error) from None
    size = content.rfind(b"\n") + 1
    links = tuple(
        _parsed(number, line)
        for number, line in enumerate(content[:size].split(b"\n")[:-1], start=1)
    )
    return StoredRecord(links, size, len(content) - size, torn_before, _first_break(links, head))


class RecordWriter:
    """Appends lines. Only one per folder may exist, which `silo_agent.agent.instance` ensures."""

    def __init__(self, folder: Path, stored: StoredRecord) -> None:
        self._folder = folder
        self._path = record_path(folder)
        self._size = stored.size
        self.head = head_of(stored.links)
        """The last line's number and hash."""

    def append(self, link: Link) -> None:
        """Writes `link`, which follows `head`, and fsyncs; a failure leaves the record as it was."""
        try:
            # Before the first line: a record with lines and no head counts as damaged.
            if not (self._folder / _HEAD).exists():
                write_atomically(self._folder / _HEAD, _head_bytes(self.head))
            line = _line(link)
            self._write(line)
            self._size += len(line)
            self.head = Head(link.sequence, link.hash)
            self._overwrite_head()
        except OSError as error:
            raise _inaccessible(self._folder, "written", error) from None

    def _write(self, line: bytes) -> None:
        created = not self._path.exists()
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            if torn := self._trailing_bytes(descriptor):
                self._set_aside(torn)
                file.truncate(self._size)
            file.seek(self._size)
            file.write(line)
            file.flush()
            os.fsync(descriptor)
        if created:
            sync_folder(self._folder)

    def _trailing_bytes(self, descriptor: int) -> bytes:
        """What follows the last complete line."""
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


def _inaccessible(folder: Path, how: str, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"The audit record in {folder} cannot be {how}: {error.strerror}.",
        "Nothing leaves before it is recorded; see that the folder belongs to the agent and has room.",
    )


def _first_break(links: tuple[Link, ...], head: Head | None) -> Broken | None:
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
    # Until two reads agree: the agent may be overwriting it.
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
    """The link a line holds; a link with an impossible hash if the line is not exactly as `_line` writes it."""
    try:
        link = Link(**json.loads(line))
        if isinstance(link.entry, dict) and _line(link) == line + b"\n":
            return link
    except (ValueError, TypeError, RecursionError):
        pass
    return Link(number, {}, "", "")
