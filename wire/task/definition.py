"""A task's immutable definition: read from task.yaml, sent over the wire, identified by its digest."""

from __future__ import annotations

import hashlib
import re
from datetime import timedelta
from typing import Annotated, Any, Self

from google.protobuf.duration_pb2 import Duration
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from wire.ballot import BallotShape, Encoding
from wire.consilium.v1 import task_pb2
from wire.enums import WireEnum
from wire.identity.naming import Name
from wire.privacy.declaration import PrivacyDemand
from wire.task.canonical import canonical
from wire.task.consensus_policy import ConsensusPolicy
from wire.task.methods import (
    FedauxPolicy,
    FedktPolicy,
    Method,
    completed,
    fields_from_proto,
    fields_to_proto,
    require_method,
    rules_of,
)

MAX_DEFINITION_BYTES = 64 << 10
"""Of a definition's canonical form: hospitals keep every one that is proposed to them."""

# As long as the contract allows (protos/consilium/v1/task.proto).
Label = Annotated[str, Field(min_length=1, max_length=200)]

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


class TaskStatus(WireEnum):
    """Where a task is in its life."""

    DRAFT = "draft", task_pb2.TASK_STATUS_DRAFT
    RUNNING = "running", task_pb2.TASK_STATUS_RUNNING
    PAUSED = "paused", task_pb2.TASK_STATUS_PAUSED
    FINISHED = "finished", task_pb2.TASK_STATUS_FINISHED


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


Seconds = Annotated[float, BeforeValidator(seconds), Field(gt=0, le=30 * 86400)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


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
    labels: Annotated[tuple[Label, ...], Field(min_length=2, max_length=4096)]
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
    cross_fit: Annotated[int, Field(ge=1, le=20)] = 1
    """k: the public set is cut into k parts, and each is labelled by a learner that has not seen its consensus."""
    fedkt: FedktPolicy | None = None
    """How FedKT labels the public set inside a silo."""
    label_spaces: dict[Name, tuple[Label, ...]] = Field(default_factory=dict)
    """CoFED: the classes each silo knows; all of them for a silo that is not named."""
    fedaux: FedauxPolicy | None = None
    """How FEDAUX weights votes."""
    extractor: str = ""
    """Digest of an extractor published with the public set; learners may start from it, FEDAUX must."""

    @model_validator(mode="before")
    @classmethod
    def _as_meant(cls, values: Any) -> Any:
        return completed(_written(values)) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for what, names in (("labels", self.labels), ("silos", self.silos)):
            if len(set(names)) != len(names):
                raise ValueError(f"{what} must not repeat a name")
        if self.silos and self.rounds.quorum > len(self.silos):
            raise ValueError(
                f"rounds.quorum is {self.rounds.quorum} but only {len(self.silos)} silos take part"
            )
        if self.privacy.mechanisms:
            self._require_possible_mechanism()
        self._require_countable()
        require_method(self)
        self._require_small()
        return self

    def _require_small(self) -> None:
        length = len(self.canonical().encode())
        if length > MAX_DEFINITION_BYTES:
            raise ValueError(
                f"the definition has {length} bytes and may have {MAX_DEFINITION_BYTES}: "
                "use fewer or shorter labels and names"
            )

    def _require_possible_mechanism(self) -> None:
        """At least one of the mechanisms that the task accepts can make a ballot it accepts."""
        accepted, only = self.privacy.mechanisms, " or ".join(sorted(set(self.privacy.mechanisms)))
        unfit = self.encoding is not Encoding.ONE_HOT
        if unfit and all(name.flips_single_bits for name in accepted):
            raise ValueError(
                f"privacy.mechanisms accepts {only} only, which needs encoding: one_hot, not {self.encoding}"
            )
        if self.privacy.max_epsilon is not None and not any(n.has_epsilon for n in accepted):
            raise ValueError(
                f"privacy.mechanisms accepts {only} only, which has no ε: leave max_epsilon out"
            )

    def _require_countable(self) -> None:
        rule = self.consensus.rule
        if self.encoding not in rule.encodings:
            fitting = " or ".join(rule.encodings)
            raise ValueError(f"rule {rule} needs encoding: {fitting}, not {self.encoding}")
        if rule.most_labels is not None and len(self.labels) > rule.most_labels:
            raise ValueError(
                f"rule {rule} learns every pair of classes; use it with at most {rule.most_labels} labels"
            )
        if self.privacy.party_gamma is not None and not rule.hides_parties:
            raise ValueError(
                f"privacy.party_gamma hides silos behind noisy counts; rule {rule} needs the ballots themselves"
            )

    def canonical(self) -> str:
        """The one JSON text of this definition, see `wire.task.canonical`."""
        return canonical(self)

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical form: what a hospital approves."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()

    @property
    def shape(self) -> BallotShape:
        """The form of every ballot cast in this task."""
        return BallotShape(self.rows, len(self.labels), self.encoding)

    @property
    def consensus_shape(self) -> BallotShape:
        """The form of what is published: as the rule publishes it."""
        return BallotShape(self.rows, len(self.labels), self.consensus.rule.published_encoding)

    @property
    def votes_per_ballot(self) -> int:
        """How many votes a ballot counts."""
        return rules_of(self.method).votes_per_ballot(self)

    def label_space(self, silo: str) -> tuple[int, ...]:
        """Indices of the classes a silo knows, in ascending order."""
        return rules_of(self.method).label_space(self, silo)

    def to_proto(self) -> task_pb2.TaskDefinition:
        """The definition as the wire carries it."""
        return task_pb2.TaskDefinition(
            name=self.name,
            public_set=self.public_set,
            rows=self.rows,
            labels=self.labels,
            method=self.method.to_proto(),
            consensus=self.consensus.to_proto(),
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
            extractor=self.extractor,
            **fields_to_proto(self),
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
                "method": Method.value_of(message.method),
                "consensus": ConsensusPolicy.from_proto(message.consensus),
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
                "encoding": Encoding.value_of(message.encoding),
                "silos": tuple(message.silos),
                "privacy": PrivacyDemand.from_proto(message.privacy)
                if message.HasField("privacy")
                else PrivacyDemand(),
                "extractor": message.extractor,
                **fields_from_proto(message),
            }
        )


def label_text(label: Any) -> Any:
    """A class name as its author wrote it, where YAML read a number or a boolean."""
    if isinstance(label, bool):
        return str(label).lower()
    return str(label) if isinstance(label, int | float) else label


def _written(values: dict[str, Any]) -> dict[str, Any]:
    """Class names as their author wrote them: YAML reads `[0, 1]` and `[yes, no]` as numbers and booleans."""
    written = dict(values)
    if isinstance(values.get("labels"), list | tuple):
        written["labels"] = [label_text(label) for label in values["labels"]]
    if isinstance(spaces := values.get("label_spaces"), dict):
        written["label_spaces"] = {
            silo: [label_text(label) for label in known]
            if isinstance(known, list | tuple)
            else known
            for silo, known in spaces.items()
        }
    return written


def _duration(length: float) -> Duration:
    duration = Duration()
    duration.FromMilliseconds(round(length * 1000))
    return duration
