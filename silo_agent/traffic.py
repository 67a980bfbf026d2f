"""What crosses the firewall: the words in which it is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What moved."""

    BALLOT = "ballot"
    RECEIPT = "receipt"
    REFUSAL = "refusal"
    """The coordinator did not take a ballot: it came too late or never arrived."""
    CONSENSUS = "consensus"
    PUBLIC_SET = "public set"
    EXTRACTOR = "extractor"
    """What a task's public rows taught the coordinator's side; nothing of the kind ever leaves."""
    APPROVAL = "approval"
    """The hospital agreed to a task; its digest is that of the task."""


class Direction(StrEnum):
    """Which way."""

    OUT = "out"
    IN = "in"
    HERE = "here"
    """Neither: an act within the hospital."""


@dataclass(frozen=True)
class Movement:
    """One thing that crossed the firewall, or one act.

    `bytes` is the payload without framing. `digest` is that of the payload; a receipt's or refusal's is that of
    the ballot it answers.
    """

    at: str
    direction: Direction
    kind: Kind
    task: str
    round: int
    bytes: int
    digest: str

    def entry(self) -> dict[str, object]:
        """What is recorded of it."""
        return asdict(self)

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> Movement:
        """What `entry` gave, further keys ignored; ValueError, KeyError or TypeError if it is not that."""
        return cls(
            at=str(entry["at"]),
            direction=Direction(entry["direction"]),
            kind=Kind(entry["kind"]),
            task=str(entry["task"]),
            round=int(entry["round"]),
            bytes=int(entry["bytes"]),
            digest=str(entry["digest"]),
        )
