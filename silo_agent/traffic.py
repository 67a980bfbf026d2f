"""What left the building and what came, one line each, written before a ballot leaves."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path


class Kind(StrEnum):
    """What moved."""

    BALLOT = "ballot"
    RECEIPT = "receipt"
    CONSENSUS = "consensus"
    PUBLIC_SET = "public set"


class Direction(StrEnum):
    """Which way."""

    OUT = "out"
    IN = "in"


@dataclass(frozen=True)
class Movement:
    """One thing that crossed the firewall; `bytes` is the payload without framing."""

    at: str
    direction: Direction
    kind: Kind
    task: str
    round: int
    bytes: int
    digest: str


class Traffic:
    """An append-only file of movements; each is on disk before the call that caused it goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def record(
        self, direction: Direction, kind: Kind, task: str, round_: int, size: int, digest: str
    ) -> None:
        """Appends one movement and fsyncs it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps(asdict(Movement(now, direction, kind, task, round_, size, digest)))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def movements(self) -> Iterator[Movement]:
        """Everything recorded, oldest first; a half-written last line is left out."""
        if not self._path.exists():
            return
        for line in self._path.read_text(encoding="utf-8").splitlines():
            try:
                values = json.loads(line)
            except json.JSONDecodeError:
                continue
            yield Movement(
                **{
                    **values,
                    "direction": Direction(values["direction"]),
                    "kind": Kind(values["kind"]),
                }
            )
