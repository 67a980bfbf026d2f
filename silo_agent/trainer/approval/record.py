"""The hospital's record of approvals: append-only, attributed, hash-chained, kept on the private side."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from wire.errors import APPROVALS_BROKEN, ConfigurationError, Refusal
from wire.runtime.chain import Head, Link, append, first_break, head_of
from wire.runtime.files import full_disk_as_refusal, sync_folder, write_all


class Act(StrEnum):
    """What was decided on a task."""

    APPROVED = "approved"
    WITHDRAWN = "withdrawn"
    ACCEPTED_BY_POLICY = "accepted by policy"


@dataclass(frozen=True)
class Approval:
    """One act: what was decided on which definition, by whom, when."""

    act: Act
    task: str
    digest: str
    by: str
    """The person, as the operating system knows them; `policy` for its own acts."""
    at: str
    """UTC, ISO 8601."""
    note: str
    definition: Mapping[str, object]
    """The whole definition, so that the record can be read without anything else."""
    settings: str = ""
    """Digest of the settings it was decided for; empty in acts of versions that did not record it."""
    promise: str = ""
    """What protects the ballots, in the words that were shown."""


class ApprovalRecord:
    """A file with one act per line. Many may read while one appends.

    Whoever holds one notices if acts it has read before are gone.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = Head()

    def approvals(self) -> list[Approval]:
        """Every act, oldest first; APPROVALS_BROKEN if the chain is."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            content = b""
        except OSError as error:
            raise self._unusable("read", error) from None
        return [_approval(link) for link in self._links(content)]

    def add(self, approval: Approval) -> None:
        """Appends one act and fsyncs it; refused (APPROVALS_BROKEN) behind a broken chain."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise self._unusable("written", error) from None
        # Unbuffered: what a full disk refused must not be written when the file is closed.
        with full_disk_as_refusal(self._path), os.fdopen(descriptor, "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            content = file.read()
            link = append(head_of(self._links(content)), asdict(approval))
            # What a crash left behind the last whole line was never an act.
            end = content.rfind(b"\n") + 1
            os.ftruncate(descriptor, end)
            try:
                write_all(descriptor, json.dumps(asdict(link), ensure_ascii=False).encode() + b"\n")
                os.fsync(descriptor)
            except OSError:
                # Nor is one that could not be put on the disk.
                os.ftruncate(descriptor, end)
                raise
            if not content:
                self._settle(descriptor)

    def _links(self, content: bytes) -> list[Link]:
        """The chain in `content`; an unfinished last line is none of it."""
        links: list[Link] = []
        for number, line in enumerate(content.split(b"\n")[:-1], start=1):
            try:
                links.append(Link(**json.loads(line)))
            except (ValueError, TypeError, RecursionError):
                why = f"entry {number} is not readable"
                raise Refusal(APPROVALS_BROKEN, sequence=number, why=why) from None
        broken = first_break(links, (self._known,))
        if broken is not None:
            raise Refusal(APPROVALS_BROKEN, sequence=broken.sequence, why=broken.why)
        self._known = head_of(links)
        return links

    def _settle(self, descriptor: int) -> None:
        """A file that root made belongs to whom the folder belongs, so that the trainer can read it."""
        if os.geteuid() == 0:
            owner = self._path.parent.stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        sync_folder(self._path.parent)

    def _unusable(self, how: str, error: OSError) -> ConfigurationError:
        return ConfigurationError(
            f"{self._path} cannot be {how}: {error.strerror}.",
            "Use the account that owns the trainer's folder.",
        )


def _approval(link: Link) -> Approval:
    try:
        values: dict[str, Any] = dict(link.entry)
        return Approval(**{**values, "act": Act(values["act"])})
    except (ValueError, TypeError, KeyError):
        why = f"entry {link.sequence} says something this version does not know"
        raise Refusal(APPROVALS_BROKEN, sequence=link.sequence, why=why) from None
