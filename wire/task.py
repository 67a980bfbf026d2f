"""A task's immutable definition: read from task.yaml, sent over the wire, identified by its digest."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Self

from google.protobuf.duration_pb2 import Duration
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from wire.ballot import BallotShape, Encoding
from wire.consilium.v1 import task_pb2
from wire.privacy.declaration import MechanismName, PrivacyDemand, wire_name

_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Method(StrEnum):
    """Which of the papers' methods the silos follow."""

    FEDCT = "fedct"


class RuleName(StrEnum):
    """How ballots become a consensus."""

    MAJORITY = "majority"
    QUALIFIED_MAJORITY = "qualified_majority"


class TaskStatus(StrEnum):
    """Where a task is in its life."""

    DRAFT = "draft"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"


def seconds(value: Any) -> Any:
    """Reads `90`, `"90s"`, `"10m"` or `"2h"` as seconds; anything else is left for pydantic to refuse."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", value)
        if not match:
            raise ValueError(f"{value!r} is not a duration; write for example 30s, 10m or 2h")
        return float(match[1]) * _UNITS[match[2]]
    return value


def valid_name(name: str) -> str:
    """A name fit for certificates, file names and metric labels."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a valid name: 1 to 63 lower-case letters, digits and hyphens, "
            "starting with a letter"
        )
    return name


