"""A task's immutable definition: read from task.yaml, sent over the wire, identified by its digest."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Self

from google.protobuf.duration_pb2 import Duration
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from wire.ballot import BallotShape, Encoding
from wire.consensus_policy import ConsensusPolicy, RuleName
from wire.consilium.v1 import task_pb2
from wire.methods import DEFAULTS, METHODS, FedauxPolicy, FedktLevel, FedktPolicy, Method
from wire.naming import Name
from wire.privacy.declaration import MechanismName, PrivacyDemand, wire_name

_STAPLE_LABELS = 512
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


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
    cross_fit: Annotated[int, Field(ge=1, le=20)] = 1
    """k: the public set is cut into k parts, and each is labelled by a learner that has not seen its consensus."""
    fedkt: FedktPolicy | None = None
    """How FedKT labels the public set inside a silo."""
    label_spaces: dict[Name, tuple[str, ...]] = Field(default_factory=dict)
    """CoFED: the classes each silo knows; all of them for a silo that is not named."""
    fedaux: FedauxPolicy | None = None
    """How FEDAUX weights votes."""
    extractor: str = ""
    """Digest of an extractor published with the public set; learners may start from it, FEDAUX must."""

    @model_validator(mode="before")
    @classmethod
    def _as_meant(cls, values: Any) -> Any:
        return _completed(_written(values)) if isinstance(values, dict) else values

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
        self._require_countable()
        self._require_method()
        return self

    def _require_countable(self) -> None:
        rule = self.consensus.rule
        if self.encoding not in rule.encodings:
            fitting = " or ".join(rule.encodings)
            raise ValueError(f"rule {rule} needs encoding: {fitting}, not {self.encoding}")
        if rule is RuleName.STAPLE and len(self.labels) > _STAPLE_LABELS:
            raise ValueError(
                f"rule staple learns every pair of classes; use it with at most {_STAPLE_LABELS} labels"
            )
        if self.privacy.party_gamma is not None and not rule.hides_parties:
            raise ValueError(
                f"privacy.party_gamma hides silos behind noisy counts; rule {rule} needs the ballots themselves"
            )

    def _require_method(self) -> None:
        """What a method needs, and that no other method's settings are given."""
        method = self.method
        for name, owner in (("fedkt", Method.FEDKT), ("fedaux", Method.FEDAUX)):
            if (getattr(self, name) is not None) != (method is owner):
                raise ValueError(f"the section {name} belongs to method {owner}, not {method}")
        if self.label_spaces and method is not Method.COFED:
            raise ValueError(f"label_spaces belong to method cofed, not {method}")
        if self.cross_fit > 1 and method is not Method.FEDCT:
            raise ValueError(f"cross_fit belongs to method fedct, not {method}")
        for silo, known in self.label_spaces.items():
            strange = sorted(set(known) - set(self.labels))
            if strange or not known or len(set(known)) < len(known):
                raise ValueError(
                    f"label_spaces.{silo} must name some of the labels, each once"
                    + (f"; {', '.join(strange)} is not among them" if strange else "")
                )
            if self.silos and silo not in self.silos:
                raise ValueError(f"label_spaces names {silo}, which does not take part")
        if method is Method.COFED and self.consensus.rule is not RuleName.PER_CLASS_THRESHOLD:
            raise ValueError("method cofed needs consensus.rule: per_class_threshold")
        if method in (Method.FEDKT, Method.COFED) and self.rounds.max_rounds != 1:
            raise ValueError(f"method {method} has one round; leave rounds.max_rounds out")
        if method is Method.FEDAUX and not self.extractor:
            raise ValueError(
                "method fedaux needs an extractor: see `consilium public-set pretrain`"
            )
        if self.fedkt is not None:
            self._require_fedkt(self.fedkt)

    def _require_fedkt(self, fedkt: FedktPolicy) -> None:
        noisy = self.privacy.party_gamma is not None
        if noisy != (fedkt.level is FedktLevel.L1):
            raise ValueError("fedkt.level L1 and privacy.party_gamma go together")
        teachers = self.privacy.mechanisms == (MechanismName.TEACHER_VOTES,)
        if fedkt.level is FedktLevel.L2 and not teachers:
            raise ValueError("fedkt.level L2 needs privacy.mechanisms: [teacher_votes]")

    def canonical(self) -> str:
        """The one JSON text of this definition: sorted keys, no spaces.

        A section that later versions brought is left out while it says nothing, so that older definitions
        keep their digest.
        """
        later = {"privacy", "cross_fit", "fedkt", "label_spaces", "fedaux", "extractor"}
        values = self.model_dump(
            mode="json",
            exclude={
                **{name: True for name in later if self._says_nothing(name)},
                "consensus": self.consensus.defaulted,
            },
        )
        return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical form: what a hospital approves."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()

    def _says_nothing(self, name: str) -> bool:
        default = type(self).model_fields[name].get_default(call_default_factory=True)
        return bool(getattr(self, name) == default)

    @property
    def shape(self) -> BallotShape:
        """The form of every ballot cast in this task."""
        return BallotShape(self.rows, len(self.labels), self.encoding)

    @property
    def consensus_shape(self) -> BallotShape:
        """The form of what is published: ONE_HOT where several classes may claim a row, else INDEX."""
        claims = self.consensus.rule is RuleName.PER_CLASS_THRESHOLD
        return BallotShape(
            self.rows, len(self.labels), Encoding.ONE_HOT if claims else Encoding.INDEX
        )

    @property
    def votes_per_ballot(self) -> int:
        """How often a ballot counts: FedKT's stands for its silo's students, who all agree."""
        return self.fedkt.partitions if self.fedkt else 1

    def label_space(self, silo: str) -> tuple[int, ...]:
        """Indices of the classes a silo knows, in ascending order."""
        known = set(self.label_spaces.get(silo, self.labels))
        return tuple(index for index, label in enumerate(self.labels) if label in known)

    def to_proto(self) -> task_pb2.TaskDefinition:
        """The definition as the wire carries it."""
        return task_pb2.TaskDefinition(
            name=self.name,
            public_set=self.public_set,
            rows=self.rows,
            labels=self.labels,
            method=METHODS[self.method],
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
            cross_fit=self.cross_fit,
            fedkt=self.fedkt.to_proto() if self.fedkt else None,
            label_spaces={
                silo: task_pb2.LabelSpace(labels=known) for silo, known in self.label_spaces.items()
            },
            fedaux=self.fedaux.to_proto() if self.fedaux else None,
            extractor=self.extractor,
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
                "method": wire_name(METHODS, message.method),
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
                "encoding": wire_name({e: e.to_proto() for e in Encoding}, message.encoding),
                "silos": tuple(message.silos),
                "privacy": PrivacyDemand.from_proto(message.privacy)
                if message.HasField("privacy")
                else PrivacyDemand(),
                "cross_fit": message.cross_fit or 1,
                "fedkt": FedktPolicy.from_proto(message.fedkt)
                if message.HasField("fedkt")
                else None,
                "label_spaces": {
                    silo: tuple(known.labels) for silo, known in message.label_spaces.items()
                },
                "fedaux": FedauxPolicy.from_proto(message.fedaux)
                if message.HasField("fedaux")
                else None,
                "extractor": message.extractor,
            }
        )


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


def _completed(values: dict[str, Any]) -> dict[str, Any]:
    """What the method means where task.yaml says nothing."""
    method = values.get("method")
    if method not in set(Method):
        return values
    completed = dict(values)
    for name, meant in DEFAULTS[Method(method)].items():
        if not isinstance(meant, Mapping):
            completed.setdefault(name, meant)
        elif isinstance(given := completed.get(name, {}), dict):
            completed[name] = {**meant, **given}
    if method in (Method.FEDKT, Method.FEDAUX) and completed.get(str(method)) is None:
        completed[str(method)] = {}
    return completed


def _duration(length: float) -> Duration:
    duration = Duration()
    duration.FromMilliseconds(round(length * 1000))
    return duration
