"""The entries of the audit record: what crossed the firewall, and which way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What was sent, received or decided."""

    BALLOT = "ballot"
    RECEIPT = "receipt"
    REFUSAL = "refusal"
    """The coordinator did not take a ballot: it came too late or never arrived."""
    CONSENSUS = "consensus"
    PUBLIC_SET = "public set"
    EXTRACTOR = "extractor"
    """A pretrained feature extractor; received only, none is ever sent."""
    APPROVAL = "approval"
    """The hospital agreed to a task; its digest is that of the task."""


class Direction(StrEnum):
    """Seen from the hospital."""

    OUT = "out"
    IN = "in"
    HERE = "here"
    """Neither: a decision within the hospital."""


@dataclass(frozen=True)
class AuditEntry:
    """One thing that crossed the firewall, or one decision of the hospital.

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

    def as_json(self) -> dict[str, object]:
        """The fields, as they are recorded."""
        return asdict(self)

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> AuditEntry:
        """The inverse of `as_json`, further keys ignored; ValueError, KeyError or TypeError for anything else."""
        return cls(
            at=str(entry["at"]),
            direction=Direction(entry["direction"]),
            kind=Kind(entry["kind"]),
            task=str(entry["task"]),
            round=int(entry["round"]),
            bytes=int(entry["bytes"]),
            digest=str(entry["digest"]),
        )