Seconds = Annotated[float, BeforeValidator(seconds), Field(gt=0, le=30 * 86400)]
Name = Annotated[str, AfterValidator(valid_name)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ConsensusPolicy(_Frozen):
    """Which rule publishes a label, and when it abstains."""

    rule: RuleName = RuleName.MAJORITY
    min_share: Annotated[float, Field(ge=0.001, le=1)] = 0.9
    """Share of cast votes a qualified majority needs; kept to a thousandth."""

    @property
    def min_share_permille(self) -> int:
        """The share as the wire carries it."""
        return round(self.min_share * 1000)


class RoundPolicy(_Frozen):
    """When a round ends: deadline, quorum, grace; and when the task does: rounds, churn."""

    max_rounds: Annotated[int, Field(ge=1, le=100_000)] = 10
    deadline: Seconds = 600.0
    """How long a round may stay open."""
    grace: Annotated[float, BeforeValidator(seconds), Field(ge=0)] = 30.0
    """How long to wait for the others once the quorum has voted."""
    quorum: Annotated[int, Field(ge=1)] = 2
    """Ballots without which no consensus is formed."""
    max_extensions: Annotated[int, Field(ge=0)] = 3
    """How often a round below its quorum is extended by another deadline before the task pauses."""
    stop_churn: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The task is done when at most this share of rows changes ..."""
    stop_patience: Annotated[int, Field(ge=0)] = 2
    """... in this many rounds in a row; 0 never stops early."""


class TaskDefinition(_Frozen):
    """Everything a hospital agrees to when it takes part."""

    name: Name
    public_set: str
    """Digest of the public set; in task.yaml also its name or name@version."""
    rows: Annotated[int, Field(ge=0)] = 0
    """Rows of the public set; filled in by the coordinator."""
    labels: Annotated[tuple[str, ...], Field(min_length=2, max_length=4096)]
    """Class names in the order of their index."""
    method: Method = Method.FEDCT
    consensus: ConsensusPolicy = ConsensusPolicy()
    rounds: RoundPolicy = RoundPolicy()
    local_steps: Annotated[int, Field(ge=1)] = 50
    """Communication period b: minibatch steps an iterative learner takes between two ballots."""
    encoding: Encoding = Encoding.INDEX
    """How ballots are packed."""
    silos: tuple[Name, ...] = ()
    """Silos that take part; empty means every active silo."""
    privacy: PrivacyDemand = PrivacyDemand()
    """The least protection a ballot must have."""

    @model_validator(mode="before")
    @classmethod
    def _labels_as_written(cls, values: Any) -> Any:
        # YAML reads `labels: [0, 1]` and `[yes, no]` as numbers and booleans; a class name is text.
        if isinstance(values, dict) and isinstance(values.get("labels"), list | tuple):
            values = {**values, "labels": [label_text(label) for label in values["labels"]]}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for what, names in (("labels", self.labels), ("silos", self.silos)):
            if len(set(names)) != len(names):
                raise ValueError(f"{what} must not repeat a name")
        if self.silos and self.rounds.quorum > len(self.silos):
            raise ValueError(
                f"rounds.quorum is {self.rounds.quorum} but only {len(self.silos)} silos take part"
            )
        accepted, encoding = set(self.privacy.mechanisms), self.encoding
        if accepted == {MechanismName.XOR} and encoding is not Encoding.ONE_HOT:
            raise ValueError(
                f"privacy.mechanisms accepts xor only, which needs encoding: one_hot, not {encoding}"
            )
        if accepted == {MechanismName.NONE} and self.privacy.max_epsilon is not None:
            raise ValueError(
                "privacy.mechanisms accepts none only, which has no ε: leave max_epsilon out"
            )
        return self

    def canonical(self) -> str:
        """The one JSON text of this definition: sorted keys, no spaces.

        A section that later versions brought is left out while it says nothing, so that older definitions
        keep their digest.
        """
        later = {"privacy"} if self.privacy == PrivacyDemand() else set()
        values = self.model_dump(mode="json", exclude=later)
        return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical form: what a hospital approves."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()

    @property
    def shape(self) -> BallotShape:
        """The form of every ballot cast in this task."""
        return BallotShape(self.rows, len(self.labels), self.encoding)

    def to_proto(self) -> task_pb2.TaskDefinition:
        """The definition as the wire carries it."""
        return task_pb2.TaskDefinition(
            name=self.name,
            public_set=self.public_set,
            rows=self.rows,
            labels=self.labels,
            method=_METHODS[self.method],
            rule=_RULES[self.consensus.rule],
            min_share_permille=self.consensus.min_share_permille,
            rounds=task_pb2.RoundPolicy(
                max_rounds=self.rounds.max_rounds,
                deadline=_duration(self.rounds.deadline),
                grace=_duration(self.rounds.grace),
                quorum=self.rounds.quorum,
                max_extensions=self.rounds.max_extensions,
                stop_churn_permille=round(self.rounds.stop_churn * 1000),
                stop_patience=self.rounds.stop_patience,
            ),
            local_steps=self.local_steps,
            encoding=self.encoding.to_proto(),
            silos=self.silos,
            privacy=None if self.privacy == PrivacyDemand() else self.privacy.to_proto(),
        )

    @classmethod
    def from_proto(cls, message: task_pb2.TaskDefinition) -> Self:
        """Reads and checks a definition from the wire; raises pydantic's ValidationError."""
        return cls.model_validate(
            {
                "name": message.name,
                "public_set": message.public_set,
                "rows": message.rows,
                "labels": tuple(message.labels),
                "method": wire_name(_METHODS, message.method),
                "consensus": {
                    "rule": wire_name(_RULES, message.rule),
                    "min_share": message.min_share_permille / 1000,
                },
                "rounds": {
                    "max_rounds": message.rounds.max_rounds,
                    "deadline": message.rounds.deadline.ToMilliseconds() / 1000,
                    "grace": message.rounds.grace.ToMilliseconds() / 1000,
                    "quorum": message.rounds.quorum,
                    "max_extensions": message.rounds.max_extensions,
                    "stop_churn": message.rounds.stop_churn_permille / 1000,
                    "stop_patience": message.rounds.stop_patience,
                },
                "local_steps": message.local_steps,
                "encoding": wire_name({e: e.to_proto() for e in Encoding}, message.encoding),
                "silos": tuple(message.silos),
                "privacy": PrivacyDemand.from_proto(message.privacy)
                if message.HasField("privacy")
                else PrivacyDemand(),
            }
        )


_METHODS = {Method.FEDCT: task_pb2.METHOD_FEDCT}
_RULES = {
    RuleName.MAJORITY: task_pb2.CONSENSUS_RULE_MAJORITY,
    RuleName.QUALIFIED_MAJORITY: task_pb2.CONSENSUS_RULE_QUALIFIED_MAJORITY,
}
STATUSES = {
    TaskStatus.DRAFT: task_pb2.TASK_STATUS_DRAFT,
    TaskStatus.RUNNING: task_pb2.TASK_STATUS_RUNNING,
    TaskStatus.PAUSED: task_pb2.TASK_STATUS_PAUSED,
    TaskStatus.FINISHED: task_pb2.TASK_STATUS_FINISHED,
}


def label_text(label: Any) -> Any:
    """A class name as its author wrote it, where YAML read a number or a boolean."""
    if isinstance(label, bool):
        return str(label).lower()
    return str(label) if isinstance(label, int | float) else label


def _duration(length: float) -> Duration:
    duration = Duration()
    duration.FromMilliseconds(round(length * 1000))
    return duration
